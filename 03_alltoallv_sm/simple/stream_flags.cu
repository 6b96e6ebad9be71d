/* SPDX-License-Identifier: Apache-2.0 */
/* Flags that a stream sets and awaits without a kernel: stream memory operations of the driver. */
#include <string.h>

#include <cuda.h> /* types only: the programs do not link libcuda */

#include "simple.h"

typedef CUresult (*batch_operation)(CUstream, unsigned, CUstreamBatchMemOpParams *, unsigned);

/* One batch, since every single operation costs a stream about 2 us. */
void stream_flags(const stream_flag *flags, int count, const way *w, cudaStream_t stream)
{
  CUstreamBatchMemOpParams operations[4 * SIMPLE_MAX_RANKS];
  void *batch = NULL;
  int n = 0;
#if CUDART_VERSION >= 12050
  cudaDriverEntryPointQueryResult found;
  CUDACHECK(cudaGetDriverEntryPointByVersion("cuStreamBatchMemOp", &batch, 12000, cudaEnableDefault,
                                             &found));
#else
  CUDACHECK(cudaGetDriverEntryPoint("cuStreamBatchMemOp", &batch, cudaEnableDefault));
#endif
  memset(operations, 0, sizeof operations);
  for (int i = 0; i < count; i++) {
    const CUdeviceptr address = (CUdeviceptr)flags[i].address;
    const bool wait = flags[i].peer == w->x->me->rank;
    if (wait) {
      operations[n].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
      operations[n].waitValue.address = address;
      operations[n].waitValue.value = 1;
      operations[n++].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
    }
    operations[n].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    operations[n].writeValue.address = address;
    operations[n].writeValue.value = wait ? 0 : 1;
    operations[n++].writeValue.flags =
        CU_STREAM_WRITE_VALUE_DEFAULT; /* after the copies: a fence */
  }
  if (!batch || ((batch_operation)batch)(stream, (unsigned)n, operations, 0) != CUDA_SUCCESS)
    launcher_fail(__FILE__, __LINE__, "cuStreamBatchMemOp", "failed", NULL);
}
