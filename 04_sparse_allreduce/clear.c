/* SPDX-License-Identifier: Apache-2.0 */
/* The dense result is zero but for the entries of the last step. Undoing those is cheaper than a
 * pass over the vector; it is random access, which has room beside what comes behind the local
 * pass: decisions and the exchange between the ranks, whose time goes into round trips. */
#include "sparse_internal.h"

static ncclResult_t clear(struct sparse_allreduce_handle *h, cudaStream_t stream)
{
  /* A captured step may follow any other: there it is up to the device what there is to undo. */
  if (h->has_result || (h->result_clean && h->capturing)) return ops_undo(&h->m, stream);
  if (h->result_clean) return ncclSuccess;
  SPARSE_CUDA(cudaMemsetAsync(h->m.dense, 0, h->m.n * sizeof(float), stream));
  return ncclSuccess;
}

ncclResult_t sparse_clear_begin(struct sparse_allreduce_handle *h, cudaStream_t stream)
{
  SPARSE_CUDA(cudaEventRecord(h->fork, stream));
  SPARSE_CUDA(cudaStreamWaitEvent(h->beside, h->fork, 0));
  SPARSE_TRY(clear(h, h->beside));
  SPARSE_CUDA(cudaEventRecord(h->join, h->beside));
  return ncclSuccess;
}

ncclResult_t sparse_clear_end(struct sparse_allreduce_handle *h, cudaStream_t stream)
{
  SPARSE_CUDA(cudaStreamWaitEvent(stream, h->join, 0));
  return ncclSuccess;
}
