/* SPDX-License-Identifier: Apache-2.0 */
/* Flags for the copy engines: a stream writes and awaits words in the scratch memory, so that a
 * plan's copies need no kernel. */
#include <string.h>

#include <cuda.h> /* types only */

#include "alltoallv_errors.h"
#include "alltoallv_lsa.h"

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
#include "lsa/alltoallv_lsa_state.cuh"

/* A function of the driver, through the runtime: the programs do not link libcuda. */
static void *driver_function(const char *name)
{
  void *function = NULL;
#if CUDART_VERSION >= 12050
  cudaDriverEntryPointQueryResult found;
  if (cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found) !=
          cudaSuccess ||
      found != cudaDriverEntryPointSuccess)
    return NULL;
#else
  if (cudaGetDriverEntryPoint(name, &function, cudaEnableDefault) != cudaSuccess) return NULL;
#endif
  return function;
}

typedef CUresult (*batch_operation)(CUstream, unsigned int, CUstreamBatchMemOpParams *,
                                    unsigned int);

/* One batch, since every single operation costs a stream about 2 us. */
ncclResult_t alltoallv_lsa_flags(struct alltoallv_lsa *lsa, enum alltoallv_flag flag,
                                 const bool *set, const bool *wait, uint32_t value,
                                 cudaStream_t stream)
{
  CUstreamBatchMemOpParams operations[2 * ALLTOALLV_MAX_LSA_RANKS];
  unsigned int count = 0;
  size_t at = flag == ALLTOALLV_FLAG_READY ? lsa->scratch.ready_at : lsa->scratch.arrived_at;
  batch_operation batch = (batch_operation)driver_function("cuStreamBatchMemOp");
  if (batch == NULL) return alltoallv_fail(ncclSystemError, "the driver has no cuStreamBatchMemOp");
  memset(operations, 0, sizeof(operations));
  for (int p = 0; p < lsa->n; p++) {
    if (!set[p]) continue;
    CUstreamBatchMemOpParams *o = &operations[count++];
    o->writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    o->writeValue.address = (CUdeviceptr)(lsa->peer[p] + at + lsa->rank * sizeof(uint32_t));
    o->writeValue.value = value;
    o->writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT; /* with a fence: after the copies */
  }
  for (int p = 0; p < lsa->n; p++) {
    if (!wait[p]) continue;
    CUstreamBatchMemOpParams *o = &operations[count++];
    o->waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    o->waitValue.address = (CUdeviceptr)(lsa->peer[lsa->rank] + at + p * sizeof(uint32_t));
    o->waitValue.value = value;
    o->waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
  }
  if (count > 0 && batch(stream, count, operations, 0) != CUDA_SUCCESS)
    return alltoallv_fail(ncclUnhandledCudaError, "cuStreamBatchMemOp failed");
  return ncclSuccess;
}

#endif
