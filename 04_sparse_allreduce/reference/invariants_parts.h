/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the invariants share. */
#ifndef INVARIANTS_PARTS_H
#define INVARIANTS_PARTS_H

#include <math.h>
#include <string.h>

#include "invariants.h"
#include "parallel.h"

struct invariants {
  double *local_thresholds; /* [nranks] */
  double global_threshold;
  uint64_t *boundaries; /* [nranks + 1] */
  size_t *next; /* [MOST_RANGES * nranks] in a walk over a range of elements, the next entry of each
                   offered list */
};

/* The lines on what was violated. */
struct report {
  const struct reference *ref;
  char *text;
  size_t size;
  unsigned told; /* bit i: there is a line on invariant i */
};
__attribute__((format(printf, 3, 4))) void violated(struct report *report, int invariant,
                                                    const char *format, ...);

/* I1 to I3 */
void check_elements(const struct invariants *inv, struct report *report);

static inline uint32_t bits_of(float x)
{
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

/* The bits of |x|. */
static inline uint32_t magnitude(float x)
{
  return bits_of(x) & 0x7fffffffu;
}
#define INFINITE 0x7f800000u
#define NOTHING_ABOVE 0x7fffffffu

static inline double value_of(uint32_t bits)
{
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static inline bool same(double a, double b)
{
  return a == b || (isnan(a) && isnan(b));
}

static inline bool is(const struct reference *ref, sparse_allreduce_algorithm_t algorithm)
{
  return ref->config.algorithm == algorithm;
}

/* Whether the rank offered exactly k entries, not those above a threshold. */
static inline bool offers_k(const struct reference *ref, const struct reference_rank *rank)
{
  return is(ref, SPARSE_TOPKA) || is(ref, SPARSE_TOPKA2) || is(ref, SPARSE_GTOPK) ||
         is(ref, SPARSE_TOPKSA) || rank->overflowed;
}

#endif
