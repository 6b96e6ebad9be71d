/* SPDX-License-Identifier: Apache-2.0 */
/* After a step, everything that the device holds is compared with the reference, bit for bit, on
 * every rank. The reference is simple/ on the host: each rank computes its own side, and gets from
 * the launcher what other ranks send. Exceptions: sums of dense steps, whose order is NCCL's, have
 * an error bound; thresholds from mean and deviation may differ by rounding, and then the reference
 * goes on with the device's. */
#ifndef VERIFICATION_H
#define VERIFICATION_H

#include "program/runner.h"

struct verification {
  const struct rank *me;
  const char *path;
  ncclDataType_t type;  /* of gradients */
  struct simple *ref;   /* this rank's side; NULL: nothing is compared */
  float *host;          /* [n] what comes from the device */
  float *weights;       /* [n] of --result entries: as they have to be; else NULL */
  float *mean;          /* [n] mean of all ranks' acc; NULL where xi is not asked for */
  double gradient_norm; /* of the mean of this step's gradients */
  uint64_t compared;    /* steps */
  double xi;            /* sum over the steps that the paper would record, as far as this rank */
  uint64_t xi_steps;    /* computed it: the ranks take turns */
};

/* With compares == false nothing will be compared. Returns an exit code: EXIT_USAGE, after one
 * line, if the host's memory does not suffice. verification_free() in any case. Collective. */
int verification_init(struct verification *v, const struct rank *me,
                      const sparse_allreduce_config_t *config, size_t count, bool compares,
                      bool measures_xi);
void verification_free(struct verification *v);

/* The reference takes its step, after the device has taken it. Collective. */
void verification_advance(struct verification *v, const struct runner *r, const void *gradient,
                          const sparse_allreduce_statistics_t *statistics);

/* Compares what the step left: `left`, and of it `result` (device or host memory), the residual and
 * the weights. Returns EXIT_VERIFIED, or EXIT_WRONG_DATA after one line on stderr that says what
 * differed first; the same on all ranks. Collective. */
int verification_compare(struct verification *v, const struct runner *r,
                         const struct step_outcome *left, const void *gradient);

/* Both, of the step that the runner took last. `result`: what it gave. */
static inline int verification_step(struct verification *v, const struct runner *r,
                                    const float *result, const void *gradient)
{
  const struct step_outcome left = runner_outcome(r, result);
  verification_advance(v, r, gradient, &left.statistics);
  return verification_compare(v, r, &left, gradient);
}

/* Whether this copy of the residual, which is about to leave the program, is right. */
bool verification_residual(const struct verification *v, const float *copy);

/* A sum over all ranks, or with divisor = ranks its average, of gradients in device memory: within
 * the error that any order of additions may have. `result` may be in either memory, and of type
 * `result_type`. Says what is wrong. Collective. */
int verify_sum(const struct rank *me, const char *what, const void *gradient, ncclDataType_t type,
               const void *result, ncclDataType_t result_type, size_t count, int divisor);

#endif
