/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the reference share. */
#ifndef REFERENCE_PARTS_H
#define REFERENCE_PARTS_H

#include <math.h>
#include <string.h>

#include "parallel.h"
#include "reference.h"

/* ---- reference_select.c: selection ----------------------------------------------------------- */

/* Magnitudes are compared as integers, the 31 bits without the sign: for numbers that is the order
 * of |x|, NaN comes above infinity, and -0 is 0. */
#define MAGNITUDE_INFINITY 0x7f800000u
#define MAGNITUDE_NAN 0x7fffffffu

static inline uint32_t magnitude_bits(float x)
{
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits & 0x7fffffffu;
}

static inline float magnitude_value(uint32_t bits)
{
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* A NaN that comes out of arithmetic has the bits 0x7fffffff, as on the GPU. Else the order of NaNs
 * in an exact selection would depend on the machine. */
static inline float canonical(float x)
{
  return isnan(x) ? magnitude_value(MAGNITUDE_NAN) : x;
}

/* The entries i of an array with magnitude bits in (above, highest], and those with just `above`
 * and i <= tie. */
struct selection {
  uint32_t above, highest;
  int64_t tie;
};

static inline bool selection_has(const struct selection *s, size_t i, float value)
{
  uint32_t bits = magnitude_bits(value);
  return (bits > s->above && bits <= s->highest) || (bits == s->above && (int64_t)i <= s->tie);
}

/* A vector, and the threads that look through it. */
struct vector {
  struct team *team;
  const float *values;
  size_t n;
};

static inline struct vector acc_of(const struct reference *ref, const struct reference_rank *rank)
{
  return (struct vector){ref->team, rank->acc, ref->n};
}

static inline struct vector sums_of(const struct reference *ref)
{
  return (struct vector){ref->team, ref->sums, ref->n};
}

/* Exactly the k largest of n, 0 < k <= n; among equals the lower index first. NaN is the largest.
 */
struct selection select_largest(struct vector vector, size_t k);

/* |x| > (float)threshold: never NaN. Negative: all numbers. NaN: nothing. */
struct selection select_above(double threshold, size_t n);

/* How many entries are selected, ... */
size_t count_selected(struct vector vector, struct selection selection);

/* ... and which, ascending: their indices or, with their values, entries. Where they are more than
 * `room`, their number is all that comes back. */
size_t list_indices(struct vector vector, struct selection selection, uint32_t *to, size_t room);
size_t list_entries(struct vector vector, struct selection selection, struct sparse_pair *to,
                    size_t room);

/* mean + z * deviation, such that of a normal distribution of mean 0 the share `density` has a
 * larger magnitude. NaN for a single value. */
double gaussian_threshold(struct vector vector, double density);

/* ---- reference_exchange.c: between ranks ----------------------------------------------------- */

/* Regions of equal size, the last takes the rest. */
void uniform_regions(struct reference *ref);

/* Regions in which every rank has about as many entries as in any other. */
void balanced_regions(struct reference *ref);

/* Fills region_counts of all ranks. */
void count_by_region(struct reference *ref);

/* sums, which are zero so far, as each rank gets them that adds up what it gathered from ranks 0,
 * 1, ..., P-1, */
void sum_in_rank_order(struct reference *ref);
/* and as the owners of regions get them, who receive from themselves, the rank before, ... */
void sum_by_owner(struct reference *ref);

/* global = entries of sums that are not zero and in the selection (NULL: all). */
void take_sums(struct reference *ref, const struct selection *selection);

/* GTOPK: sums and global from the binary tree of merges. */
void merge_along_tree(struct reference *ref);

/* Words on the wire, added to those of each rank. */
void words_of_dense(struct reference *ref);
void words_of_allgather(struct reference *ref);     /* each rank's offered entries */
void words_of_split(struct reference *ref);         /* offered entries to the owners of regions */
void words_of_owners_gather(struct reference *ref); /* global entries, from the owners, balanced */
void words_of_dense_gather(struct reference *ref);  /* whole regions, from the owners */
void words_of_tree(struct reference *ref);

/* ---- reference_steps.c: the algorithms ------------------------------------------------------- */

void step_dense(struct reference *ref);
void step_topka(struct reference *ref);
void step_topkaopt(struct reference *ref);
void step_gtopk(struct reference *ref);
void step_oktopk(struct reference *ref);
void step_topksa(struct reference *ref);
void step_gaussiank(struct reference *ref);
void step_gaussianksa(struct reference *ref);

#endif
