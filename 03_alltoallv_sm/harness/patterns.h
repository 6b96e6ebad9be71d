/* SPDX-License-Identifier: Apache-2.0 */
/* Which rank sends how much to which: --pattern. */
#ifndef PATTERNS_H
#define PATTERNS_H

#include <stddef.h>

#include "launcher.h"

/* What rank `from` of n sends to each rank `to`: a name, how weights become counts, and the weight.
 * A is the number after the colon of --pattern; `random` differs for each pair. To add a pattern,
 * add a line.
 *
 *   FRACTIONS     `total` times the weight, rounded up
 *   SHARES        of `total`, in proportion to the weights, rounded up
 *   SHARES_OF_16  the same, rounded up to multiples of 16 bytes */
#define PATTERNS(P)                                                                           \
  P("halving", FRACTIONS, ldexp(1, -(to + 1)))                                                \
  P("uniform", SHARES, 1)                                                                     \
  P("skew", SHARES_OF_16, (to - from + n) % n) /* as nccl-tests' alltoallv_perf by default */ \
  P("unaligned", SHARES, (to - from + n) % n)  /* the same, but segments start anywhere */    \
  P("zipf:A", SHARES, pow(to + 1, -A))                                                        \
  P("one-hot", SHARES, from == 0 && to == n - 1)                                              \
  P("diagonal", SHARES, to == from) /* only to itself */                                      \
  P("zero", SHARES, 0)                                                                        \
  P("random", SHARES, random % 4 ? random / 4 % 1000 + 1 : 0)                                 \
  P("single-sender", SHARES, from == 0)                                                       \
  P("single-receiver", SHARES, to == 0)                                                       \
  P("moe", SHARES, (to % 4 + 1) * (900 + random % 200)) /* experts that differ in popularity */

/* For --help and messages. */
#define PATTERN_NAME(name, rounding, weight) " " name
#define PATTERN_NAMES PATTERNS(PATTERN_NAME)

/* The most elements that any rank sends or receives, and moves over its link in one direction. */
struct pattern_most {
  size_t buffer, wire;
};

/* The counts of this rank, in elements, if a rank that sends at all sends about `total`. If there
 * is no such pattern, one line in `error`, which is "" before and holds LAUNCHER_TEXT bytes. */
struct pattern_most pattern_counts(const char *pattern, const struct rank *me, size_t total,
                                   size_t element_size, size_t *sendcounts, size_t *recvcounts,
                                   char *error);

#endif
