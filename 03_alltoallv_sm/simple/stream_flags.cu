/* SPDX-License-Identifier: Apache-2.0 */
/* Flags that a stream sets and awaits without a kernel: stream memory operations of the driver. */
#include <cuda.h>
#include <dlfcn.h>

#include "simple.h"

/* One batch, which takes less time than single operations. */
void signal_and_wait(const exchange *x, int which, const size_t *notify, const size_t *await,
                     cudaStream_t stream)
{
  CUstreamBatchMemOpParams operations[3 * SIMPLE_MAX_RANKS] = {};
  const int me = x->me->rank;
  int n = 0;
  /* after the copies before it in the stream, and visible after them: a fence */
  auto set = [&](unsigned *flag, unsigned value) {
    operations[n++].writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_32,
                                  (CUdeviceptr)flag,
                                  {value},
                                  CU_STREAM_WRITE_VALUE_DEFAULT,
                                  0};
  };
  for (int p = 0; p < x->me->nranks; p++)
    if (p != me && notify[p] > 0) set(&x->simple.peer[p]->flags[which][me], 1);
  for (int p = 0; p < x->me->nranks; p++) {
    unsigned *flag = &x->simple.scratch->flags[which][p];
    if (p == me || await[p] == 0) continue;
    operations[n++].waitValue = {
        CU_STREAM_MEM_OP_WAIT_VALUE_32, (CUdeviceptr)flag, {1}, CU_STREAM_WAIT_VALUE_EQ, 0};
    set(flag, 0);
  }
  /* the programs do not link libcuda, which is there where a GPU is */
  static const auto batch = (decltype(&cuStreamBatchMemOp))dlsym(dlopen("libcuda.so.1", RTLD_NOW),
                                                                 "cuStreamBatchMemOp_v2");
  if (n > 0 && (!batch || batch(stream, (unsigned)n, operations, 0) != CUDA_SUCCESS))
    launcher_fail(__FILE__, __LINE__, "cuStreamBatchMemOp", "failed", NULL);
}
