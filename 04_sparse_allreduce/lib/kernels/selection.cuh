/* SPDX-License-Identifier: Apache-2.0 */
/* Selection: a search for the k-th largest magnitude, and a filter, over a list or all of the
 * residual, as sources say. For grids whose blocks run at once, and blocks of any size. */
#ifndef OPS_SELECTION_CUH
#define OPS_SELECTION_CUH

#include "device/chain.cuh"
#include "onesided/flags.cuh"

namespace
{

/* ---- the input ------------------------------------------------------------------------------- */

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

/* ---- the search --------------------------------------------------------------------------------
 * All blocks count how many magnitudes lie in each bin of a window. The last one finds the bin that
 * has the wanted one, and that bin is the next window, until bins are single magnitudes.
 *
 * The first window is a guess, and narrow enough that a second one is the last. If the wanted
 * magnitude is outside it, three follow that begin with everything.
 *
 * The entries may be those of all ranks together: then the last blocks of all ranks send each other
 * what they have counted, and find the same. */

enum {
  DIGIT = 11,                               /* bits that a window finds */
  BINS = SPARSE_BINS / OPS_SELECTING_LEAST, /* of a histogram that a thread looks at, at most */
};
static_assert(1 << DIGIT == SPARSE_BINS, "a bin for each value of a digit");

struct search_shared {
  alignas(16) uint32_t bins[SPARSE_BINS];
  uint32_t sums[OPS_SELECTING_MOST / 32];
  uint32_t bin;  /* that has the wanted one */
  uint64_t rank; /* of it, there; 0: none is wanted, or there is none */
};

__device__ inline ops_window all_magnitudes()
{
  return {0, SPARSE_NAN_LEVEL, 2 * DIGIT - 2, OPS_CLOSED}; /* 31 bits */
}

/* From `near` on; of the first and the last bin only the count is known to be right. */
__device__ inline ops_window first_window(sparse_level_t near)
{
  if (near < SPARSE_BINS) return all_magnitudes();
  const uint32_t low = (uint32_t)near + 1 - SPARSE_BINS;
  return {low, low + (SPARSE_BINS << DIGIT) - 1, DIGIT, OPS_OPEN};
}

__device__ inline ops_window window_of_bin(const ops_window &w, uint32_t bin)
{
  const uint32_t low = w.low + (bin << w.shift);
  return {low, low + (1u << w.shift) - 1, w.shift > DIGIT ? w.shift - DIGIT : 0, OPS_CLOSED};
}

__device__ inline void count_in_window(search_shared &s, const input &in, const ops_window &w,
                                       uint32_t *bins)
{
  for (uint32_t b = threadIdx.x; b < SPARSE_BINS; b += blockDim.x) s.bins[b] = 0;
  __syncthreads();
  for_each_magnitude(in, [&](sparse_level_t magnitude, bool valid) {
    const uint32_t x = (uint32_t)magnitude;
    const uint32_t at = (w.kind == OPS_OPEN ? min(max(x, w.low), w.high) : x) - w.low;
    count_in(s.bins, at >> w.shift & (SPARSE_BINS - 1), valid && at <= w.high - w.low);
  });
  __syncthreads();
  for (uint32_t b = threadIdx.x; b < SPARSE_BINS; b += blockDim.x)
    if (s.bins[b] > 0) atomicAdd(&bins[b], s.bins[b]);
}

/* By all threads of a block: where the wanted-th largest lies in s.bins. Returns the sum of all. */
__device__ inline uint32_t find(search_shared &s, uint64_t wanted)
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
  return total;
}

/* From what all blocks have counted, or those of all ranks, the next window. If the search is over,
 * there is a selection, and the decision FOUND is taken. */
template <bool ALL_RANKS, void (*FOUND)(const sparse_memory *)>
__device__ inline void narrow(search_shared &s, const sparse_memory &m, const ops_window &w,
                              uint32_t round, sparse_selection *selection)
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
  const uint64_t total = find(s, wanted), rank = s.rank;
  const uint32_t bin = s.bin;
  if (threadIdx.x != 0) return;
  if (round == 0 && state->wanted > total) state->wanted = total; /* it has all entries */
  ops_window next = {0, 0, 0, OPS_OVER};
  sparse_selection result = {SPARSE_NAN_LEVEL, SPARSE_NAN_LEVEL, -1, 0};
  if (!there) state->wanted = 0;
  if (!there || rank == 0) { /* nothing is chosen */
    result.take = 0;
  } else if (w.kind == OPS_OPEN && (bin == 0 || bin == SPARSE_BINS - 1)) {
    next = all_magnitudes();
    scratch->wanted = state->wanted;
  } else if (w.shift > 0) {
    next = window_of_bin(w, bin);
    scratch->wanted = rank;
  } else {
    result.above = (sparse_level_t)(w.low + bin);
    result.take = ALL_RANKS ? ops_own_share(m, round, bin, rank) : rank;
  }
  scratch->window = next;
  if (next.kind != OPS_OVER) return;
  *selection = result;
  ops_decide<FOUND>(&m);
}

/* Called by all threads of the grid; all see the selection and the decision then. */
template <bool ALL_RANKS, void (*FOUND)(const sparse_memory *)>
__device__ inline void search(search_shared &s, const sparse_memory &m, const input &in,
                              sparse_selection *selection)
{
  ops_scratch *scratch = (ops_scratch *)m.scratch;
  ops_window w = first_window(m.state->near);
  for (uint32_t round = 0; w.kind != OPS_OVER; round++) {
    count_in_window(s, in, w, scratch->bins);
    ops_grid_sync(scratch, [&] { narrow<ALL_RANKS, FOUND>(s, m, w, round, selection); });
    const uint4 next = __ldcg((const uint4 *)&scratch->window);
    w = {next.x, next.y, next.z, (ops_window_kind)next.w};
  }
}

/* ---- the filter --------------------------------------------------------------------------------
 * A compaction with two counts, of what is above the threshold and of what equals it. Of the latter
 * the first `take` are kept, so before an entry there are (above) + min(take, equal) others in the
 * output: its place follows from the two counts alone.
 *
 * The output may be the input list. A tile is in registers before its counts are published, and
 * nothing is written before the counts of all tiles before it are there; what it writes lies in
 * those tiles or in itself. */

/* A thread takes this many at a time, so a tile is larger the more threads a block has. */
enum { OF_LIST = 4, OF_RESIDUAL = 16 };
static_assert(OF_LIST * OPS_SELECTING_LEAST >= OPS_LIST_TILE, "there is a word for each tile");
static_assert(OF_RESIDUAL * OPS_SELECTING_LEAST >= OPS_KEPT_TILE, "and for each of the residual");

struct keep_shared {
  uint64_t partial[OPS_SELECTING_MOST / 32];
  uint64_t counts[OPS_SELECTING_MOST / 32]; /* above, and equal in the upper half */
  uint32_t tile;
};

struct filtering {
  input in;
  sparse_selection selection; /* as it was before */
  sparse_selection *result;
  sparse_pair *to;
  ops_chain chain;
  uint32_t tiles;
};

/* A warp has 32 entries in a row, and as many further on, EACH times. Of what is equal to the
 * threshold either a number is wanted or those up to an index. */
template <int EACH>
__device__ inline void keep_tile(filtering &w, keep_shared &s, uint32_t tile)
{
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, lower = (1u << lane) - 1;
  const uint32_t at = (tile * blockDim.x + threadIdx.x - lane) * EACH + lane;
  const uint32_t left = w.in.count > at ? (uint32_t)w.in.count - at : 0; /* from `at` on */
  const sparse_selection rule = w.selection;
  const uint32_t take = (uint32_t)rule.take;
  sparse_pair entry[EACH];
  uint32_t above = 0, equal = 0; /* bit j: entry j is */
#pragma unroll
  for (uint32_t j = 0; j < EACH; j++) {
    entry[j] = {at + j * 32, 0};
    if (j * 32 >= left) continue;
    if (EACH == OF_LIST)
      *(uint2 *)&entry[j] = *(const uint2 *)&w.in.pairs[at + j * 32];
    else
      entry[j].value = __ldcs(&w.in.values[at + j * 32]);
  }
#pragma unroll
  for (uint32_t j = 0; j < EACH; j++) {
    const sparse_level_t magnitude = sparse_magnitude(entry[j].value);
    const bool possible = j * 32 < left && magnitude <= rule.limit, ties = magnitude == rule.above;
    const bool up_to = take == 0 && (int64_t)entry[j].index <= rule.tie;
    if (possible && (magnitude > rule.above || (ties && up_to))) above |= 1u << j;
    if (possible && ties && take > 0) equal |= 1u << j;
  }
  const uint32_t warp_above = ops_warp_sum((uint32_t)__popc(above));
  const uint32_t warp_equal = ops_warp_sum((uint32_t)__popc(equal));
  if (lane == 0) s.counts[warp] = ops_both(warp_above, warp_equal);
  __syncthreads();
  const uint64_t of_lane = lane < blockDim.x / 32 ? s.counts[lane] : 0;
  const uint64_t in_tile = ops_warp_sum(of_lane), first = ops_warp_sum(lane < warp ? of_lane : 0);
  const uint32_t all_above = (uint32_t)in_tile, all_equal = (uint32_t)(in_tile >> 32);
  if (threadIdx.x == 0) {
    ops_fence(); /* after the tile has been read */
    ops_chain_publish(w.chain, tile, all_above, all_equal);
  }
  uint64_t before = ops_chain_before(w.chain, tile, s.partial) + first;
  ops_fence(); /* before anything is written */
  ops_chain_advance(w.chain, tile, w.tiles, all_above, all_equal);
#pragma unroll
  for (uint32_t j = 0; j < EACH; j++) {
    const bool is_above = above >> j & 1, is_equal = equal >> j & 1;
    const unsigned aboves = __ballot_sync(OPS_ALL_LANES, is_above);
    const unsigned equals = __ballot_sync(OPS_ALL_LANES, is_equal);
    const uint32_t ties = (uint32_t)(before >> 32) + (uint32_t)__popc(equals & lower);
    const uint32_t kept = /* before this entry, as are `ties` */
        (uint32_t)before + (uint32_t)__popc(aboves & lower) + min(ties, take);
    if (is_above || (is_equal && ties < take)) {
      *(uint2 *)&w.to[kept] = *(const uint2 *)&entry[j];
      if (is_equal && ties == take - 1) w.result->tie = entry[j].index;
    }
    before += ops_both((uint32_t)__popc(aboves), (uint32_t)__popc(equals));
  }
}

/* Called by all threads of the grid. The number of what is kept is there after a grid barrier. */
__device__ inline void keep(keep_shared &s, const sparse_memory &m, const input &in,
                            sparse_selection *selection, const sparse_list &to)
{
  const bool of_list = in.pairs != NULL;
  filtering w = {in, *selection, selection, to.pairs, ops_chain_begin(m), 0};
  const uint32_t size = blockDim.x * (of_list ? OF_LIST : OF_RESIDUAL);
  w.tiles = (uint32_t)((in.count + size - 1) / size);
  for (;;) {
    if (threadIdx.x == 0) s.tile = ops_chain_draw(w.chain);
    __syncthreads();
    const uint32_t tile = s.tile;
    if (tile >= w.tiles) break;
    if (of_list)
      keep_tile<OF_LIST>(w, s, tile);
    else
      keep_tile<OF_RESIDUAL>(w, s, tile);
  }
  if (!ops_last_block(w.chain.scratch) || threadIdx.x != 0) return;
  const uint64_t totals = ops_chain_end(w.chain, w.tiles, ops_words(m.n, m.nranks, m.capacity));
  const uint64_t equal = totals >> 32, take = w.selection.take;
  *to.counts = (totals & 0xffffffffu) + (equal < take ? equal : take);
}

/* ---- both ------------------------------------------------------------------------------------ */

/* There is a grid barrier between both. */
union selection_shared {
  search_shared search;
  keep_shared keep;
};

enum { OPS_SELECTING_BLOCKS = 2 }; /* per multiprocessor, of kernels that only select, */
static_assert(sizeof(selection_shared) < 16 << 10, "which run at once: there is room for both");

/* All blocks have to come to the same grid barriers, so they have to see the same sources. Both are
 * looked at first, at the same time. A search takes its decision when all blocks have come to a
 * barrier, and what that may have changed for the filter is read after the last barrier. */
template <void (*FOUND)(const sparse_memory *)>
__device__ inline void search_and_keep(const sparse_memory &m, selection_shared &s,
                                       const sparse_list &from, const sparse_list &to,
                                       sparse_selection *selection)
{
  const uint32_t searched = m.state->search_from;
  uint32_t kept = m.state->keep_from;
  if (searched != SPARSE_FROM_NOTHING) {
    search<false, FOUND>(s.search, m, input_from(m, from, searched), selection);
    kept = m.state->keep_from;
  }
  if (kept != SPARSE_FROM_NOTHING) keep(s.keep, m, input_from(m, from, kept), selection, to);
}

} // namespace

#endif
