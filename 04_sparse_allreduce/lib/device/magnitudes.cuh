/* SPDX-License-Identifier: Apache-2.0 */
/* What selections read: magnitudes, from a list or from all of the residual, as a source says; and
 * histograms of them in shared memory. For blocks of any size. */
#ifndef OPS_MAGNITUDES_CUH
#define OPS_MAGNITUDES_CUH

#include "device/device.cuh"

namespace
{

enum { LOADS = 4 }; /* of 16 bytes that a thread has on their way */

struct input {
  const sparse_pair *pairs; /* NULL: the residual */
  const float *residual;
  uint64_t count;
};

__device__ input input_from(const sparse_memory &m, const sparse_list &list, uint32_t source)
{
  if (source == SPARSE_FROM_LIST) return {list.pairs, NULL, ops_list_count(list)};
  return {NULL, m.residual, m.n};
}

/* Four elements of the residual, as far as there are so many. */
__device__ inline float4 quad_of(const input &in, uint64_t chunk)
{
  if (chunk * 4 + 4 <= in.count) return __ldcs((const float4 *)in.residual + chunk);
  float x[4] = {};
  for (int e = 0; e < 4; e++)
    if (chunk * 4 + e < in.count) x[e] = in.residual[chunk * 4 + e];
  return make_float4(x[0], x[1], x[2], x[3]);
}

/* Calls f(magnitudes, valid) with 4 magnitudes, bit e of `valid` for the e-th, for everything in
 * the input. Whole warps make the same calls. */
template <typename F>
__device__ inline void for_each_magnitude(const input &in, F f)
{
  const uint64_t threads = (uint64_t)gridDim.x * blockDim.x, lane = threadIdx.x % 32;
  const uint64_t first = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x - lane;
  if (in.pairs != NULL) { /* a warp's 128 entries, 32 at a time */
    for (uint64_t base = first * 4; base < in.count; base += threads * 4) {
      uint2 raw[4];
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const uint64_t i = base + (uint64_t)e * 32 + lane;
        raw[e] = i < in.count ? *(const uint2 *)&in.pairs[i] : make_uint2(SPARSE_NO_INDEX, 0);
      }
      sparse_level_t magnitudes[4];
      unsigned valid = 0;
#pragma unroll
      for (int e = 0; e < 4; e++) {
        magnitudes[e] = (sparse_level_t)(raw[e].y & 0x7fffffff);
        valid |= (unsigned)(raw[e].x != SPARSE_NO_INDEX) << e;
      }
      f(magnitudes, valid);
    }
    return;
  }
  const uint64_t chunks = (in.count + 3) / 4;
  for (uint64_t base = first; base < chunks; base += threads * LOADS) {
    float4 raw[LOADS];
#pragma unroll
    for (int u = 0; u < LOADS; u++) raw[u] = quad_of(in, base + u * threads + lane);
#pragma unroll
    for (int u = 0; u < LOADS; u++) {
      const uint64_t at = (base + u * threads + lane) * 4;
      const sparse_level_t magnitudes[4] = {sparse_magnitude(raw[u].x), sparse_magnitude(raw[u].y),
                                            sparse_magnitude(raw[u].z), sparse_magnitude(raw[u].w)};
      const uint64_t left = at < in.count ? in.count - at : 0;
      f(magnitudes, left >= 4 ? 15u : (1u << left) - 1);
    }
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
