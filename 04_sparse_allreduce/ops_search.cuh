/* SPDX-License-Identifier: Apache-2.0 */
/* Exact selection: the magnitude of the k-th largest entry by a radix search, three digits, highest
 * first. All blocks count a digit, and behind a grid barrier each of them finds on its own where
 * the wanted entry lies. */
#ifndef OPS_SEARCH_CUH
#define OPS_SEARCH_CUH

#include "ops_magnitudes.cuh"

namespace
{

enum {
  DIGITS = 3,
  BINS = OPS_BINS / OPS_SELECTING_LEAST, /* of a histogram that a thread looks at, at most */
};

/* Where the wanted-th largest lies in a histogram, and the rank that it has in its bin. */
struct found {
  uint32_t bin;
  uint64_t wanted; /* 0: the histogram is empty, or none was wanted */
};

struct search_shared {
  uint32_t bins[OPS_BINS];
  uint32_t sums[OPS_SELECTING_MOST / 32];
  found result;
};

__device__ inline found find(search_shared &s, const uint32_t *bins, uint32_t nbins,
                             uint64_t wanted)
{
  const uint32_t each = nbins / blockDim.x;
  const uint32_t first = nbins - 1 - each * threadIdx.x; /* and downwards */
  uint32_t counts[BINS], mine = 0, before;
#pragma unroll
  for (uint32_t i = 0; i < BINS; i++) mine += counts[i] = i < each ? __ldcg(&bins[first - i]) : 0;
  const uint32_t through = ops_warp_scan(mine);
  if (threadIdx.x % 32 == 31) s.sums[threadIdx.x / 32] = through;
  if (threadIdx.x == 0) s.result = {0, 0};
  __syncthreads();
  const uint32_t total = ops_block_sum(s.sums, blockDim.x / 32, &before);
  before += through - mine;
  if (wanted > total) wanted = total;
#pragma unroll
  for (uint32_t i = 0; i < BINS; i++) {
    if (wanted > before && wanted <= (uint64_t)before + counts[i])
      s.result = {first - i, wanted - before};
    before += counts[i];
  }
  __syncthreads();
  return s.result;
}

/* Called by all threads of the grid. The selection is there for thread 0 of block 0, for others
 * behind the next grid barrier. */
__device__ inline void search(search_shared &s, const sparse_memory &m, const input &in,
                              sparse_selection *selection)
{
  ops_scratch *scratch = (ops_scratch *)m.scratch;
  found at = {0, m.state->wanted};
  uint32_t prefix = 0;
  int digit = 0;
  for (; digit < DIGITS; digit++) {
    const int shift = 20 - 10 * digit;
    const uint32_t nbins = digit == 0 ? OPS_BINS : 1024;
    for (uint32_t b = threadIdx.x; b < nbins; b += blockDim.x) s.bins[b] = 0;
    __syncthreads();
    for_each_magnitude(in, [&](const sparse_level_t(&magnitude)[4], unsigned valid) {
#pragma unroll
      for (int e = 0; e < 4; e++)
        if (digit > 0 && (uint32_t)magnitude[e] >> (shift + 10) != prefix) valid &= ~(1u << e);
      if (!__any_sync(OPS_ALL_LANES, valid != 0)) return;
#pragma unroll
      for (int e = 0; e < 4; e++)
        count_in(s.bins, (uint32_t)magnitude[e] >> shift & (nbins - 1), valid >> e & 1);
    });
    __syncthreads();
    for (uint32_t b = threadIdx.x; b < nbins; b += blockDim.x)
      if (s.bins[b] > 0) atomicAdd(&scratch->bins[digit][b], s.bins[b]);
    ops_grid_sync(scratch);
    if (digit == DIGITS - 1 && blockIdx.x != 0) return;
    at = find(s, scratch->bins[digit], nbins, at.wanted);
    if (at.wanted == 0) break;
    prefix = prefix << (digit == 0 ? 11 : 10) | at.bin;
  }
  if (at.wanted == 0) ops_grid_sync(scratch); /* all have read the histogram */
  if (blockIdx.x != 0) return;
  for (uint32_t b = threadIdx.x; b < OPS_BINS; b += blockDim.x)
    scratch->bins[0][b] = scratch->bins[1][b] = scratch->bins[2][b] = 0;
  if (threadIdx.x != 0) return;
  selection->above = at.wanted == 0 ? SPARSE_NAN_LEVEL : (sparse_level_t)prefix;
  selection->limit = SPARSE_NAN_LEVEL;
  selection->tie = -1;
  selection->take = at.wanted;
}

} // namespace

#endif
