/* SPDX-License-Identifier: Apache-2.0 */
/* For --beside: a kernel that only computes. Its many blocks come and go, as those of a model do.
 */
#include "check.h"

static const unsigned THREADS = 256;

static __global__ void compute(uint32_t *numbers, int rounds)
{
  uint32_t *x = &numbers[blockIdx.x * (size_t)THREADS + threadIdx.x], y = *x;
  for (int i = 0; i < rounds; i++) y = y >> 1 | 1u << 31;
  *x = y;
}

extern "C" void compute_launch(uint32_t *numbers, size_t count, int rounds, cudaStream_t stream)
{
  compute<<<(unsigned)(count / THREADS), THREADS, 0, stream>>>(numbers, rounds);
  CUDACHECK(cudaGetLastError());
}
