/* SPDX-License-Identifier: Apache-2.0 */
/* dense: the sum of everything, which the sparse paths have to beat, and their warm-up steps.
 * 2 n (P-1) / P words per rank. */
#include "handle.h"

ncclResult_t step_dense(struct sparse_allreduce_handle *h, const void *gradient,
                        cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  if (m->config.gradient_type != ncclFloat) {
    SPARSE_TRY(ops_convert(m, gradient, stream));
    gradient = m->dense;
  }
  /* MPI: Allreduce(gradient, result, SUM) -> NCCL: ncclAllReduce */
  SPARSE_NCCL(ncclAllReduce(gradient, m->dense, m->n, ncclFloat, ncclSum, h->comm, stream));
  return ops_average(m, stream);
}
