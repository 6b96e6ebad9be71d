/* SPDX-License-Identifier: Apache-2.0 */
/* The result as entries: where they are, and adding them to a vector of the caller. */
#include "sparse_internal.h"

ncclResult_t sparse_allreduce_sparse_result(sparse_allreduce_t handle,
                                            const struct sparse_pair **pairs,
                                            const uint64_t **count)
{
  if (handle == NULL) return sparse_fail(ncclInvalidArgument, "NULL handle");
  const bool entries = handle->holds == SPARSE_HOLDS_ENTRIES;
  if (pairs != NULL) *pairs = entries ? handle->m.gathered : NULL;
  if (count != NULL) *count = entries ? &handle->m.state->result_count : NULL;
  return ncclSuccess;
}

static ncclResult_t add(const struct sparse_allreduce_handle *h, enum sparse_holds holds,
                        float scale, float *vector, cudaStream_t stream)
{
  switch (holds) {
  case SPARSE_HOLDS_ENTRIES:
    return ops_add_entries(&h->m, sparse_result(&h->m), scale, vector, stream);
  case SPARSE_HOLDS_DENSE:
    return ops_add_dense(&h->m, scale, vector, stream);
  default:
    return sparse_fail(ncclInvalidUsage, "there was no step yet whose result could be added");
  }
}

ncclResult_t sparse_allreduce_add(sparse_allreduce_t handle, float scale, float *vector,
                                  cudaStream_t stream)
{
  struct sparse_allreduce_handle *h = handle;
  if (h == NULL || vector == NULL) return sparse_fail(ncclInvalidArgument, "NULL argument");
  enum cudaStreamCaptureStatus status;
  SPARSE_CUDA(cudaStreamIsCapturing(stream, &status));
  const bool now = status == cudaStreamCaptureStatusNone;
  SPARSE_TRY(add(h, now ? h->holds : h->latest, scale, vector, stream));
  /* whoever waits for the step, to free what it left, waits for this, too */
  if (now)
    SPARSE_CUDA(cudaEventRecord(h->done, stream));
  else
    h->captured = true;
  return ncclSuccess;
}
