/* SPDX-License-Identifier: Apache-2.0 */
/* The threads of a grid take elements, or entries of a list, in turn. */
#ifndef OPS_ENTRIES_CUH
#define OPS_ENTRIES_CUH

#include "device/device.cuh"

namespace
{

enum {
  THREADS = 256,
  BLOCKS = 8, /* per multiprocessor */
};

/* f(i) for all i below `count`. */
template <int UNROLL = 4, typename F>
__device__ inline void for_each(uint64_t count, F f)
{
  const uint64_t threads = (uint64_t)gridDim.x * THREADS;
#pragma unroll UNROLL
  for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += threads) f(i);
}

__device__ inline uint2 entry_at(const sparse_pair *pairs, uint64_t i, uint64_t count)
{
  return i < count ? *(const uint2 *)&pairs[i] : make_uint2(SPARSE_NO_INDEX, 0);
}

} // namespace

#endif
