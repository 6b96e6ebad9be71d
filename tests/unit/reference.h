/* SPDX-License-Identifier: Apache-2.0 */
/* The reference, simple/ on the host, as tests use it: all ranks in one process, a thread for each,
 * or this rank's side of a job that the launcher started. */
#ifndef REFERENCE_H
#define REFERENCE_H

#include <pthread.h>
#include <stdbool.h>

#include "simple/simple.h"

struct rank;

/* What one rank has after a step. */
struct reference_rank {
  float *residual;         /* [n] */
  size_t noffered;         /* entries that it offered: simple->offered */
  uint64_t *region_counts; /* [nranks] how many of them lie in each region */
  double local_threshold, gaussian_threshold;
  uint32_t selected_above;
  int64_t selected_tie;
  bool overflowed;
  uint64_t words_sent, words_received;
  struct simple *simple; /* NULL: another process has it */
};

struct reference {
  const struct rank *me; /* NULL: all ranks are here */
  /* What a test may change before a step. So it may a rank's residual and local_threshold. */
  sparse_allreduce_config_t config;
  struct sparse_constants constants;
  uint64_t step;
  uint64_t *boundaries; /* [nranks + 1] */
  double global_threshold;

  size_t n, k, t, capacity;
  int nranks;
  struct reference_rank ranks[16];
  /* Of the last step. */
  const float *result, *sums;
  const struct sparse_pair *global; /* the result's entries before the division */
  size_t nglobal;
  bool dense, fell_back, exact_local, exact_global, repartitioned;
  bool nonfinite; /* some rank's gradient was not finite */
  /* how threads meet */
  pthread_barrier_t barrier;
  const void *shared[16];
};

/* me == NULL: all ranks; else collective, and only ranks[me->rank] is there. */
struct reference *reference_create(const sparse_allreduce_config_t *config, size_t n, int nranks,
                                   const struct rank *me);
void reference_destroy(struct reference *ref);

/* From the next step on. */
void reference_set_density(struct reference *ref, double density);

/* gaussian_thresholds: NULL, or for each rank the mean + z * deviation to use. */
void reference_step(struct reference *ref, const float *const gradients[],
                    const double *gaussian_thresholds);

#endif
