/* SPDX-License-Identifier: Apache-2.0 */
/* Who sends how much to whom: the count matrices of --pattern and --matrix. */
#ifndef PATTERNS_H
#define PATTERNS_H

#include <stddef.h>

/* All patterns. To add one, write its weight function in patterns.c and a line here: name (zipf
 * takes a number for the A), weight function, how weights become counts, whether --bench measures
 * it when no --pattern is given. */
#define PATTERNS(X)                                    \
  X("halving", halving, FRACTIONS, false)              \
  X("uniform", uniform, SHARES, true)                  \
  X("skew", distance, SHARES_OF_16, true)              \
  X("unaligned", distance, SHARES, true)               \
  X("zipf:A", zipf, SHARES, false)                     \
  X("one-hot", one_hot, SHARES, false)                 \
  X("diagonal", diagonal, SHARES, false)               \
  X("zero", zero, SHARES, false)                       \
  X("random", at_random, SHARES, false)                \
  X("single-sender", single_sender, SHARES, false)     \
  X("single-receiver", single_receiver, SHARES, false) \
  X("moe", moe, SHARES, false)

/* " halving uniform ...", for --help and messages; and how many these are. */
#define PATTERN_NAMES PATTERNS(PATTERN_NAME)
#define PATTERN_NAME(name, weight, rounding, in_sweep) " " name
#define PATTERN_ONE(name, weight, rounding, in_sweep) +1
enum { PATTERN_COUNT = 0 PATTERNS(PATTERN_ONE) };

/* Fills matrix[source * nranks + destination] with elements. A rank that sends at all sends about
 * `total` elements (those whom the pattern leaves out send nothing); `seed` is for random and moe.
 * The same arguments give the same matrix on every rank.
 *   halving          total / 2 to rank 0, half as much to each next rank, at least 1
 *   uniform          the same to all
 *   skew             in proportion to the distance from source to destination, rounded down to
 *                    multiples of 16 bytes: the default of nccl-tests' alltoallv_perf
 *   unaligned        the same without rounding, so that segments start anywhere
 *   zipf:A           rank k as destination has weight 1 / (k + 1)^A
 *   one-hot          all from rank 0 to the last rank
 *   diagonal         only to oneself
 *   zero             nothing
 *   random           uniformly random, every fourth pair zero
 *   single-sender    rank 0 sends to all, nobody else sends
 *   single-receiver  all send to rank 0 only
 *   moe              tokens that each go to 8 of 64 experts, which are spread over the ranks
 * Returns 0, or -1 with one line in `error`. */
int pattern_matrix(const char *pattern, int nranks, size_t total, size_t element_size,
                   unsigned long long seed, size_t *matrix, char *error, size_t error_size);

/* The names of the patterns that --bench measures when none is given, at most PATTERN_COUNT.
 * Returns their number. */
int pattern_sweep(const char **names);

/* The text of a matrix file, to be freed, or NULL with one line in `error`. A pipe without a writer
 * is waited for some seconds, one with a silent writer until `timeout`, the watchdog's, is near. */
char *pattern_read_file(const char *path, long timeout, char *error, size_t error_size);

/* Fills the matrix from the text of the file `path`: whitespace-separated numbers of bytes, row =
 * source, column = destination, square, at least nranks in size (the rest is ignored), each a
 * multiple of element_size. Takes the text to pieces. Returns 0, or -1 with one line in `error`. */
int pattern_parse(const char *path, char *text, int nranks, size_t element_size, size_t *matrix,
                  char *error, size_t error_size);

/* What follows from a matrix. All in elements. */
size_t matrix_sends(const size_t *matrix, int nranks, int rank);    /* sum of a row */
size_t matrix_receives(const size_t *matrix, int nranks, int rank); /* sum of a column */

/* Where every rank p wants the part of `rank`, when parts are packed in rank order: at what the
 * ranks before it send to p. */
void matrix_places(const size_t *matrix, int nranks, int rank, size_t *places);

/* The most that any rank moves over its link: the maximum over ranks of what it sends to others
 * and what it receives from others. */
size_t matrix_wire(const size_t *matrix, int nranks);

#endif
