/* SPDX-License-Identifier: Apache-2.0 */
/* The sum over a region: lists of all ranks become one, in a fixed order of additions and without
 * the dense region in memory.
 *
 * A block takes a tile of indices at a time, finds where it begins in every list, and adds the
 * lists' values to sums in shared memory, one list after the other with a barrier in between
 * (within a list no index comes twice, so no two threads add to the same sum). A bit for each index
 * says whether it occurs. The sums to keep are gathered in the order of the chain.
 * ops_reduce_tiles.cuh has the two kinds of tiles. */
#include "ops_chain.cuh"
#include "ops_reduce_tiles.cuh"

namespace
{

__global__ void OPS_BOUNDS(THREADS, BLOCKS)
    reduce(const __grid_constant__ sparse_memory m, const sparse_pair *base, const uint64_t *displs,
           const uint64_t *counts, int first, int stride, const uint64_t *region,
           enum sparse_sums which, const __grid_constant__ sparse_list to, enum sparse_control then)
{
  __shared__ shared s;
  __shared__ ops_lists lists;
  if (base == NULL) {
    ops_await_lists(m, lists);
  } else {
    for (int p = (int)threadIdx.x; p < m.nranks; p += THREADS) {
      lists.pairs[p] = base + displs[p];
      lists.counts[p] = (uint32_t)counts[p];
    }
  }
  __syncthreads();
  job w = {lists,     m.nranks,  first, stride, which, (float)m.state->global_threshold,
           region[0], region[1], false, 0};
  ops_chain chain = ops_chain_begin(m);
  if (threadIdx.x == 0) s.next = ops_chain_draw(chain);
  choose_tile_size(w);
  uint32_t *occurs = w.large ? &s.large.occurs[threadIdx.x * WORDS] : &s.small.occurs[threadIdx.x];
  const uint32_t words = w.large ? WORDS : 1, mine = threadIdx.x * words; /* of this thread */
  for (uint32_t v = 0; v < words; v++) occurs[v] = 0;
  const uint32_t tiles =
      w.end > w.begin ? (uint32_t)((w.end - w.begin + w.tile_size - 1) / w.tile_size) : 0;
  __syncthreads();
  uint32_t tile = s.next;
  if (tile < tiles) find_begins(w, s, tile);
  while (tile < tiles) {
    const uint64_t begin = w.begin + (uint64_t)tile * w.tile_size;
    const uint64_t end = begin + w.tile_size < w.end ? begin + w.tile_size : w.end;
    __syncthreads(); /* the lists' rests are there, no bit is set; all have read s.next */
    uint32_t drawn = 0;
    if (threadIdx.x == 0) drawn = ops_chain_draw(chain);

    const uint32_t all = w.tile_size / 32;
    uint32_t part = all; /* words that are done at a time */
    uint32_t keep[WORDS] = {}, kept = 0;
    if (!w.large) {
      add_to_small(w, s, begin, end);
      kept = (uint32_t)__popc(keep[0] = select_of_small(w, s));
    } else {
      mark(w, s, begin, end);
      if (rank_bits(s) > SUMS) part = SUMS / 32;
      for (uint32_t from = 0; from < all; from += part) {
        add_to_large(w, s, begin, end, from, from + part);
#pragma unroll
        for (uint32_t v = 0; v < WORDS; v++)
          if (mine + v >= from && mine + v < from + part)
            kept += (uint32_t)__popc(keep[v] = select_of_large(w, s, mine + v, from));
      }
    }
    const bool again = part < all; /* the sums are to be made again for writing */
    const uint32_t through = ops_warp_scan(kept);
    if (threadIdx.x % 32 == 31) s.counts[threadIdx.x / 32] = through;
    if (threadIdx.x == 0) s.next = drawn;
    __syncthreads();
    const uint32_t next = s.next;
    uint32_t before;
    const uint32_t in_tile = ops_block_sum(s.counts, WARPS, &before);
    if (threadIdx.x == 0) ops_chain_publish(chain, tile, in_tile, 0);
    if (!again && next < tiles) find_begins(w, s, next); /* while other blocks publish */
    sparse_pair *at = to.pairs + ops_chain_before(chain, tile, s.partial) + before + through - kept;
    ops_chain_advance(chain, tile, tiles, in_tile, 0);

    if (!w.large) {
      write_small(s, begin, keep[0], at);
    } else {
      for (uint32_t from = 0; from < all; from += part) {
        if (again) add_to_large(w, s, begin, end, from, from + part);
#pragma unroll
        for (uint32_t v = 0; v < WORDS; v++)
          if (mine + v >= from && mine + v < from + part)
            at = write_large(s, begin, mine + v, from, keep[v], at);
      }
    }
    if (again) {
      __syncthreads(); /* the lists' rests are no longer needed */
      if (next < tiles) find_begins(w, s, next);
    }
    for (uint32_t v = 0; v < words; v++) occurs[v] = 0;
    tile = next;
  }
  if (!ops_last_block(chain.scratch)) return;
  if (threadIdx.x == 0) {
    *to.counts = ops_chain_end(chain, tiles, ops_words(m.n, m.nranks, m.capacity)) & 0xffffffffu;
    ops_decide(then, &m);
  }
  if (base != NULL) return;
  for (int p = (int)threadIdx.x; p < m.nranks; p += THREADS)
    m.state->received_counts[p] = lists.counts[p];
  __syncthreads();
  ops_tell_sums(m);
}

} // namespace

extern "C" ncclResult_t ops_reduce(const struct sparse_memory *m, const struct sparse_pair *base,
                                   const uint64_t *displs, const uint64_t *counts, int first,
                                   int stride, const uint64_t *region, enum sparse_sums which,
                                   struct sparse_list to, enum sparse_control then,
                                   cudaStream_t stream)
{
  return ops_launch(reduce, ops_blocks(m->n, SMALL_TILE, BLOCKS), THREADS, false, stream, *m, base,
                    displs, counts, first, stride, region, which, to, then);
}

ncclResult_t ops_load_reduce(void)
{
  return ops_load_kernels(reduce);
}
