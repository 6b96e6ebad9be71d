/* SPDX-License-Identifier: Apache-2.0 */
/* A path can be run by the library, and topkA and oktopk also by the version to read first,
 * simple/. The program creates, runs, verifies and times both in the same way; what differs is
 * here. */
#ifndef VERSION_H
#define VERSION_H

#include "program.h"
#include "simple/simple.h"
#include "update.h"
#include "verification.h"

struct version {
  sparse_allreduce_t handle; /* one of the two is there */
  struct simple *simple;
  struct update *update; /* --result entries; else NULL */
  uint64_t *boundaries;  /* where the library's regions come to the host */
};

/* Whether simple/ has this path. */
bool version_has_simple(sparse_allreduce_algorithm_t algorithm);

/* Device memory that simple/ needs for gradients of `count` elements, without the gradient. */
size_t version_simple_bytes(size_t count, double density, int ranks);

/* The library's: where --exchange onesided cannot run, says so and ends the job with
 * EXIT_CANNOT_RUN. Collective. */
void version_create(struct version *v, const struct job *job, ncclComm_t comm, size_t count,
                    const sparse_allreduce_config_t *config, bool simple);
void version_destroy(struct version *v);

/* What runs, in words: "one-sided", "device counts", "send/recv", "simple". And the result:
 * "dense", "entries". */
const char *version_mode(const struct version *v);
const char *version_result(const struct version *v);

/* A step, as sparse_allreduce_run, and what --result entries does after it. */
void version_run(const struct version *v, const void *gradient, const float **result,
                 cudaStream_t stream);

/* What the last step left, for verification_step(). Waits for it. The residual goes to host memory
 * if that is not NULL and there is a residual. `result`: what version_run() gave; what is left has
 * a dense one in any case. */
struct step_left version_left(const struct version *v, const float *result, float *residual);

/* Whether the last step went well on the device. Returns an exit code, the same on all ranks. */
int version_check_async(const struct version *v, const struct job *job, const char *path,
                        uint64_t step);

/* All that one step hands to the next: a copy of it, and back. free() frees the copy. simple/
 * cannot do that: it gives NULL, and begins again from its first step. */
void *version_save(const struct version *v);
void version_load(const struct version *v, const void *state);

/* What a training job does to go on after a break: saves the state, makes a new handle from it in
 * the place of the old one. Not for simple/. Collective. */
void version_restart(struct version *v, const struct job *job, ncclComm_t comm,
                     const sparse_allreduce_config_t *config);

#endif
