/* SPDX-License-Identifier: Apache-2.0 */
/* What --result entries does after each step, as an optimizer would: updates weights in place by
 * sparse_allreduce_add. The dense result, for all that looks at one (comparison, digest, --output),
 * is made by the same call, of zeros. */
#ifndef UPDATE_H
#define UPDATE_H

#include <stdbool.h>

#include "reference/reference.h"
#include "sparse_allreduce.h"

struct update {
  size_t count;
  float *weights; /* device memory: zero at first */
  float *result;  /* device memory */
};

/* Frees nothing of what it does not get: NULL is no update. */
struct update *update_create(size_t count);
void update_destroy(struct update *u);
size_t update_bytes(size_t count); /* of device memory */

/* Enqueues weights += -0.1 * result for the step before it on the stream. */
ncclResult_t update_weights(const struct update *u, sparse_allreduce_t handle, cudaStream_t stream);

/* The dense result of the last step, in device memory. Waits for it. */
const float *update_dense(const struct update *u, sparse_allreduce_t handle);

/* Host memory: what the weights have to be after a step, from what they were before. `result`: that
 * of a dense step, whose last bits only NCCL knows. */
void update_expect(float *weights, const struct reference *ref, const float *result);

#endif
