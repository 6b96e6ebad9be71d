/* SPDX-License-Identifier: Apache-2.0 */
/* Exact selection: the magnitude of the k-th largest entry by a radix search, and counting above
 * levels. Both read magnitudes only, from a list or from all of the residual, as *source says. In
 * most steps that is "nothing", and the launch costs what an empty kernel does. */
#include <cooperative_groups.h>

#include "ops_device.cuh"

namespace
{

enum {
  THREADS = 1024, /* one block per multiprocessor: all run at once, as a grid barrier needs */
  DIGITS = 3,
  LOADS = 4, /* of 16 bytes that a thread has on their way */
};

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
  const uint64_t threads = (uint64_t)gridDim.x * THREADS, lane = threadIdx.x % 32;
  const uint64_t first = (uint64_t)blockIdx.x * THREADS + threadIdx.x - lane;
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

/* Where the wanted-th largest lies in a histogram, and the rank that it has in its bin. */
struct found {
  uint32_t bin;
  uint64_t wanted; /* 0: the histogram is empty, or none was wanted */
};

__device__ inline found find(const uint32_t *bins, uint32_t nbins, uint64_t wanted)
{
  __shared__ uint32_t sums[THREADS / 32];
  __shared__ found result;
  const uint32_t mine = nbins / THREADS * threadIdx.x; /* in descending order of bins */
  uint32_t counts[2] = {__ldcg(&bins[nbins - 1 - mine]), 0};
  if (nbins > THREADS) counts[1] = __ldcg(&bins[nbins - 2 - mine]);
  const uint32_t through = ops_warp_scan(counts[0] + counts[1]);
  if (threadIdx.x % 32 == 31) sums[threadIdx.x / 32] = through;
  __syncthreads();
  uint32_t before = through - counts[0] - counts[1], total = 0;
  for (unsigned w = 0; w < THREADS / 32; w++) {
    if (w < threadIdx.x / 32) before += sums[w];
    total += sums[w];
  }
  if (wanted > total) wanted = total;
  if (threadIdx.x == 0) result = {0, 0};
  __syncthreads();
  for (int i = 0; i < 2; i++) {
    if (wanted > before && wanted <= (uint64_t)before + counts[i])
      result = {nbins - 1 - mine - (uint32_t)i, wanted - before};
    before += counts[i];
  }
  __syncthreads();
  return result;
}

__global__ void OPS_BOUNDS(THREADS, 1)
    search(const __grid_constant__ sparse_memory m, const __grid_constant__ sparse_list list,
           const uint32_t *source, sparse_selection *selection, enum sparse_control then)
{
  ops_begin_early();
  __shared__ uint32_t bins[OPS_BINS];
  const uint32_t from = *source;
  if (from == SPARSE_FROM_NOTHING) { /* no decision makes something of nothing afterwards */
    if (blockIdx.x == 0 && threadIdx.x == 0) ops_decide(then, &m);
    return;
  }
  const cooperative_groups::grid_group grid = cooperative_groups::this_grid();
  ops_scratch *scratch = (ops_scratch *)m.scratch;
  const input in = input_from(m, list, from);
  found at = {0, m.state->wanted};
  uint32_t prefix = 0;
  int digit = 0;
  for (; digit < DIGITS; digit++) {
    const int shift = 20 - 10 * digit;
    const uint32_t nbins = digit == 0 ? OPS_BINS : 1024;
    for (uint32_t b = threadIdx.x; b < nbins; b += THREADS) bins[b] = 0;
    __syncthreads();
    for_each_magnitude(in, [&](const sparse_level_t(&magnitude)[4], unsigned valid) {
#pragma unroll
      for (int e = 0; e < 4; e++)
        if (digit > 0 && (uint32_t)magnitude[e] >> (shift + 10) != prefix) valid &= ~(1u << e);
      if (!__any_sync(OPS_ALL_LANES, valid != 0)) return;
#pragma unroll
      for (int e = 0; e < 4; e++)
        count_in(bins, (uint32_t)magnitude[e] >> shift & (nbins - 1), valid >> e & 1);
    });
    __syncthreads();
    for (uint32_t b = threadIdx.x; b < nbins; b += THREADS)
      if (bins[b] > 0) atomicAdd(&scratch->bins[digit][b], bins[b]);
    grid.sync();
    if (digit == DIGITS - 1 && blockIdx.x != 0) return;
    at = find(scratch->bins[digit], nbins, at.wanted);
    if (at.wanted == 0) break;
    prefix = prefix << (digit == 0 ? 11 : 10) | at.bin;
  }
  if (at.wanted == 0) grid.sync(); /* all have read the histogram */
  if (blockIdx.x != 0) return;
  for (uint32_t b = threadIdx.x; b < OPS_BINS; b += THREADS)
    scratch->bins[0][b] = scratch->bins[1][b] = scratch->bins[2][b] = 0;
  if (threadIdx.x != 0) return;
  selection->above = at.wanted == 0 ? SPARSE_NAN_LEVEL : (sparse_level_t)prefix;
  selection->limit = SPARSE_NAN_LEVEL;
  selection->tie = -1;
  selection->take = at.wanted;
  ops_decide(then, &m);
}

/* ---- counting ----------------------------------------------------------------------------------
 */

/* A histogram over the levels: bin j is for what exceeds levels[j - 1], but not levels[j]. */
__global__ void OPS_BOUNDS(THREADS, 1)
    count_levels(const __grid_constant__ sparse_memory m, enum sparse_control then)
{
  ops_begin_early();
  __shared__ sparse_level_t levels[SPARSE_MAX_LEVELS];
  __shared__ uint32_t exceeded[SPARSE_MAX_LEVELS + 1];
  sparse_state *state = m.state;
  ops_scratch *scratch = (ops_scratch *)m.scratch;
  const uint32_t from = state->count;
  if (from == SPARSE_FROM_NOTHING) { /* no decision makes something of nothing afterwards */
    if (blockIdx.x == 0 && threadIdx.x == 0) ops_decide(then, &m);
    return;
  }
  const int nlevels = state->nlevels;
  const sparse_level_t limit = state->limit;
  for (int j = (int)threadIdx.x; j <= nlevels; j += THREADS) {
    if (j < nlevels) levels[j] = state->levels[j];
    exceeded[j] = 0;
  }
  __syncthreads();
  const input in = input_from(m, {m.offered, &state->offered_count, 1}, from);
  for_each_magnitude(in, [&](const sparse_level_t(&magnitudes)[4], unsigned valid) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const sparse_level_t magnitude = magnitudes[e];
      const bool counts = (valid >> e & 1) && magnitude > levels[0] && magnitude <= limit;
      int below = 0, above = nlevels; /* levels[below] is exceeded, levels[above] is not */
      while (counts && above - below > 1) {
        const int middle = (below + above) / 2;
        if (magnitude > levels[middle])
          below = middle;
        else
          above = middle;
      }
      count_in(exceeded, (uint32_t)above, counts);
    }
  });
  __syncthreads();
  for (int j = (int)threadIdx.x + 1; j <= nlevels; j += THREADS)
    if (exceeded[j] > 0) atomicAdd(&scratch->levels[j - 1], exceeded[j]);
  if (!ops_last_block(scratch)) return;
  for (int j = (int)threadIdx.x; j < nlevels; j += THREADS) {
    exceeded[j] = __ldcg(&scratch->levels[j]);
    scratch->levels[j] = 0;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  uint64_t above = 0;
  for (int j = nlevels - 1; j >= 0; j--) state->level_counts[j] = above += exceeded[j];
  ops_decide(then, &m);
}

} // namespace

extern "C" ncclResult_t ops_search(const struct sparse_memory *m, struct sparse_list list,
                                   const uint32_t *source, struct sparse_selection *selection,
                                   enum sparse_control then, cudaStream_t stream)
{
  return ops_launch(search, (unsigned)ops_multiprocessors(), THREADS, OPS_COOPERATIVE, stream, *m,
                    list, source, selection, then);
}

extern "C" ncclResult_t ops_count_levels(const struct sparse_memory *m, enum sparse_control then,
                                         cudaStream_t stream)
{
  return ops_launch(count_levels, (unsigned)ops_multiprocessors(), THREADS, OPS_NEXT, stream, *m,
                    then);
}

ncclResult_t ops_load_search(void)
{
  return ops_load_kernels(search, count_levels);
}
