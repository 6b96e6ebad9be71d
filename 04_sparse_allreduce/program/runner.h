/* SPDX-License-Identifier: Apache-2.0 */
/* A path runs by the library, or as it stands in simple/. The program creates, runs, verifies and
 * times both in the same way; what differs is here.
 *
 * With --result entries weights are updated in place after each step, as an optimizer would do by
 * sparse_allreduce_add. A dense result, for all that looks at one, is made by the same call, of
 * zeros. */
#ifndef RUNNER_H
#define RUNNER_H

#include "program.h"

struct runner {
  const struct rank *me;
  size_t count;
  sparse_allreduce_t handle; /* one of the two is there */
  struct simple *simple;
  float *weights, *dense; /* --result entries: in device memory; else NULL */
};

/* What a step left on this rank. */
struct step_outcome {
  sparse_allreduce_statistics_t statistics;
  const float *result;               /* dense, in device memory */
  const struct sparse_pair *entries; /* of the result, before the division: in device memory, */
  uint64_t count;                    /* so many. NULL: there is no list of them */
  const uint64_t *boundaries;        /* of regions: ranks + 1 */
};

/* config->algorithm is the path. Where --exchange onesided cannot run, it says so and ends the job
 * with EXIT_CANNOT_RUN. Collective. */
void runner_create(struct runner *r, const struct rank *me, ncclComm_t comm, size_t count,
                   const sparse_allreduce_config_t *config, bool simple);
void runner_destroy(struct runner *r);

/* What runs, in words: "one-sided", "device counts", "send/recv", "simple". */
const char *runner_mode(const struct runner *r);

/* Why it is send/recv, if nobody asked for that; "" else. */
const char *runner_reason(const struct runner *r);

/* A step, as sparse_allreduce_run; then weights += -0.1 * result, if there are any. */
ncclResult_t runner_step(const struct runner *r, const void *gradient, const float **result,
                         cudaStream_t stream);
float runner_updated(float weight, float result); /* what has to become of a weight */

/* What the last step left. Waits for it. `result`: what runner_step() gave. */
struct step_outcome runner_outcome(const struct runner *r, const float *result);

/* The residual to host memory. Not for dense. */
void runner_residual(const struct runner *r, float *host);

/* Whether the last step went well on the device. Returns an exit code, the same on all ranks. */
int runner_check(const struct runner *r, const char *path, uint64_t step);

/* All that one step hands to the next: a copy of it, and back. free() frees the copy. simple/
 * cannot do that: it gives NULL, and begins again from its first step. */
void *runner_save(const struct runner *r);
void runner_load(const struct runner *r, const void *state);

/* What a training job does to go on after a break: saves the state, makes a new handle from it in
 * the place of the old one. Not for simple/. Collective. */
void runner_restart(struct runner *r, ncclComm_t comm, const sparse_allreduce_config_t *config);

#endif
