/* SPDX-License-Identifier: Apache-2.0 */
/* Filtering by a selection: a compaction with two counts, of what is above the threshold and of
 * what equals it. Of the latter the first `take` are kept, so before an entry there are
 * (above) + min(take, equal) others in the output: its place follows from the two counts alone.
 *
 * The output may be the input list. A tile is in registers before its counts are published, and
 * nothing is written before the counts of all tiles before it are there; what it writes lies in
 * those tiles or in itself. */
#ifndef OPS_KEEP_CUH
#define OPS_KEEP_CUH

#include "device/chain.cuh"
#include "device/magnitudes.cuh"

namespace
{

/* A thread takes so many at a time, and so a tile is larger the more threads a block has. */
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
  sparse_pair *to, *dropped;
  ops_chain chain;
  uint32_t tiles;
};

/* Publishes the counts of a tile, of which each warp brings its own; returns the counts before this
 * warp's part, over all tiles. */
__device__ inline uint64_t counts_before(filtering &w, keep_shared &s, uint32_t tile,
                                         uint32_t above, uint32_t equal)
{
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (lane == 0) s.counts[warp] = ops_both(above, equal);
  __syncthreads();
  const uint64_t of_lane = lane < blockDim.x / 32 ? s.counts[lane] : 0;
  const uint64_t in_tile = ops_warp_sum(of_lane), first = ops_warp_sum(lane < warp ? of_lane : 0);
  const uint32_t all_above = (uint32_t)in_tile, all_equal = (uint32_t)(in_tile >> 32);
  if (threadIdx.x == 0) {
    ops_fence(); /* after the tile has been read */
    ops_chain_publish(w.chain, tile, all_above, all_equal);
  }
  const uint64_t before = ops_chain_before(w.chain, tile, s.partial);
  ops_fence(); /* before anything is written */
  ops_chain_advance(w.chain, tile, w.tiles, all_above, all_equal);
  return before + first;
}

/* A warp has 32 entries in a row, and as many further on, EACH times. Of what is equal to the
 * threshold either a number is wanted or those up to an index. */
template <int EACH>
__device__ inline void keep_tile(filtering &w, keep_shared &s, uint32_t tile)
{
  const uint32_t lane = threadIdx.x % 32, lower = (1u << lane) - 1;
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
  uint64_t before = counts_before(w, s, tile, ops_warp_sum((uint32_t)__popc(above)),
                                  ops_warp_sum((uint32_t)__popc(equal)));
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
    } else if (w.dropped != NULL && j * 32 < left) {
      *(uint2 *)&w.dropped[at + j * 32 - kept] = *(const uint2 *)&entry[j];
    }
    before += ops_both((uint32_t)__popc(aboves), (uint32_t)__popc(equals));
  }
}

/* Called by all threads of the grid. The number of what is kept is there when all blocks have come
 * to their end. */
__device__ inline void keep(keep_shared &s, const sparse_memory &m, const input &in,
                            sparse_selection *selection, const sparse_list &to,
                            const sparse_list &dropped)
{
  const bool of_list = in.pairs != NULL;
  filtering w = {
      in, *selection, selection, to.pairs, of_list ? dropped.pairs : NULL, ops_chain_begin(m), 0};
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
  if (w.dropped != NULL) *dropped.counts = in.count - *to.counts;
}

} // namespace

#endif
