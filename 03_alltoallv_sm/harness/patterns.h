/* SPDX-License-Identifier: Apache-2.0 */
/* Which rank sends how much to which: the count matrices of --pattern and --matrix. */
#ifndef PATTERNS_H
#define PATTERNS_H

#include <stddef.h>

/* What rank `from` of n sends to each rank `to`: a name, how weights become counts, and the weight.
 * A is the number after the colon of --pattern. To add a pattern, add a line.
 *
 *   FRACTIONS     `total` times the weight, rounded down, at least 1
 *   SHARES        of `total`, in proportion to the weights
 *   SHARES_OF_16  the same, rounded down to multiples of 16 bytes */
#define PATTERNS(P)                                                                           \
  P("halving", FRACTIONS, ldexp(1, -(to + 1)))                                                \
  P("uniform", SHARES, 1)                                                                     \
  P("skew", SHARES_OF_16, (to - from + n) % n) /* as nccl-tests' alltoallv_perf by default */ \
  P("unaligned", SHARES, (to - from + n) % n)  /* the same, but segments start anywhere */    \
  P("zipf:A", SHARES, pow(to + 1, -A))                                                        \
  P("one-hot", SHARES, from == 0 && to == n - 1)                                              \
  P("diagonal", SHARES, to == from) /* only to itself */                                      \
  P("zero", SHARES, 0)                                                                        \
  P("random", SHARES, hash_next(&random) % 4 ? (double)(hash_next(&random) % 1000 + 1) : 0)   \
  P("single-sender", SHARES, from == 0)                                                       \
  P("single-receiver", SHARES, to == 0)                                                       \
  P("moe", SHARES, tokens[to]) /* each goes to 8 of 64 experts, which are spread over ranks */

/* For --help and messages. */
#define PATTERN_NAME(name, rounding, weight) " " name
#define PATTERN_NAMES PATTERNS(PATTERN_NAME)

/* Fill matrix[source * nranks + destination] with elements, by a pattern in which a rank that sends
 * at all sends about `total`, or from a file: whitespace-separated numbers of bytes, row = source,
 * square, at least nranks in size (the rest is ignored), multiples of element_size. If something is
 * wrong, one line in `error`, which is "" before and holds LAUNCHER_TEXT bytes. */
void pattern_matrix(const char *pattern, int nranks, size_t total, size_t element_size,
                    size_t *matrix, char *error);
void pattern_read(const char *path, int nranks, size_t element_size, size_t *matrix, char *error);

/* The most elements that any rank sends, receives, and moves over its link in one direction. */
struct matrix_most {
  size_t sends, receives, wire;
};
struct matrix_most matrix_most(const size_t *matrix, int nranks);

#endif
