/* SPDX-License-Identifier: Apache-2.0 */
/* For --beside: a kernel that only computes. Its many blocks come and go, as those of a model do.
 */
#include "check.h"

static const unsigned THREADS = 256;

static __global__ void compute(float *numbers, int rounds)
{
  float *x = &numbers[blockIdx.x * (size_t)THREADS + threadIdx.x], y = *x;
  for (int i = 0; i < rounds; i++) y = y * 0.5f + 1;
  *x = y;
}

extern "C" void compute_launch(float *numbers, size_t count, int rounds, cudaStream_t stream)
{
  compute<<<(unsigned)(count / THREADS), THREADS, 0, stream>>>(numbers, rounds);
  CUDACHECK(cudaGetLastError());
}
