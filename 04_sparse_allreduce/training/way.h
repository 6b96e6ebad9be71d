/* SPDX-License-Identifier: Apache-2.0 */
/* A way to update weights: by the entries of the result, or by the result as a vector of all
 * elements. A training job has one of them. This program has both, side by side, and compares the
 * weights that they make. */
#ifndef WAY_H
#define WAY_H

#include "training.h"

struct way {
  sparse_allreduce_t handle;
  float *residual; /* device memory, of paths that forget it, else NULL */
  float *weights;  /* device memory, the caller's */
};

/* The weights that this seed begins with, and a handle without a past. Collective. */
void way_begin(struct way *way, ncclComm_t comm, const struct path *path,
               const sparse_allreduce_config_t *config, long seed);
void way_end(struct way *way, const struct rank *me);

/* Before a step: for paths without residual, what was not sent is lost. Enqueues. */
void way_forget(const struct way *way, cudaStream_t stream);

/* Whether the weights of both ways, on all ranks, are the same to the last bit. Returns an exit
 * code, after a line on stderr. Waits for the device. Collective. */
int ways_agree(const struct rank *me, const struct path *path, const struct epoch *epoch,
               const struct way *entries, const struct way *dense);

#endif
