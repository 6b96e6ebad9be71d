/* SPDX-License-Identifier: Apache-2.0 */
/* Saving and loading all that one step hands to the next. */
#include "control_decide.h"
#include "sparse_internal.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* What a saved state begins with; the kept part of sparse_state and the residual follow. */
struct saved {
  char magic[8];
  uint64_t fingerprint, rank, nranks, step;
};
static const char MAGIC[8] = "SPARSE1";

static size_t kept_bytes(void)
{
  return offsetof(struct sparse_state, levels);
}

static struct saved saved_header(const struct sparse_allreduce_handle *h)
{
  struct saved saved = {.fingerprint = sparse_fingerprint(h->m.n, &h->m.config),
                        .rank = (uint64_t)h->m.rank,
                        .nranks = (uint64_t)h->m.nranks,
                        .step = h->step};
  memcpy(saved.magic, MAGIC, sizeof(MAGIC));
  return saved;
}

size_t sparse_allreduce_state_bytes(sparse_allreduce_t handle)
{
  if (handle == NULL) return 0;
  const size_t residual = handle->m.residual != NULL ? handle->m.n * sizeof(float) : 0;
  return sizeof(struct saved) + kept_bytes() + residual;
}

/* Nothing changes on the device: what is pending there becomes zero in the copy. */
ncclResult_t sparse_allreduce_copy_residual(sparse_allreduce_t handle, float *to)
{
  if (handle == NULL || to == NULL) return sparse_fail(ncclInvalidArgument, "NULL argument");
  const struct sparse_memory *m = &handle->m;
  const struct sparse_state *s = handle->state;
  if (m->residual == NULL)
    return sparse_fail(ncclInvalidUsage, "a dense allreduce has no residual");
  SPARSE_TRY(sparse_read_state(handle));
  SPARSE_CUDA(cudaMemcpy(to, m->residual, m->n * sizeof(float), cudaMemcpyDeviceToHost));
  for (size_t i = 0; s->pending == SPARSE_PENDING_ALL && i < m->n; i++)
    sparse_settle_element(s, to, (uint32_t)i);
  if (s->pending != SPARSE_PENDING_RESULT || s->result_count == 0) return ncclSuccess;
  const size_t bytes = s->result_count * sizeof(struct sparse_pair);
  struct sparse_pair *result = malloc(bytes);
  if (result == NULL) return sparse_fail(ncclSystemError, "out of memory");
  const cudaError_t error = cudaMemcpy(result, m->gathered, bytes, cudaMemcpyDeviceToHost);
  for (uint64_t i = 0; error == cudaSuccess && i < s->result_count; i++)
    if (result[i].index != SPARSE_NO_INDEX) sparse_settle_element(s, to, result[i].index);
  free(result);
  SPARSE_CUDA(error);
  return ncclSuccess;
}

ncclResult_t sparse_allreduce_save(sparse_allreduce_t handle, void *state)
{
  if (handle == NULL || state == NULL) return sparse_fail(ncclInvalidArgument, "NULL argument");
  char *to = state;
  const struct saved saved = saved_header(handle);
  SPARSE_TRY(sparse_read_state(handle));
  memcpy(to, &saved, sizeof(saved));
  memcpy(to += sizeof(saved), handle->state, kept_bytes());
  if (handle->m.residual == NULL) return ncclSuccess;
  return sparse_allreduce_copy_residual(handle, (void *)(to + kept_bytes()));
}

ncclResult_t sparse_allreduce_load(sparse_allreduce_t handle, const void *state)
{
  if (handle == NULL || state == NULL) return sparse_fail(ncclInvalidArgument, "NULL argument");
  const char *from = state;
  struct saved saved, own = saved_header(handle);
  memcpy(&saved, from, sizeof(saved));
  own.step = saved.step;
  if (memcmp(&saved, &own, sizeof(own)) != 0)
    return sparse_fail(ncclInvalidArgument,
                       "not a state of a handle with this count, configuration, rank and ranks");
  from += sizeof(saved);
  SPARSE_TRY(sparse_wait(handle));
  SPARSE_CUDA(cudaMemcpy(handle->m.state, from, kept_bytes(), cudaMemcpyHostToDevice));
  if (handle->m.residual != NULL)
    SPARSE_CUDA(cudaMemcpy(handle->m.residual, from + kept_bytes(), handle->m.n * sizeof(float),
                           cudaMemcpyHostToDevice));
  SPARSE_CUDA(cudaMemset(&handle->m.state->pending, SPARSE_PENDING_NOTHING, sizeof(uint32_t)));
  SPARSE_CUDA(cudaDeviceSynchronize()); /* the caller's stream may not wait for the default one */
  handle->step = saved.step;
  return ncclSuccess;
}
