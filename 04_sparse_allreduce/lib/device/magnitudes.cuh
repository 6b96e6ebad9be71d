/* SPDX-License-Identifier: Apache-2.0 */
/* What selections read: a list or all of the residual, as a source says; and histograms of
 * magnitudes in shared memory. For blocks of any size. */
#ifndef OPS_MAGNITUDES_CUH
#define OPS_MAGNITUDES_CUH

#include "device/device.cuh"

namespace
{

enum { LOADS = 8 }; /* that a thread has on their way */

struct input {
  const sparse_pair *pairs; /* NULL: the residual */
  const float *values;      /* the i-th one is values[i * stride] */
  uint32_t stride;
  uint64_t count;
};

__device__ input input_from(const sparse_memory &m, const sparse_list &list, uint32_t source)
{
  if (source == SPARSE_FROM_LIST) return {list.pairs, &list.pairs->value, 2, ops_list_count(list)};
  return {NULL, m.residual, 1, m.n};
}

/* Calls f(magnitude, valid) for everything in the input. Whole warps make the same calls; those
 * that are not valid are beyond the end. */
template <typename F>
__device__ inline void for_each_magnitude(const input &in, F f)
{
  const uint64_t threads = (uint64_t)gridDim.x * blockDim.x, lane = threadIdx.x % 32;
  const uint64_t first = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x - lane;
  for (uint64_t base = first; base < in.count; base += threads * LOADS) {
    float x[LOADS];
#pragma unroll
    for (int u = 0; u < LOADS; u++) {
      const uint64_t i = base + u * threads + lane;
      x[u] = i < in.count ? in.values[i * in.stride] : 0;
    }
#pragma unroll
    for (int u = 0; u < LOADS; u++) f(sparse_magnitude(x[u]), base + u * threads + lane < in.count);
  }
}

/* bins[bin]++ for the lanes that are valid. Most of a warp often has one bin (zeros, or values of
 * the same exponent), which one lane adds at once. */
__device__ inline void count_in(uint32_t *bins, uint32_t bin, bool valid)
{
  const unsigned lanes = __ballot_sync(OPS_ALL_LANES, valid);
  if (lanes == 0) return;
  const int leader = __ffs((int)lanes) - 1;
  const uint32_t common = __shfl_sync(OPS_ALL_LANES, bin, leader);
  const unsigned same = __ballot_sync(OPS_ALL_LANES, valid && bin == common);
  if ((int)(threadIdx.x % 32) == leader)
    atomicAdd(&bins[common], (uint32_t)__popc(same));
  else if (valid && bin != common)
    atomicAdd(&bins[bin], 1u);
}

} // namespace

#endif
