/* SPDX-License-Identifier: Apache-2.0 */
/* The sum over a region: lists of all ranks become one, in a fixed order of additions and without
 * the dense region in memory.
 *
 * A block takes a tile of indices at a time, finds where it begins in every list, and adds the
 * lists' values to sums in shared memory, one list after the other with a barrier in between
 * (within a list no index comes twice, so no two threads add to the same sum). A bit for each index
 * says whether it occurs. The sums to keep are gathered in the order of the chain.
 * reduce_tiles.cuh has the two kinds of tiles.
 *
 * ONESIDED: ranks store their lists here, and flags say when they are there, and all else that is
 * needed. So this begins early. */
#include "device/chain.cuh"
#include "kernels/reduce_tiles.cuh"
#include "kernels/selection.cuh"

namespace
{

/* One-sided: what a rank needs that has more candidates than its list holds. */
struct choosing {
  selection_shared selection;
  uint32_t begins[SPARSE_MAX_RANKS + 1]; /* of regions */
};

union memory {
  choosing choose; /* before all else */
  shared reduce;
  char place[OPS_PLACE_BYTES]; /* for a block of apply */
};
static_assert(sizeof(memory) >= OPS_PLACE_BYTES, "a block of apply fits in its place");
static_assert((int)THREADS >= (int)OPS_SELECTING_LEAST && (int)THREADS <= (int)OPS_SELECTING_MOST,
              "there is room");

/* If it is that which keeps this rank from having all lists: sends what it chooses and signals all
 * ranks. All blocks do this, since before it none of them can have all lists. Not inlined: hardly
 * ever needed. */
__device__ __noinline__ bool choose_and_offer(const sparse_memory &m, choosing &s)
{
  sparse_state *state = m.state;
  ops_scratch *scratch = (ops_scratch *)m.scratch;
  const sparse_list offered = sparse_offered(&m);
  ops_begin(); /* the state is as the local pass leaves it */
  ops_fence();
  if (!state->unsent) return false;
  search_and_keep<sparse_offered_found>(m, s.selection, offered, offered, &state->selection);
  ops_grid_sync(scratch, [] {});
  ops_store_at_owners(m, s.begins);
  if (blockIdx.x == 0 && threadIdx.x == 0) state->unsent = 0;
  ops_grid_sync(scratch, [] {});
  return true;
}

/* What the kernel is launched with for an enum sparse_order. */
struct order {
  enum sparse_order from;
  const uint64_t *displs; /* of the lists, */
  const uint64_t *region; /* and between which indices they are added: */
  int first, stride;      /* first the list of rank `first`, then that of first + stride, ... */
};

order order_of(const sparse_memory *m, enum sparse_order from)
{
  sparse_state *s = m->state;
  if (from == SPARSE_FROM_RANK_0) return {from, s->received_displs, s->fixed.whole, 0, 1};
  return {from, s->fixed.list_displs, s->kept.boundaries + m->rank, m->rank, -1};
}

/* Where the lists are, and above which level their entries count; false if one does not come. */
template <bool ONESIDED>
__device__ inline bool find_lists(const sparse_memory &m, memory &all, const sparse_pair *base,
                                  const uint64_t *displs)
{
  shared &s = all.reduce;
  bool there = true;
  if (ONESIDED) {
    do there = ops_await_lists(m, s.lists, s.levels);
    while (!there && choose_and_offer(m, all.choose));
  }
  OPS_ROLLED
  for (int p = (int)threadIdx.x; !ONESIDED && p < m.nranks; p += THREADS) {
    s.lists.pairs[p] = base + displs[p];
    s.lists.counts[p] = (uint32_t)m.state->received_counts[p];
    s.levels[p] = OPS_ALL_LEVELS;
  }
  __syncthreads();
  return there;
}

/* The last block: s.next becomes the number of sums. One-sided, all but the first warp signal other
 * ranks; what they need is asked for first. */
template <bool ONESIDED>
__device__ inline void finish(const sparse_memory &m, shared &s, const ops_chain &chain,
                              uint32_t tiles, bool announces)
{
  const bool late = ONESIDED && ops_late(m);
  const bool signals = announces && !late;
  const int signaller = (int)threadIdx.x - 32;
  uint32_t *all_dropped = chain.scratch->dropped;
  ops_peer peer = {};
  uint32_t dropped = 0;
  if (threadIdx.x == 0) {
    const size_t words = ops_words(m.n, m.nranks, m.capacity);
    s.next = (uint32_t)ops_chain_end(chain, tiles, words);
  } else if (ONESIDED && signaller >= 0 && signaller < m.nranks) {
    peer = ops_peer_of(m, signaller);
    dropped = __ldcg(&all_dropped[signaller]);
    if (signals) ops_fence_system(); /* the sums: takes as long as the rest of this */
  }
  __syncthreads();
  OPS_ROLLED
  for (int p = signaller; ONESIDED && p >= 0 && p < m.nranks; p += THREADS - 32) {
    if (p != signaller) {
      peer = ops_peer_of(m, p);
      dropped = __ldcg(&all_dropped[p]);
    }
    const uint32_t taken = s.lists.counts[p] - dropped;
    if (signals) ops_signal_sums(m, peer, s.next, taken); /* first: they are waiting */
    all_dropped[p] = 0;
    if (late) continue;
    m.state->received_counts[p] = taken;
    if (p != m.rank) m.state->progress.stored[p] += s.lists.counts[p];
  }
}

template <bool ONESIDED>
__global__ void OPS_BOUNDS(THREADS, BLOCKS)
    reduce(const __grid_constant__ sparse_memory m, const sparse_pair *base,
           const __grid_constant__ order how, enum sparse_sums which,
           const __grid_constant__ sparse_list to)
{
  if (!ONESIDED) ops_begin();
  ops_let_next_begin();
  const bool above = which == SPARSE_SUMS_ABOVE;
  /* Other sums are not those of the result: choose_sent() chooses from them, and says where. */
  const bool announces = ONESIDED && above;
  __shared__ memory all;
  shared &s = all.reduce;
  /* Everything that is not about the lists is asked for before the wait for them. */
  job w = {m.nranks, how.first, how.stride, how.region[0], how.region[1]};
  if (which == SPARSE_SUMS_NONZERO) w.level = 0;
  if (above) {
    w.level = sparse_level(m.state->kept.global_threshold);
    w.limit = SPARSE_INFINITY_LEVEL;
  }
  const bool there = find_lists<ONESIDED>(m, all, base, how.displs);
  ops_chain chain = ops_chain_begin(m);
  if (threadIdx.x == 0) s.next = ops_chain_draw(chain);
  for (uint32_t v = 0; v < WORDS; v++) s.occurs[threadIdx.x + v * THREADS] = 0;
  for (int p = (int)threadIdx.x; p < m.nranks; p += THREADS) s.dropped[p] = 0;
  choose_tile_size(w, s);
  const uint32_t tiles = w.end > w.begin ? (uint32_t)(w.end - w.begin - 1) / w.tile_size + 1 : 0;
  __syncthreads();
  uint32_t tile = s.next;
  /* A block that has timed out has nothing to add, nor does it know how many tiles there are; but
   * no other block is going to publish this one. */
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

    const uint32_t entries = w.large ? lay_out(w, s) : 0;
    const bool large = w.large && entries <= ROOM, in_parts = entries > ROOM;
    uint32_t keep = 0, kept = 0; /* of this thread: bits, and how many if in order of threads */
    if (large)
      keep = select_of_large(w, s, add_to_large(w, s, begin, entries));
    else
      for (uint64_t from = begin; from < end; from += SMALL_TILE) {
        kept += (uint32_t)__popc(keep = add_part(w, s, from, end, false));
        if (in_parts) next_part(w, s, from);
      }
    if (threadIdx.x == 0) s.next = drawn;
    uint32_t before = 0, before_rounds[2] = {}, in_tile;
    unit_begin mine = {};
    if (large) {
      __syncthreads();
      in_tile = place_rounds(s, before_rounds);
      if (threadIdx.x >= THREADS - 32) mine = find_unit(s, begin, end, before_rounds);
    } else {
      before = place_words(s, kept, &in_tile);
    }
    const uint32_t next = s.next;
    if (threadIdx.x == 0) ops_chain_publish(chain, tile, in_tile, 0);
    const uint32_t soon = in_parts ? tile : next;
    if (soon < tiles) find_tile(w, s, soon); /* while other blocks publish */
    uint32_t place = (uint32_t)ops_chain_before(chain, tile, s.partial); /* of the tile's sums */
    ops_chain_advance(chain, tile, tiles, in_tile, 0);

    if (large) {
      if (mine.any && announces) m.unit_begins[mine.unit] = place + mine.at;
      write_large(s, keep, before_rounds, to.pairs + place);
      for (uint32_t v = 0; v < WORDS; v++) s.occurs[threadIdx.x + v * THREADS] = 0;
    } else {
      for (uint64_t from = begin; from < end; from += SMALL_TILE) {
        if (in_parts) { /* the sums once more */
          keep = add_part(w, s, from, end, true);
          before = place_words(s, (uint32_t)__popc(keep), &in_tile);
        }
        if (announces) note_unit(m.unit_begins, from, end, keep, place + before);
        write_small(s, from, keep, to.pairs + place + before);
        place += in_tile;
        next_part(w, s, from);
      }
      if (in_parts && next < tiles) find_tile(w, s, next);
    }
    tile = next;
  }
  if (ONESIDED)
    ops_begin(); /* whoever waits for this kernel's end waits for those before it, too */
  __syncthreads();
  OPS_ROLLED
  for (int p = (int)threadIdx.x; ONESIDED && p < m.nranks; p += THREADS)
    if (s.dropped[p] > 0) atomicAdd(&chain.scratch->dropped[p], s.dropped[p]);
  if (!ops_last_block(chain.scratch)) return;
  finish<ONESIDED>(m, s, chain, tiles, announces);
  if (threadIdx.x != 0) return;
  *to.counts = ONESIDED && ops_late(m) ? 0 : s.next;
  if (ONESIDED && which == SPARSE_SUMS_NONZERO) ops_decide<sparse_want_k_near_threshold>(&m);
  if (!ONESIDED && how.from == SPARSE_FROM_OWNER) ops_decide<sparse_send_reduced>(&m);
}

} // namespace

extern "C" {

ncclResult_t ops_reduce(const struct sparse_memory *m, const struct sparse_pair *lists,
                        enum sparse_order from, enum sparse_sums which, struct sparse_list to,
                        cudaStream_t stream)
{
  return ops_launch(reduce<false>, ops_blocks(m->n, SMALL_TILE, BLOCKS), THREADS, OPS_NEXT, stream,
                    *m, lists, order_of(m, from), which, to);
}

} // extern "C"

/* All blocks have to run at once, in case that they choose. */
ncclResult_t ops_reduce_sent(const sparse_memory *m, enum sparse_sums which, cudaStream_t stream)
{
  const int blocks = ops_at_once(sizeof(memory), BLOCKS);
  return ops_launch(reduce<true>, ops_blocks(m->n, SMALL_TILE, blocks), THREADS, OPS_NEXT, stream,
                    *m, nullptr, order_of(m, SPARSE_FROM_OWNER), which, sparse_reduced(m));
}

static const ops_load_kernels load(reduce<true>, reduce<false>);
