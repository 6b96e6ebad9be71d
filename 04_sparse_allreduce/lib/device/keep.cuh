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

/* A thread takes so much at a time, and so a tile is larger the more threads a block has. */
enum {
  ENTRIES = 4, /* of a list */
  QUADS = 4,   /* 16-byte accesses to the residual; their counts are the bytes of a word */
};
static_assert(ENTRIES * OPS_SELECTING_LEAST >= OPS_LIST_TILE, "there is a word for each tile");
static_assert(QUADS * 4 * OPS_SELECTING_LEAST >= OPS_KEPT_TILE, "and for each of the residual");

struct keep_shared {
  float4 values[QUADS][OPS_SELECTING_MOST];
  uint64_t partial[OPS_SELECTING_MOST / 32];
  uint64_t counts[OPS_SELECTING_MOST / 32]; /* above, and equal in the upper half */
  uint32_t tile;
};

/* Who wants to know where units begin in what is kept of a region's sums: entry u is for unit u. */
struct noted_units {
  uint32_t *begins;    /* NULL: nobody */
  uint64_t begin, end; /* of the region */
};

struct filtering {
  input in;
  sparse_selection selection; /* as it was before */
  sparse_selection *result;
  sparse_pair *to, *dropped;
  noted_units units;
  ops_chain chain;
  uint32_t tiles;
};

/* Of what is equal to the threshold either a number is wanted or those up to an index. */
__device__ inline bool is_above(const filtering &w, sparse_level_t magnitude, uint32_t index)
{
  if (w.selection.take == 0) return sparse_chosen(&w.selection, magnitude, index);
  return magnitude > w.selection.above && magnitude <= w.selection.limit;
}

__device__ inline bool is_equal(const filtering &w, sparse_level_t magnitude)
{
  return w.selection.take > 0 && magnitude == w.selection.above && magnitude <= w.selection.limit;
}

/* An entry that has `above` and `equal` others before it; i: its place in the list. Returns how
 * many of those are kept. */
__device__ inline uint64_t put(const filtering &w, sparse_pair entry, bool is_one_above,
                               bool is_one_equal, uint32_t above, uint32_t equal, uint64_t i)
{
  const uint64_t take = w.selection.take;
  const uint64_t kept = above + (equal < take ? equal : take);
  if (is_one_above || (is_one_equal && equal < take)) {
    *(uint2 *)&w.to[kept] = *(const uint2 *)&entry;
    if (is_one_equal && equal == take - 1) w.result->tie = entry.index;
  } else if (w.dropped != NULL && entry.index != SPARSE_NO_INDEX) {
    *(uint2 *)&w.dropped[i - kept] = *(const uint2 *)&entry;
  }
  return kept;
}

/* The first unit that begins after an entry of the region; SPARSE_NO_INDEX: in it. */
__device__ inline uint32_t next_unit(const noted_units &units, uint32_t index)
{
  return index == SPARSE_NO_INDEX ? (uint32_t)((units.begin + SPARSE_UNIT - 1) / SPARSE_UNIT)
                                  : index / SPARSE_UNIT + 1;
}

/* The units that begin after the entry before this one, but not after this one, begin with it. */
__device__ inline void note_units(const noted_units &units, uint32_t index_before, uint32_t index,
                                  uint64_t kept)
{
  for (uint32_t u = next_unit(units, index_before); u <= index / SPARSE_UNIT; u++)
    units.begins[u] = (uint32_t)kept;
}

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

__device__ inline void keep_of_list(filtering &w, keep_shared &s, uint32_t tile)
{
  const uint32_t lane = threadIdx.x % 32, lower = (1u << lane) - 1;
  const uint64_t at =
      (uint64_t)tile * (blockDim.x * ENTRIES) + threadIdx.x / 32 * (32 * ENTRIES) + lane;
  sparse_pair entry[ENTRIES];
  unsigned above[ENTRIES], equal[ENTRIES];
  uint32_t all_above = 0, all_equal = 0;
#pragma unroll
  for (int j = 0; j < ENTRIES; j++) {
    const uint2 raw = at + j * 32 < w.in.count ? *(const uint2 *)&w.in.pairs[at + j * 32]
                                               : make_uint2(SPARSE_NO_INDEX, 0);
    entry[j] = {raw.x, __uint_as_float(raw.y)};
  }
  /* Of the entry before the warp's first one. If it has been written already, it is the same. */
  uint32_t index_before = SPARSE_NO_INDEX;
  if (w.units.begins != NULL && at > lane && at - lane <= w.in.count)
    index_before = w.in.pairs[at - lane - 1].index;
  index_before = __shfl_sync(OPS_ALL_LANES, index_before, 0); /* it is there, not on its way */
#pragma unroll
  for (int j = 0; j < ENTRIES; j++) {
    const sparse_level_t magnitude = sparse_magnitude(entry[j].value);
    const bool valid = entry[j].index != SPARSE_NO_INDEX;
    above[j] = __ballot_sync(OPS_ALL_LANES, valid && is_above(w, magnitude, entry[j].index));
    equal[j] = __ballot_sync(OPS_ALL_LANES, valid && is_equal(w, magnitude));
    all_above += (uint32_t)__popc(above[j]);
    all_equal += (uint32_t)__popc(equal[j]);
  }
  uint64_t before = counts_before(w, s, tile, all_above, all_equal);
#pragma unroll
  for (int j = 0; j < ENTRIES; j++) {
    const uint64_t kept =
        put(w, entry[j], above[j] >> lane & 1, equal[j] >> lane & 1,
            (uint32_t)before + (uint32_t)__popc(above[j] & lower),
            (uint32_t)(before >> 32) + (uint32_t)__popc(equal[j] & lower), at + j * 32);
    before += ops_both((uint32_t)__popc(above[j]), (uint32_t)__popc(equal[j]));
    if (w.units.begins == NULL) continue;
    const uint32_t neighbour = __shfl_up_sync(OPS_ALL_LANES, entry[j].index, 1);
    if (entry[j].index != SPARSE_NO_INDEX)
      note_units(w.units, lane == 0 ? index_before : neighbour, entry[j].index, kept);
    index_before = __shfl_sync(OPS_ALL_LANES, entry[j].index, 31);
  }
}

/* What precedes a thread's elements, for each of its 4 rows of 128 elements of a warp in 16 bits:
 * the rows before, and the threads before in this row. *all: of the whole warp. */
__device__ inline uint64_t rows_before(uint32_t mask, uint32_t *all)
{
  uint32_t rows = 0;
#pragma unroll
  for (int j = 0; j < QUADS; j++) rows |= (uint32_t)__popc(mask >> 4 * j & 15) << 8 * j;
  const uint32_t through = ops_warp_scan(rows);
  const uint32_t whole = __shfl_sync(OPS_ALL_LANES, through, 31);
  uint64_t before = 0;
  *all = 0;
#pragma unroll
  for (int j = 0; j < QUADS; j++) {
    before |= (uint64_t)(*all + (through - rows >> 8 * j & 255)) << 16 * j;
    *all += whole >> 8 * j & 255;
  }
  return before;
}

/* How many bits of `mask`, which follow `rows`, are before bit i. */
__device__ inline uint32_t rank_of(uint64_t rows, uint32_t mask, uint32_t i)
{
  const uint32_t j = i / 4;
  return (uint32_t)(rows >> 16 * j & 0xffff) + (uint32_t)__popc(mask & ((1u << i) - (1u << 4 * j)));
}

__device__ inline void keep_of_residual(filtering &w, keep_shared &s, uint32_t tile)
{
  const uint64_t at = (uint64_t)tile * (blockDim.x * QUADS * 4) + threadIdx.x / 32 * (QUADS * 128) +
                      threadIdx.x % 32 * 4;
  const sparse_selection rule = w.selection;
  const uint32_t low = (uint32_t)rule.above + 1u; /* above: low <= magnitude < low + range */
  const uint32_t range = rule.limit > rule.above ? (uint32_t)rule.limit - (uint32_t)rule.above : 0;
  float4 x[QUADS];
  uint32_t valid = 0xffffu, above = 0, equal = 0;
#pragma unroll
  for (int j = 0; j < QUADS; j++) {
    if (at + j * 128 + 4 <= w.in.count) {
      x[j] = __ldcs((const float4 *)(w.in.residual + at + j * 128));
      continue;
    }
    float tail[4] = {};
#pragma unroll
    for (int e = 0; e < 4; e++)
      if (at + j * 128 + e < w.in.count)
        tail[e] = w.in.residual[at + j * 128 + e];
      else
        valid &= ~(1u << (4 * j + e));
    x[j] = make_float4(tail[0], tail[1], tail[2], tail[3]);
  }
#pragma unroll
  for (int j = 0; j < QUADS; j++) {
    const float values[4] = {x[j].x, x[j].y, x[j].z, x[j].w};
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const sparse_level_t magnitude = sparse_magnitude(values[e]);
      above |= (uint32_t)((uint32_t)magnitude - low < range) << (4 * j + e);
      equal |= (uint32_t)(magnitude == rule.above) << (4 * j + e);
    }
    s.values[j][threadIdx.x] = x[j]; /* each thread's own, to be indexed by a variable */
  }
  above &= valid;
  equal &= rule.above <= rule.limit ? valid : 0;
  if (rule.take == 0) { /* those up to an index */
    for (uint32_t left = equal; left != 0; left &= left - 1) {
      const uint32_t i = (uint32_t)__ffs((int)left) - 1;
      if ((int64_t)(at + i / 4 * 128 + i % 4) <= rule.tie) above |= 1u << i;
    }
    equal = 0;
  }
  uint32_t all_above, all_equal;
  const uint64_t rows_above = rows_before(above, &all_above);
  const uint64_t rows_equal = rows_before(equal, &all_equal);
  const uint64_t before = counts_before(w, s, tile, all_above, all_equal);
  for (uint32_t left = above | equal; left != 0; left &= left - 1) {
    const uint32_t i = (uint32_t)__ffs((int)left) - 1;
    put(w,
        {(uint32_t)(at + i / 4 * 128 + i % 4),
         ((const float *)&s.values[i / 4][threadIdx.x])[i % 4]},
        above >> i & 1, equal >> i & 1, (uint32_t)before + rank_of(rows_above, above, i),
        (uint32_t)(before >> 32) + rank_of(rows_equal, equal, i), 0);
  }
}

/* Called by all threads of the grid. True for those of one block, all of which see what all threads
 * have written, the number of what is kept included. */
__device__ inline bool keep(keep_shared &s, const sparse_memory &m, const input &in,
                            sparse_selection *selection, const sparse_list &to,
                            const sparse_list &dropped, const noted_units &units)
{
  const bool of_list = in.pairs != NULL;
  filtering w = {in,    *selection,         selection, to.pairs, of_list ? dropped.pairs : NULL,
                 units, ops_chain_begin(m), 0};
  const uint32_t size = blockDim.x * (of_list ? ENTRIES : QUADS * 4);
  w.tiles = (uint32_t)((in.count + size - 1) / size);
  for (;;) {
    if (threadIdx.x == 0) s.tile = ops_chain_draw(w.chain);
    __syncthreads();
    const uint32_t tile = s.tile;
    if (tile >= w.tiles) break;
    if (of_list)
      keep_of_list(w, s, tile);
    else
      keep_of_residual(w, s, tile);
  }
  if (!ops_last_block(w.chain.scratch)) return false;
  if (threadIdx.x == 0) {
    const uint64_t totals = ops_chain_end(w.chain, w.tiles, ops_words(m.n, m.nranks, m.capacity));
    const uint64_t equal = totals >> 32, take = w.selection.take;
    const uint64_t kept = (totals & 0xffffffffu) + (equal < take ? equal : take);
    *to.counts = kept;
    if (w.dropped != NULL) *dropped.counts = in.count - kept;
  }
  __syncthreads();
  if (units.begins == NULL) return true;
  const uint32_t kept = (uint32_t)*to.counts;
  const uint32_t last = in.count > 0 ? in.pairs[in.count - 1].index : SPARSE_NO_INDEX;
  for (uint64_t u = next_unit(units, last) + threadIdx.x; u * SPARSE_UNIT < units.end;
       u += blockDim.x)
    units.begins[u] = kept; /* where there are no more sums */
  __syncthreads();
  return true;
}

} // namespace

#endif
