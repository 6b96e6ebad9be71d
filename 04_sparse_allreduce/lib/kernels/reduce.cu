/* SPDX-License-Identifier: Apache-2.0 */
/* The sum over a region: lists of all ranks become one, in a fixed order of additions and without
 * the dense region in memory.
 *
 * A block takes a tile of indices at a time, finds where it begins in every list, and adds the
 * lists' values to sums in shared memory, one list after the other with a barrier in between
 * (within a list no index comes twice, so no two threads add to the same sum). A bit for each index
 * says whether it occurs. The sums to keep are gathered in the order of the chain.
 * reduce_tiles.cuh has the two kinds of tiles. */
#include "device/chain.cuh"
#include "kernels/reduce_tiles.cuh"
#include "kernels/selection.cuh"
#include "onesided/onesided.h"
#include "onesided/partition.cuh"

namespace
{

/* What a tile is done as. */
enum kind { SMALL, LARGE, LARGE_IN_PARTS };

/* One-sided: what a rank needs that has more candidates than its list holds. */
struct choosing {
  selection_shared selection;
  uint32_t begins[SPARSE_MAX_RANKS + 1]; /* of regions */
};

union memory {
  choosing choose; /* before all else */
  shared reduce;
};
static_assert((int)THREADS >= (int)OPS_SELECTING_LEAST && (int)THREADS <= (int)OPS_SELECTING_MOST,
              "there is room");

/* If it is that which keeps this rank from having all lists: sends what it chooses and signals
 * everybody. By all blocks, since before that none of them can have all lists. Not inlined:
 * hardly ever needed. */
__device__ __noinline__ bool choose_and_offer(const sparse_memory &m, choosing &s)
{
  sparse_state *state = m.state;
  ops_scratch *scratch = (ops_scratch *)m.scratch;
  const sparse_list offered = {m.offered, &state->offered_count, 1}, nowhere = {NULL, NULL, 0};
  ops_begin(); /* the state is as the local pass leaves it */
  ops_fence();
  if (!state->unsent) return false;
  search_and_keep(m, s.selection,
                  {offered, offered, nowhere, &state->search_from, &state->keep_from,
                   &state->selection, SPARSE_OVERFLOW_FOUND});
  ops_grid_sync(scratch);
  ops_send_offered(m, s.begins);
  if (blockIdx.x == 0 && threadIdx.x == 0) state->unsent = 0;
  ops_grid_sync(scratch);
  return true;
}

/* ALL: SPARSE_SUMS_ALL. */
template <bool ONESIDED, bool ALL>
__global__ void OPS_BOUNDS(THREADS, BLOCKS)
    reduce(const __grid_constant__ sparse_memory m, const sparse_pair *base, const uint64_t *displs,
           const uint64_t *counts, int first, int stride, const uint64_t *region,
           enum sparse_sums which, const __grid_constant__ sparse_list to,
           enum sparse_decision then)
{
  /* ONESIDED: ranks store their lists here. Then this follows the local pass, which lets it begin
   * when it has all but ended, or a kernel that lets nobody begin before its end. There are flags
   * about all that it needs. */
  if (!ONESIDED) ops_begin();
  ops_let_next_begin();
  /* Other sums are not those of the result: ops_select_sums() chooses from them, and says where. */
  const bool announces = ONESIDED && which == SPARSE_SUMS_ABOVE;
  __shared__ memory all;
  shared &s = all.reduce;
  /* Everything that is not about the lists is asked for before the wait for them. */
  job w = {m.nranks, which, (float)m.state->global_threshold, region[0], region[1], false,
           false,    0};
  bool there = true;
  if (ONESIDED) {
    do there = ops_await_lists(m, s.all.lists, s.all.levels);
    while (!there && choose_and_offer(m, all.choose));
  } else {
    OPS_ROLLED
    for (int p = (int)threadIdx.x; p < m.nranks; p += THREADS) {
      s.all.lists.pairs[p] = base + displs[p];
      s.all.lists.counts[p] = (uint32_t)counts[p];
      s.all.levels[p] = OPS_ALL_LEVELS;
    }
    __syncthreads();
  }
  ops_chain chain = ops_chain_begin(m);
  if (threadIdx.x == 0) s.next = ops_chain_draw(chain);
  for (uint32_t v = 0; v < WORDS; v++) s.occurs[threadIdx.x + v * THREADS] = 0;
  order_lists(s, m.nranks, first, stride);
  choose_tile_size(w, s);
  w.filters = has_levels(s, m.nranks);
  const uint32_t tiles = w.end > w.begin ? (uint32_t)(w.end - w.begin - 1) / w.tile_size + 1 : 0;
  __syncthreads();
  uint32_t tile = s.next;
  /* Who has waited in vain has nothing to add, nor does it know how many tiles there are; but
   * nobody else is going to publish this one. */
  if (!there && threadIdx.x == 0 && tile < ops_dense_tiles(m.n))
    ops_chain_publish(chain, tile, 0, 0);
  if (!there) tile = tiles;
  if (tile < tiles) find_tile(w, s, tile);
  while (tile < tiles) {
    const uint64_t begin = w.begin + (uint64_t)tile * w.tile_size;
    const uint64_t end = begin + w.tile_size < w.end ? begin + w.tile_size : w.end;
    __syncthreads(); /* the tile's place is known, no bit is set; all have read s.next */
    uint32_t drawn = 0;
    if (threadIdx.x == 0) drawn = ops_chain_draw(chain);

    enum kind kind = SMALL;
    uint32_t keep = 0, kept = 0; /* of this thread: bits, and how many if in order of threads */
    if (!w.large) {
      add_to_small(w, s, begin, end, false);
      kept = (uint32_t)__popc(keep = select_of_small<ALL>(w, s));
    } else if (const uint32_t entries = lay_out(w, s); entries <= ROOM) {
      kind = LARGE;
      keep = select_of_large<ALL>(w, s, add_to_large(w, s, begin, entries));
    } else {
      kind = LARGE_IN_PARTS;
      for (uint64_t from = begin; from < end; from += SMALL_TILE) {
        add_to_small(w, s, from, from + SMALL_TILE < end ? from + SMALL_TILE : end, false);
        kept += (uint32_t)__popc(select_of_small<ALL>(w, s));
        s.occurs[threadIdx.x] = 0;
        move_begin(w, s, from + SMALL_TILE);
        __syncthreads();
      }
    }
    if (threadIdx.x == 0) s.next = drawn;
    uint32_t before = 0, before_rounds[2] = {}, in_tile;
    unit_begin mine = {};
    if (kind == LARGE) {
      __syncthreads();
      in_tile = place_rounds(s, before_rounds);
      if (threadIdx.x >= THREADS - 32) mine = find_unit(s, begin, end, before_rounds);
    } else {
      before = place_words(s, kept, &in_tile);
    }
    const uint32_t next = s.next;
    if (threadIdx.x == 0) ops_chain_publish(chain, tile, in_tile, 0);
    const uint32_t soon = kind == LARGE_IN_PARTS ? tile : next;
    if (soon < tiles) find_tile(w, s, soon); /* while other blocks publish */
    uint32_t place = (uint32_t)ops_chain_before(chain, tile, s.partial); /* of the tile's sums */
    ops_chain_advance(chain, tile, tiles, in_tile, 0);

    if (kind == LARGE) {
      if (mine.any && announces) m.unit_begins[mine.unit] = place + mine.at;
      write_large(s, keep, before_rounds, to.pairs + place);
      for (uint32_t v = 0; v < WORDS; v++) s.occurs[threadIdx.x + v * THREADS] = 0;
    } else if (kind == SMALL) {
      place += before;
      if (announces) note_unit(m.unit_begins, begin, end, keep, place);
      write_small(s, begin, keep, to.pairs + place);
      s.occurs[threadIdx.x] = 0;
    } else {
      for (uint64_t from = begin; from < end; from += SMALL_TILE) { /* the sums once more */
        const uint64_t part_end = from + SMALL_TILE < end ? from + SMALL_TILE : end;
        add_to_small(w, s, from, part_end, true);
        keep = select_of_small<ALL>(w, s);
        before = place_words(s, (uint32_t)__popc(keep), &in_tile);
        if (announces) note_unit(m.unit_begins, from, part_end, keep, place + before);
        write_small(s, from, keep, to.pairs + place + before);
        place += in_tile;
        s.occurs[threadIdx.x] = 0;
        move_begin(w, s, from + SMALL_TILE);
        __syncthreads();
      }
      if (next < tiles) find_tile(w, s, next);
    }
    tile = next;
  }
  if (ONESIDED)
    ops_begin(); /* whoever waits for this kernel's end waits for those before it, too */
  uint32_t *all_dropped = chain.scratch->dropped;
  if (w.filters) __syncthreads();
  OPS_ROLLED
  for (int place = (int)threadIdx.x; w.filters && place < m.nranks; place += THREADS)
    if (s.dropped[place] > 0) atomicAdd(&all_dropped[place], s.dropped[place]);
  if (!ops_last_block(chain.scratch)) return;
  const bool late = ONESIDED && ops_late(m), signals = announces && !late;
  uint32_t *taken = s.dropped; /* entries of each list */
  const int signaller = (int)threadIdx.x - 32, signallers = THREADS - 32;
  ops_peer peer = {}; /* the first one that this thread signals */
  if (threadIdx.x == 0)
    s.next =
        (uint32_t)ops_chain_end(chain, tiles, ops_words(m.n, m.nranks, m.capacity)); /* sums kept */
  else if (signals && signaller >= 0 && signaller < m.nranks) {
    peer = ops_peer_of(m, s.rank[signaller]);
    ops_fence_system(); /* the sums: takes as long as the rest of this */
  }
  OPS_ROLLED
  for (int place = signaller; place >= 0 && place < m.nranks; place += signallers) {
    taken[place] = s.length[place] - (w.filters ? __ldcg(&all_dropped[place]) : 0);
    all_dropped[place] = 0;
  }
  __syncthreads();
  OPS_ROLLED
  for (int place = signaller; signals && place >= 0 && place < m.nranks; place += signallers) {
    if (place != signaller) peer = ops_peer_of(m, s.rank[place]);
    ops_signal_sums(m, peer, s.next, taken[place]); /* first: they are waiting */
  }
  OPS_ROLLED
  for (int place = signaller; ONESIDED && !late && place >= 0 && place < m.nranks;
       place += signallers) {
    const int p = s.rank[place];
    m.state->received_counts[p] = taken[place];
    if (p != m.rank) m.state->stored[p] += s.length[place];
  }
  if (threadIdx.x != 0) return;
  *to.counts = late ? 0 : s.next;
  ops_decide(then, &m);
}

} // namespace

extern "C" ncclResult_t ops_reduce(const struct sparse_memory *m, const struct sparse_pair *base,
                                   const uint64_t *displs, const uint64_t *counts, int first,
                                   int stride, const uint64_t *region, enum sparse_sums which,
                                   struct sparse_list to, enum sparse_decision then,
                                   cudaStream_t stream)
{
  return ops_launch(which == SPARSE_SUMS_ALL ? reduce<false, true> : reduce<false, false>,
                    ops_blocks(m->n, SMALL_TILE, BLOCKS), THREADS, OPS_NEXT, stream, *m, base,
                    displs, counts, first, stride, region, which, to, then);
}

/* All blocks have to run at once, in case that they choose. */
extern "C" ncclResult_t ops_reduce_sent(const struct sparse_memory *m, enum sparse_sums which,
                                        cudaStream_t stream)
{
  sparse_state *s = m->state;
  const sparse_list sums = {m->reduced, &s->reduced_count, 1};
  const int blocks = ops_at_once(sizeof(memory), BLOCKS);
  return ops_launch(
      reduce<true, false>, ops_blocks(m->n, SMALL_TILE, blocks), THREADS, OPS_NEXT, stream, *m,
      nullptr, nullptr, nullptr, m->rank, -1, s->boundaries + m->rank, which, sums,
      which == SPARSE_SUMS_NONZERO ? SPARSE_WANT_K_NEAR_THRESHOLD : SPARSE_THEN_NOTHING);
}

ncclResult_t ops_load_reduce(void)
{
  return ops_load_kernels(reduce<true, false>, reduce<false, false>, reduce<false, true>);
}
