/* SPDX-License-Identifier: Apache-2.0 */
/* The sum over a region: lists of all ranks become one, in a fixed order of additions and without
 * the dense region in memory.
 *
 * A block takes 8192 indices at a time. It finds where they begin in every list, adds the lists'
 * values to sums in shared memory, one list after the other with a barrier in between (within a
 * list no index comes twice, so no two threads add to the same sum), and gathers the sums to keep.
 * A bit for each index says whether it has a sum yet: the sums need not be cleared, and the work is
 * that for the entries, not for the region. */
#include "ops_device.cuh"

namespace
{

enum {
  THREADS = 256,
  WARPS = THREADS / 32,
  TILE = OPS_DENSE_TILE,
  AHEAD = 4,  /* lists whose entries are loaded before the first is added */
  BLOCKS = 6, /* per multiprocessor: as many as their shared memory allows */
};
static_assert((int)TILE == THREADS * 32, "a thread has a word of the bits");

struct shared {
  /* What is left of each list from the tile's begin on, by place in the order of additions. */
  const sparse_pair *rest[SPARSE_MAX_RANKS];
  uint32_t length[SPARSE_MAX_RANKS];
  float sums[TILE];
  uint32_t touched[THREADS];
  uint64_t partial[WARPS];
  uint32_t counts[WARPS];
  uint32_t next; /* tile */
};

struct job {
  const sparse_pair *base;
  const uint64_t *displs, *counts;
  int lists, first, stride;
  uint64_t begin, end; /* of the region */
};

__device__ inline int list_at(const job &w, int place)
{
  const int p = (w.first + w.stride * place) % w.lists;
  return p < 0 ? p + w.lists : p;
}

/* Where a tile begins in all lists; a warp for each of them. */
__device__ inline void find_begins(const job &w, shared &s, uint32_t tile)
{
  const uint64_t key = w.begin + (uint64_t)tile * TILE;
  for (int place = (int)threadIdx.x / 32; place < w.lists; place += WARPS) {
    const int p = list_at(w, place);
    const sparse_pair *list = w.base + w.displs[p];
    const uint32_t count = (uint32_t)w.counts[p], at = ops_lower_bound(list, 0, count, key);
    if (threadIdx.x % 32 != 0) continue;
    s.rest[place] = list + at;
    s.length[place] = count - at;
  }
}

__device__ inline void add(shared &s, uint32_t at, float value)
{
  const uint32_t bit = 1u << at % 32;
  const bool has_sum = atomicOr(&s.touched[at / 32], bit) & bit;
  s.sums[at] = __fadd_rn(has_sum ? s.sums[at] : 0.0f, value);
}

__device__ inline uint2 entry_at(const shared &s, int place, uint32_t i)
{
  return i < s.length[place] ? __ldg((const uint2 *)s.rest[place] + i)
                             : make_uint2(SPARSE_NO_INDEX, 0); /* beyond all regions */
}

/* All sums of the tile. Ends with a barrier. */
__device__ inline void add_lists(const job &w, shared &s, uint64_t begin, uint64_t end)
{
  for (int group = 0; group < w.lists; group += AHEAD) {
    uint2 entry[AHEAD];
#pragma unroll
    for (int a = 0; a < AHEAD; a++)
      if (group + a < w.lists) entry[a] = entry_at(s, group + a, threadIdx.x);
#pragma unroll
    for (int a = 0; a < AHEAD; a++) {
      if (group + a >= w.lists) break;
      for (uint32_t i = threadIdx.x;; entry[a] = entry_at(s, group + a, i += THREADS)) {
        const bool inside = entry[a].x < end;
        if (inside) add(s, (uint32_t)(entry[a].x - begin), __uint_as_float(entry[a].y));
        if (!__syncthreads_or(threadIdx.x == THREADS - 1 && inside)) break;
      }
    }
  }
}

__global__ void __launch_bounds__(THREADS, BLOCKS)
    reduce(const __grid_constant__ sparse_memory m, const sparse_pair *base, const uint64_t *displs,
           const uint64_t *counts, int first, int stride, const uint64_t *region,
           enum sparse_sums which, const __grid_constant__ sparse_list to, enum sparse_control then)
{
  __shared__ shared s;
  const job w = {base, displs, counts, m.nranks, first, stride, region[0], region[1]};
  const uint32_t tiles = w.end > w.begin ? (uint32_t)((w.end - w.begin + TILE - 1) / TILE) : 0;
  const float threshold = (float)m.state->global_threshold;
  const uint32_t warp = threadIdx.x / 32;
  ops_chain chain = ops_chain_begin(m);
  s.touched[threadIdx.x] = 0;
  if (threadIdx.x == 0) s.next = ops_chain_draw(chain);
  __syncthreads();
  uint32_t tile = s.next;
  if (tile < tiles) find_begins(w, s, tile);
  while (tile < tiles) {
    const uint64_t begin = w.begin + (uint64_t)tile * TILE;
    const uint64_t end = begin + TILE < w.end ? begin + TILE : w.end;
    __syncthreads(); /* the lists' rests are there; all have read s.next */
    uint32_t drawn = 0;
    if (threadIdx.x == 0) drawn = ops_chain_draw(chain);
    add_lists(w, s, begin, end);

    uint32_t keep = s.touched[threadIdx.x];
    s.touched[threadIdx.x] = 0;
    for (uint32_t bits = keep; bits != 0; bits &= bits - 1) {
      const int bit = __ffs((int)bits) - 1;
      const float sum = s.sums[threadIdx.x * 32 + bit];
      const bool wanted = which == SPARSE_SUMS_NONZERO ? sum != 0 : fabsf(sum) > threshold;
      if (!wanted) keep &= ~(1u << bit);
    }
    const uint32_t mine = (uint32_t)__popc(keep), through = ops_warp_scan(mine);
    if (threadIdx.x % 32 == 31) s.counts[warp] = through;
    if (threadIdx.x == 0) s.next = drawn;
    __syncthreads();
    const uint32_t next = s.next;
    uint32_t before = through - mine, in_tile = 0;
#pragma unroll
    for (uint32_t v = 0; v < WARPS; v++) {
      if (v < warp) before += s.counts[v];
      in_tile += s.counts[v];
    }
    if (threadIdx.x == 0) ops_chain_publish(chain, tile, in_tile, 0);
    if (next < tiles) find_begins(w, s, next); /* while other blocks publish */
    sparse_pair *at = to.pairs + ops_chain_before(chain, tile, s.partial) + before;
    ops_chain_advance(chain, tile, tiles, in_tile, 0);
    for (; keep != 0; keep &= keep - 1) {
      const uint32_t i = threadIdx.x * 32 + (uint32_t)__ffs((int)keep) - 1;
      *(uint2 *)at++ = make_uint2((uint32_t)begin + i, __float_as_uint(s.sums[i]));
    }
    tile = next;
  }
  if (!ops_last_block(chain.scratch) || threadIdx.x != 0) return;
  *to.counts = ops_chain_end(chain, tiles, ops_words(m.n, m.nranks, m.capacity)) & 0xffffffffu;
  ops_decide(then, &m);
}

} // namespace

extern "C" ncclResult_t ops_reduce(const struct sparse_memory *m, const struct sparse_pair *base,
                                   const uint64_t *displs, const uint64_t *counts, int first,
                                   int stride, const uint64_t *region, enum sparse_sums which,
                                   struct sparse_list to, enum sparse_control then,
                                   cudaStream_t stream)
{
  return ops_launch(reduce, ops_blocks(m->n, TILE, BLOCKS), THREADS, false, stream, *m, base,
                    displs, counts, first, stride, region, which, to, then);
}

ncclResult_t ops_load_reduce(void)
{
  return ops_load_kernels(reduce);
}
