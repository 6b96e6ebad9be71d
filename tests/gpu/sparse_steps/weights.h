/* SPDX-License-Identifier: Apache-2.0 */
/* Weights that steps update by sparse_allreduce_add, and what they have to be. */
#ifndef WEIGHTS_H
#define WEIGHTS_H

#include <stdbool.h>

#include "tests/unit/reference.h"
#include "sparse_allreduce.h"

struct weights {
  size_t n;
  float *device, *expected;
};

/* Some are 0, some are -0, which must stay so where nothing is added. */
void weights_init(struct weights *w, size_t n);
void weights_free(struct weights *w);

/* Enqueues the update. */
void weights_add(const struct weights *w, sparse_allreduce_t handle, cudaStream_t stream);

/* The same for what is expected, after the reference's step. `dense`: the result of that step in
 * device memory if it was dense: only NCCL knows its last bits. */
void weights_expect(struct weights *w, const struct reference *ref, const float *dense);

/* A dense step has been run, and the next one, which is not dense, is captured. Is it the dense
 * result that is added then? Collective. */
bool weights_beside_capture(ncclComm_t comm, cudaStream_t stream);

#endif
