/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the reference share. */
#ifndef REFERENCE_PARTS_H
#define REFERENCE_PARTS_H

#include "reference.h"

/* ---- reference_select.c: selection ----------------------------------------------------------- */

/* Magnitudes are compared as integers, the 31 bits without the sign: for numbers that is the order
 * of |x|, NaN comes above infinity, and -0 is 0. */
#define MAGNITUDE_INFINITY 0x7f800000u
#define MAGNITUDE_NAN 0x7fffffffu
uint32_t magnitude_bits(float x);
float magnitude_value(uint32_t bits);

/* A NaN that comes out of arithmetic has the bits 0x7fffffff, as on the GPU. Else the order of NaNs
 * in an exact selection would depend on the machine. */
float canonical(float x);

/* The entries i of an array with magnitude bits in (above, highest], and those with just `above`
 * and i <= tie. */
struct selection {
  uint32_t above, highest;
  int64_t tie;
};
bool selection_has(const struct selection *selection, size_t i, float value);

/* Exactly the k largest of n, k <= n; among equals the lower index first. NaN is the largest. */
struct selection select_largest(const float *values, size_t n, size_t k);

/* |x| > (float)threshold: never NaN. Negative: all numbers. NaN: nothing. */
struct selection select_above(double threshold, size_t n);
size_t count_above(const float *values, size_t n, double threshold);

/* mean + z * deviation, such that of a normal distribution of mean 0 the share `density` has a
 * larger magnitude. NaN for a single value. */
double gaussian_threshold(const float *values, size_t n, double density);

/* ---- reference_exchange.c: between ranks ----------------------------------------------------- */

/* Regions of equal size, the last takes the rest. */
void uniform_regions(struct reference *ref);

/* Regions in which every rank has about as many entries as in any other. */
void balanced_regions(struct reference *ref);

/* Fills region_counts of all ranks. */
void count_by_region(struct reference *ref);

/* sums, as each rank gets them that adds up what it gathered from ranks 0, 1, ..., P-1, */
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

void step_dense(struct reference *ref, const float *const gradients[]);
void step_topka(struct reference *ref);
void step_topkaopt(struct reference *ref);
void step_gtopk(struct reference *ref);
void step_oktopk(struct reference *ref);
void step_topksa(struct reference *ref);
void step_gaussiank(struct reference *ref, const double *gaussian_thresholds);
void step_gaussianksa(struct reference *ref, const double *gaussian_thresholds);

#endif
