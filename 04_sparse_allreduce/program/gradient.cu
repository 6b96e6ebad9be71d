/* SPDX-License-Identifier: Apache-2.0 */
#include "gradient.h"

/* A grid-stride loop: the grid is fixed, a thread takes every (blocks * threads)-th element. */
static const unsigned BLOCKS = 1024, THREADS = 256;

static __global__ void fill_floats(float *dst, gradient g)
{
  for (size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x; i < g.count;
       i += gridDim.x * (size_t)THREADS)
    dst[i] = gradient_float(&g, i);
}

static __global__ void fill_words(uint16_t *dst, ncclDataType_t type, gradient g)
{
  for (size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x; i < g.count;
       i += gridDim.x * (size_t)THREADS)
    dst[i] = gradient_word(&g, type, i);
}

cudaError_t gradient_fill(void *dst, ncclDataType_t type, size_t count, gradient_kind kind,
                          uint64_t seed, uint64_t step, int rank, int nranks, cudaStream_t stream)
{
  const gradient g = gradient_make(kind, count, seed, step, rank, nranks);
  const size_t blocks = (count + THREADS - 1) / THREADS;
  if (count == 0) return cudaSuccess;
  const unsigned grid = blocks < BLOCKS ? (unsigned)blocks : BLOCKS;
  if (type == ncclFloat)
    fill_floats<<<grid, THREADS, 0, stream>>>((float *)dst, g);
  else
    fill_words<<<grid, THREADS, 0, stream>>>((uint16_t *)dst, type, g);
  return cudaGetLastError();
}
