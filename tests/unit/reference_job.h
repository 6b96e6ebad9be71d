/* SPDX-License-Identifier: Apache-2.0 */
/* A training job as the tests of the reference (simple/ on the host) see it: all ranks in one
 * process, their gradients, a step, and that nothing was lost. */
#ifndef REFERENCE_JOB_H
#define REFERENCE_JOB_H

#include <pthread.h>
#include <stdbool.h>

#include "simple/simple.h"

enum { JOB_RANKS = 8 };

struct job {
  struct simple *ranks[JOB_RANKS];
  size_t n;
  int nranks;
  float **gradients;    /* [nranks][n], zero at first: the test fills them before a step */
  double *outstanding;  /* [n] sum over ranks and steps of gradients - sums in results: should be in
                           the residuals */
  const char *describe; /* for messages */
  pthread_barrier_t barrier; /* how the threads of a step meet */
  const void *shared[JOB_RANKS];
};

/* The constants of the library, which test_published compares with those of the published code. */
sparse_allreduce_config_t job_config(sparse_allreduce_algorithm_t algorithm, sparse_preset_t preset,
                                     double density);

void job_open(struct job *job, const sparse_allreduce_config_t *config, size_t n, int nranks);
void job_close(struct job *job);

void job_step(struct job *job);

/* For gradients whose sums are exact: nothing was lost over all steps so far, to the bit. (gtopk as
 * published does lose something.) */
void job_check_nothing_lost(const struct job *job);

/* ---- numbers ---- */

uint64_t job_random(uint64_t *state);                           /* 64 bits */
uint64_t job_below(uint64_t *state, uint64_t limit);            /* 0 ... limit - 1 */
double job_uniform(uint64_t *state);                            /* in [0, 1) */
double job_normal(uint64_t *state);                             /* standard normal */
bool job_same_bits(const void *a, const void *b, size_t count); /* of floats */

#endif
