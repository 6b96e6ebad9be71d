/* SPDX-License-Identifier: Apache-2.0 */
/* Who sends how much to whom: the count matrices of --pattern and --matrix. */
#ifndef PATTERNS_H
#define PATTERNS_H

#include <stddef.h>

/* For --help and messages. To add a pattern, write its name here, its weight function in
 * patterns.c, and its line in the table there. */
#define PATTERN_NAMES                                                                 \
  " halving uniform skew unaligned zipf:A one-hot diagonal zero random single-sender" \
  " single-receiver moe"

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

/* Fills the matrix from a file: whitespace-separated numbers of bytes, row = source, column =
 * destination, square, at least nranks in size (the rest is ignored), each a multiple of
 * element_size. Returns 0, or -1 with one line in `error`. */
int pattern_read(const char *path, int nranks, size_t element_size, size_t *matrix, char *error,
                 size_t error_size);

/* The most that any rank sends, receives, and moves over its link: the maximum over ranks of what
 * it sends to others and what it receives from others. In elements. */
struct matrix_most {
  size_t sends, receives, wire;
};
struct matrix_most matrix_most(const size_t *matrix, int nranks);

#endif
