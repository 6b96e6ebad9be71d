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

/* What is always true of a path. No default: the compiler asks for a new one. */
enum { OFFERS_K = 1, KEEPS_WHAT_LOST = 2, SUMS_BY_OWNER = 4 };
static inline int truths(const struct reference *ref)
{
  switch (ref->config.algorithm) {
  case SPARSE_TOPKA:
    return OFFERS_K;
  case SPARSE_TOPKA2:
  case SPARSE_GTOPK:
    return OFFERS_K | KEEPS_WHAT_LOST;
  case SPARSE_OKTOPK:
    return KEEPS_WHAT_LOST | SUMS_BY_OWNER;
  case SPARSE_TOPKSA:
    return OFFERS_K | SUMS_BY_OWNER;
  case SPARSE_GAUSSIANKSA:
    return SUMS_BY_OWNER;
  case SPARSE_TOPKAOPT:
  case SPARSE_GAUSSIANK:
  case SPARSE_GAUSSIANKCONCAT:
  case SPARSE_DENSE:
  case SPARSE_ALGORITHMS:
    break;
  }
  return 0;
}

/* Whether the rank offered exactly k entries, not those above a threshold. */
static inline bool offers_k(const struct reference *ref, const struct reference_rank *rank)
{
  return truths(ref) & OFFERS_K || rank->overflowed;
}

/* Only what arrived leaves the residual; else all that was offered. */
static inline bool keeps_what_lost(const struct reference *ref)
{
  return truths(ref) & KEEPS_WHAT_LOST;
}

static inline bool sums_by_owner(const struct reference *ref)
{
  return truths(ref) & SUMS_BY_OWNER;
}

#endif
