/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that touch an entry at a time: threads take entries of a list in turn. */
#ifndef OPS_ENTRIES_CUH
#define OPS_ENTRIES_CUH

#include "device/device.cuh"

namespace
{

enum {
  THREADS = 256,
  BLOCKS = 8, /* per multiprocessor */
  AHEAD = 4,  /* entries of a thread that are on their way at the same time */
};

__device__ inline uint2 entry_at(const sparse_pair *pairs, uint64_t i, uint64_t count)
{
  return i < count ? *(const uint2 *)&pairs[i] : make_uint2(SPARSE_NO_INDEX, 0);
}

/* f(entry) for the first `count` entries that have an index. */
template <typename F>
__device__ inline void for_each_entry(const sparse_pair *pairs, uint64_t count, F f)
{
  const uint64_t threads = (uint64_t)gridDim.x * THREADS;
  for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += threads * AHEAD) {
    uint2 raw[AHEAD];
#pragma unroll
    for (int a = 0; a < AHEAD; a++) raw[a] = entry_at(pairs, i + a * threads, count);
#pragma unroll
    for (int a = 0; a < AHEAD; a++)
      if (raw[a].x != SPARSE_NO_INDEX) f(sparse_pair{raw[a].x, __uint_as_float(raw[a].y)});
  }
}

/* For lists of about k entries. */
inline unsigned list_blocks(const struct sparse_memory *m)
{
  return ops_blocks(2 * m->k, THREADS * 2, BLOCKS);
}

} // namespace

#endif
