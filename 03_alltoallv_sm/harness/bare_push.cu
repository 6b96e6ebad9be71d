/* SPDX-License-Identifier: Apache-2.0 */
/* For --bench: the stores of simple/barrier.cu without the barriers. */
#include "simple/stores.cuh"

static __global__ void __launch_bounds__(THREADS) bare_push(const __grid_constant__ push_args a)
{
  push(a);
}

extern "C" void bare_push_call(const exchange *x, const char *send, char *recv, cudaStream_t stream)
{
  bare_push<<<x->simple.blocks, x->simple.threads, 0, stream>>>(make_push_args(x, send, recv));
  CUDACHECK(cudaGetLastError());
}
