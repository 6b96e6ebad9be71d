/* SPDX-License-Identifier: Apache-2.0 */
/* The magnitude of the k-th largest entry. All blocks count how many magnitudes lie in each bin of
 * a window. The last one finds the bin that has the wanted one, and that bin is the next window,
 * until bins are single magnitudes.
 *
 * The first window is a guess, and narrow enough that a second one is the last. If the wanted
 * magnitude is beside it, three follow that begin with everything.
 *
 * The entries may be those of all ranks together: then the last blocks of all ranks tell each other
 * what they have counted, and find the same. */
#ifndef OPS_SEARCH_CUH
#define OPS_SEARCH_CUH

#include "device/magnitudes.cuh"
#include "onesided/flags.cuh"

namespace
{

enum {
  DIGIT = 11,                               /* bits that a window finds */
  BINS = SPARSE_BINS / OPS_SELECTING_LEAST, /* of a histogram that a thread looks at, at most */
};
static_assert(1 << DIGIT == SPARSE_BINS, "a bin for each value of a digit");

struct search_shared {
  alignas(16) uint32_t bins[SPARSE_BINS];
  uint32_t sums[OPS_SELECTING_MOST / 32];
  uint32_t bin;
  uint64_t rank;
};

/* ---- windows ---------------------------------------------------------------------------------
 */

__device__ inline ops_window all_magnitudes()
{
  return {0, SPARSE_NAN_LEVEL, 2 * DIGIT - 2, false}; /* 31 bits */
}

/* From `near` on; of the first and the last bin only the count is known to be right. */
__device__ inline ops_window first_window(sparse_level_t near)
{
  if (near < SPARSE_BINS) return all_magnitudes();
  const uint32_t low = (uint32_t)near + 1 - SPARSE_BINS;
  return {low, low + (SPARSE_BINS << DIGIT) - 1, DIGIT, true};
}

__device__ inline ops_window window_of_bin(const ops_window &w, uint32_t bin)
{
  const uint32_t low = w.low + (bin << w.shift);
  return {low, low + (1u << w.shift) - 1, w.shift > DIGIT ? w.shift - DIGIT : 0, false};
}

/* After the last one. */
__device__ inline bool is_empty(const ops_window &w)
{
  return w.low > w.high;
}

/* ---- counting ----------------------------------------------------------------------------------
 */

__device__ inline void count_in_window(search_shared &s, const input &in, const ops_window &w,
                                       uint32_t *bins)
{
  for (uint32_t b = threadIdx.x; b < SPARSE_BINS; b += blockDim.x) s.bins[b] = 0;
  __syncthreads();
  for_each_magnitude(in, [&](sparse_level_t magnitude, bool valid) {
    const uint32_t x = (uint32_t)magnitude;
    const uint32_t at = (w.open ? min(max(x, w.low), w.high) : x) - w.low;
    count_in(s.bins, at >> w.shift & (SPARSE_BINS - 1), valid && at <= w.high - w.low);
  });
  __syncthreads();
  for (uint32_t b = threadIdx.x; b < SPARSE_BINS; b += blockDim.x)
    if (s.bins[b] > 0) atomicAdd(&bins[b], s.bins[b]);
}

/* ---- the last block ----------------------------------------------------------------------------
 */

/* Where the wanted-th largest lies in a histogram. */
struct found {
  uint32_t bin;
  uint64_t rank;  /* that it has in its bin; 0: none is wanted, or there is none */
  uint64_t total; /* in all bins */
};

/* By all threads of a block, in s.bins. */
__device__ inline found find(search_shared &s, uint64_t wanted)
{
  const uint32_t each = SPARSE_BINS / blockDim.x;
  const uint32_t first = SPARSE_BINS - 1 - each * threadIdx.x; /* and downwards */
  uint32_t counts[BINS], mine = 0, before;
#pragma unroll
  for (uint32_t i = 0; i < BINS; i++) mine += counts[i] = i < each ? s.bins[first - i] : 0;
  const uint32_t through = ops_warp_scan(mine);
  if (threadIdx.x % 32 == 31) s.sums[threadIdx.x / 32] = through;
  if (threadIdx.x == 0) s.bin = 0, s.rank = 0;
  __syncthreads();
  const uint32_t total = ops_block_sum(s.sums, blockDim.x / 32, &before);
  before += through - mine;
  if (wanted > total) wanted = total;
#pragma unroll
  for (uint32_t i = 0; i < BINS; i++) {
    if (wanted > before && wanted <= (uint64_t)before + counts[i])
      s.bin = first - i, s.rank = wanted - before;
    before += counts[i];
  }
  __syncthreads();
  return {s.bin, s.rank, total};
}

/* From what all blocks have counted, or those of all ranks, the next window. It is empty if the
 * search is over; then there are a selection and what follows from it. */
template <bool ALL_RANKS>
__device__ inline void narrow(search_shared &s, const sparse_memory &m, const ops_window &w,
                              uint32_t round, sparse_selection *selection,
                              enum sparse_decision then)
{
  sparse_state *state = m.state;
  ops_scratch *scratch = (ops_scratch *)m.scratch;
  const uint64_t wanted = round == 0 ? state->wanted : __ldcg(&scratch->wanted);
  const bool there = !ALL_RANKS || ops_add_histograms(m, scratch->bins, round, s.bins);
  for (uint32_t b = threadIdx.x; b < SPARSE_BINS; b += blockDim.x) {
    if (!ALL_RANKS) s.bins[b] = __ldcg(&scratch->bins[b]);
    scratch->bins[b] = 0;
  }
  __syncthreads();
  const found at = find(s, wanted);
  if (threadIdx.x != 0) return;
  if (round == 0) { /* this window has been offered all entries */
    if (state->wanted > at.total) state->wanted = at.total;
    if (ALL_RANKS) state->gathered_total = at.total;
  }
  ops_window next = {1, 0, 0, false}; /* empty */
  sparse_selection result = {SPARSE_NAN_LEVEL, SPARSE_NAN_LEVEL, -1, 0};
  if (!there) {
    state->wanted = 0;
  } else if (at.rank == 0) {
    /* nothing is chosen */
  } else if (w.open && (at.bin == 0 || at.bin == SPARSE_BINS - 1)) {
    next = all_magnitudes();
    scratch->wanted = state->wanted;
  } else if (w.shift > 0) {
    next = window_of_bin(w, at.bin);
    scratch->wanted = at.rank;
  } else {
    result.above = (sparse_level_t)(w.low + at.bin);
    result.take = ALL_RANKS ? ops_own_share(m, round, at.bin, at.rank) : at.rank;
  }
  scratch->window = next;
  if (!is_empty(next)) return;
  *selection = result;
  ops_decide(then, &m);
}

/* Called by all threads of the grid; all see the selection and the decision then. */
template <bool ALL_RANKS>
__device__ inline void search(search_shared &s, const sparse_memory &m, const input &in,
                              sparse_selection *selection, enum sparse_decision then)
{
  ops_scratch *scratch = (ops_scratch *)m.scratch;
  ops_window w = first_window(m.state->near);
  for (uint32_t round = 0; !is_empty(w); round++) {
    count_in_window(s, in, w, scratch->bins);
    ops_grid_sync(scratch, [&] { narrow<ALL_RANKS>(s, m, w, round, selection, then); });
    const uint4 next = __ldcg((const uint4 *)&scratch->window);
    w = {next.x, next.y, next.z, next.w};
  }
}

} // namespace

#endif
