/* SPDX-License-Identifier: Apache-2.0 */
/* Two lists become one. The merged sequence, in which equal indices are neighbours (that of the
 * first list before that of the second), is cut into tiles. A search along a diagonal says which
 * part of each list belongs to a tile; within it an entry's place is its own rank plus its rank in
 * the other list. Neighbours with the same index are added, and what is left is compacted. */
#include "device/ops_chain.cuh"

namespace
{

enum {
  THREADS = 256,
  WARPS = THREADS / 32,
  TILE = 1024,
  EACH = TILE / THREADS,
  WITH_NEIGHBOURS = TILE + 2, /* an entry of the tile may be equal to the one before or after */
  BLOCKS = 6,
};
static_assert((int)TILE >= (int)OPS_LIST_TILE, "there is a word for each tile");

struct shared {
  sparse_pair parts[WITH_NEIGHBOURS], merged[WITH_NEIGHBOURS];
  uint32_t partial[WARPS];
  uint64_t from_a[2]; /* of the merged entries up to begin and end, those of the first list */
  uint32_t counts[WARPS];
  uint32_t tile;
};

/* How many of the first `d` merged entries come from the first list. */
__device__ inline uint64_t diagonal(const sparse_list &a, uint64_t na, const sparse_list &b,
                                    uint64_t nb, uint64_t d)
{
  uint64_t low = d > nb ? d - nb : 0, high = d < na ? d : na;
  while (low < high) {
    const uint64_t middle = (low + high) / 2;
    if (__ldg(&a.pairs[middle].index) <= __ldg(&b.pairs[d - 1 - middle].index))
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* Entries of a sorted part whose index is below `index`, or not above it. */
__device__ inline uint32_t rank_in(const sparse_pair *part, uint32_t count, uint32_t index,
                                   bool or_equal)
{
  uint32_t low = 0, high = count;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (part[middle].index < index || (or_equal && part[middle].index == index))
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

__global__ void OPS_BOUNDS(THREADS, BLOCKS)
    merge(const __grid_constant__ sparse_memory m, const __grid_constant__ sparse_list a,
          const __grid_constant__ sparse_list b, const __grid_constant__ sparse_list to)
{
  ops_begin();
  __shared__ shared s;
  const uint64_t na = ops_list_count(a), nb = ops_list_count(b), all = na + nb;
  const uint32_t tiles = (uint32_t)((all + TILE - 1) / TILE), warp = threadIdx.x / 32;
  ops_chain chain = ops_chain_begin(m);
  for (;;) {
    if (threadIdx.x == 0) s.tile = ops_chain_draw(chain);
    __syncthreads();
    const uint32_t tile = s.tile;
    if (tile >= tiles) break;
    const uint64_t first = (uint64_t)tile * TILE, last = first + TILE < all ? first + TILE : all;
    const uint64_t begin = first > 0 ? first - 1 : 0, end = last < all ? last + 1 : all;
    if (threadIdx.x < 2) s.from_a[threadIdx.x] = diagonal(a, na, b, nb, threadIdx.x ? end : begin);
    __syncthreads();
    const uint32_t length = (uint32_t)(end - begin),
                   length_a = (uint32_t)(s.from_a[1] - s.from_a[0]);
    const sparse_pair *part_a = a.pairs + s.from_a[0], *part_b = b.pairs + (begin - s.from_a[0]);
    for (uint32_t i = threadIdx.x; i < length; i += THREADS)
      *(uint2 *)&s.parts[i] =
          __ldg((const uint2 *)(i < length_a ? part_a + i : part_b + (i - length_a)));
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < length; i += THREADS) {
      const bool of_a = i < length_a;
      const sparse_pair entry = s.parts[i];
      const uint32_t others = rank_in(of_a ? s.parts + length_a : s.parts,
                                      of_a ? length - length_a : length_a, entry.index, !of_a);
      s.merged[(of_a ? i : i - length_a) + others] = entry;
    }
    __syncthreads();
    sparse_pair kept[EACH];
    uint32_t mine = 0;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      const uint64_t at = first + threadIdx.x * EACH + e;
      const uint32_t i = (uint32_t)(at - begin);
      if (at >= last || (i > 0 && s.merged[i - 1].index == s.merged[i].index)) continue;
      sparse_pair entry = s.merged[i];
      if (i + 1 < length && s.merged[i + 1].index == entry.index)
        entry.value = __fadd_rn(entry.value, s.merged[i + 1].value);
        /* kept[mine++], with indices that the compiler knows */
#pragma unroll
      for (int k = 0; k <= e; k++)
        if (k == (int)mine) kept[k] = entry;
      mine++;
    }
    const uint32_t through = ops_warp_scan(mine);
    if (threadIdx.x % 32 == 31) s.counts[warp] = through;
    __syncthreads();
    uint32_t before = through - mine, in_tile = 0;
    for (uint32_t v = 0; v < WARPS; v++) {
      if (v < warp) before += s.counts[v];
      in_tile += s.counts[v];
    }
    if (threadIdx.x == 0) ops_chain_publish(chain, tile, in_tile, 0);
    sparse_pair *at = to.pairs + ops_chain_before(chain, tile, s.partial) + before;
    ops_chain_advance(chain, tile, tiles, in_tile, 0);
#pragma unroll
    for (int e = 0; e < EACH; e++)
      if (e < (int)mine) *(uint2 *)(at + e) = *(const uint2 *)&kept[e];
  }
  if (!ops_last_block(chain.scratch) || threadIdx.x != 0) return;
  *to.counts = ops_chain_end(chain, tiles, ops_words(m.n, m.nranks, m.capacity)) & 0xffffffffu;
}

} // namespace

extern "C" ncclResult_t ops_merge(const struct sparse_memory *m, struct sparse_list a,
                                  struct sparse_list b, struct sparse_list to, cudaStream_t stream)
{
  return ops_launch(merge, ops_blocks(2 * (m->capacity + 1), TILE, BLOCKS), THREADS, OPS_NEXT,
                    stream, *m, a, b, to);
}

ncclResult_t ops_load_merge(void)
{
  return ops_load_kernels(merge);
}
