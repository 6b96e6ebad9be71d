/* SPDX-License-Identifier: Apache-2.0 */
/* The tiles of a reduction: where they begin in the lists, adding, selecting, writing.
 *
 * There are two ways to store sums. A small tile has one for each index. Where that gives many
 * tiles and few entries in each, tiles are four times as large: first the bits of all indices that
 * occur are set, then the number of bits before an index is the place of its sum. A tile with more
 * indices than there is room for sums is done in parts, twice: to count and to write. */
#ifndef OPS_REDUCE_TILES_CUH
#define OPS_REDUCE_TILES_CUH

#include "ops_notes.cuh"

namespace
{

enum {
  THREADS = 256,
  WARPS = THREADS / 32,
  SMALL_TILE = OPS_DENSE_TILE, /* indices */
  WORDS = 4,                   /* of bits in a large tile that a thread has */
  LARGE_TILE = THREADS * WORDS * 32,
  SUMS = 4096,  /* that a large tile has room for, and indices of a part of it */
  USUAL = 1536, /* entries of a large tile at most, on average */
  AHEAD = 4,    /* lists whose entries are on their way at the same time */
  BLOCKS = 5,   /* per multiprocessor */
};
static_assert((int)SMALL_TILE == THREADS * 32, "in a small tile a thread has one word");

struct shared {
  union {
    struct {
      float sums[SMALL_TILE];
      uint32_t occurs[THREADS];
    } small;
    struct {
      float sums[SUMS];
      uint32_t occurs[THREADS * WORDS];
      uint16_t before[THREADS * WORDS]; /* bits in the words before */
    } large;
  };
  /* What is left of each list from the tile's begin on, by place in the order of additions. */
  const sparse_pair *rest[SPARSE_MAX_RANKS];
  uint32_t length[SPARSE_MAX_RANKS];
  uint32_t partial[WARPS], counts[WARPS];
  uint32_t next; /* tile */
};

struct job {
  const ops_lists &from;
  int lists, first, stride;
  enum sparse_sums which;
  float threshold;
  uint64_t begin, end; /* of the region */
  bool large;          /* tiles */
  uint32_t tile_size;
};

__device__ inline void choose_tile_size(job &w)
{
  const uint64_t size = w.end > w.begin ? w.end - w.begin : 0;
  uint64_t entries = 0;
  for (int p = (int)threadIdx.x % 32; p < w.lists; p += 32) entries += w.from.counts[p];
  entries = ops_warp_sum(entries);
  w.large = LARGE_TILE * entries <= USUAL * size && (uint64_t)LARGE_TILE / 2 * gridDim.x <= size;
  w.tile_size = w.large ? LARGE_TILE : SMALL_TILE;
}

__device__ inline int list_at(const job &w, int place)
{
  const int p = (w.first + w.stride * place) % w.lists;
  return p < 0 ? p + w.lists : p;
}

/* Where a tile begins in all lists; a warp for each of them. */
__device__ inline void find_begins(const job &w, shared &s, uint32_t tile)
{
  const uint64_t key = w.begin + (uint64_t)tile * w.tile_size;
  for (int place = (int)threadIdx.x / 32; place < w.lists; place += WARPS) {
    const int p = list_at(w, place);
    const sparse_pair *list = w.from.pairs[p];
    const uint32_t count = w.from.counts[p], at = ops_lower_bound(list, 0, count, key);
    if (threadIdx.x % 32 != 0) continue;
    s.rest[place] = list + at;
    s.length[place] = count - at;
  }
}

__device__ inline uint2 entry_at(const shared &s, int place, uint32_t i)
{
  return i < s.length[place] ? *((const uint2 *)s.rest[place] + i)
                             : make_uint2(SPARSE_NO_INDEX, 0); /* beyond all regions */
}

/* ---- small tiles --------------------------------------------------------------------------- */

/* Sums need not be cleared: the first of an index starts at 0. Ends with a barrier. */
__device__ inline void add_to_small(const job &w, shared &s, uint64_t begin, uint64_t end)
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
        if (inside) {
          const uint32_t at = (uint32_t)(entry[a].x - begin), bit = 1u << at % 32;
          const bool has_sum = atomicOr(&s.small.occurs[at / 32], bit) & bit;
          s.small.sums[at] =
              __fadd_rn(has_sum ? s.small.sums[at] : 0.0f, __uint_as_float(entry[a].y));
        }
        if (!__syncthreads_or(threadIdx.x == THREADS - 1 && inside)) break;
      }
    }
  }
}

__device__ inline bool is_kept(const job &w, float sum)
{
  return w.which == SPARSE_SUMS_NONZERO ? sum != 0 : fabsf(sum) > w.threshold;
}

__device__ inline uint32_t select_of_small(const job &w, const shared &s)
{
  uint32_t keep = s.small.occurs[threadIdx.x];
  for (uint32_t bits = keep; bits != 0; bits &= bits - 1)
    if (!is_kept(w, s.small.sums[threadIdx.x * 32 + (uint32_t)__ffs((int)bits) - 1]))
      keep &= ~(bits & (0 - bits));
  return keep;
}

__device__ inline void write_small(const shared &s, uint64_t begin, uint32_t keep, sparse_pair *to)
{
  for (; keep != 0; keep &= keep - 1) {
    const uint32_t i = threadIdx.x * 32 + (uint32_t)__ffs((int)keep) - 1;
    *(uint2 *)to++ = make_uint2((uint32_t)begin + i, __float_as_uint(s.small.sums[i]));
  }
}

/* ---- large tiles --------------------------------------------------------------------------- */

/* Sets the bits of all indices of the tile. */
__device__ inline void mark(const job &w, shared &s, uint64_t begin, uint64_t end)
{
  for (int group = 0; group < w.lists; group += AHEAD) {
    uint32_t index[AHEAD];
#pragma unroll
    for (int a = 0; a < AHEAD; a++)
      index[a] = group + a < w.lists ? entry_at(s, group + a, threadIdx.x).x : SPARSE_NO_INDEX;
#pragma unroll
    for (int a = 0; a < AHEAD; a++)
      for (uint32_t i = threadIdx.x; index[a] < end; index[a] = entry_at(s, group + a, i).x) {
        const uint32_t at = (uint32_t)(index[a] - begin);
        atomicOr(&s.large.occurs[at / 32], 1u << at % 32);
        i += THREADS;
      }
  }
  __syncthreads();
}

/* Counts the bits before each word; returns how many there are. */
__device__ inline uint32_t rank_bits(shared &s)
{
  const uint32_t *occurs = &s.large.occurs[threadIdx.x * WORDS];
  uint32_t mine = 0, before;
#pragma unroll
  for (int v = 0; v < WORDS; v++) mine += (uint32_t)__popc(occurs[v]);
  const uint32_t through = ops_warp_scan(mine);
  if (threadIdx.x % 32 == 31) s.counts[threadIdx.x / 32] = through;
  __syncthreads();
  const uint32_t all = ops_block_sum(s.counts, WARPS, &before);
  before += through - mine;
#pragma unroll
  for (int v = 0; v < WORDS; v++) {
    s.large.before[threadIdx.x * WORDS + v] = (uint16_t)before;
    before += (uint32_t)__popc(occurs[v]);
  }
  return all;
}

/* All sums of the words from `first` up to `last`. Begins and ends with a barrier. */
__device__ inline void add_to_large(const job &w, shared &s, uint64_t begin, uint64_t end,
                                    uint32_t first, uint32_t last)
{
  __syncthreads();
  const uint32_t skipped = s.large.before[first];
  for (uint32_t i = threadIdx.x; i < SUMS; i += THREADS) s.large.sums[i] = 0;
  __syncthreads();
  for (int place = 0; place < w.lists; place++) {
    for (uint32_t i = threadIdx.x;; i += THREADS) {
      const uint2 entry = entry_at(s, place, i);
      if (entry.x >= end) break;
      const uint32_t at = (uint32_t)(entry.x - begin), word = at / 32;
      if (word < first || word >= last) continue;
      const uint32_t lower = s.large.occurs[word] & ((1u << at % 32) - 1);
      float *sum = &s.large.sums[s.large.before[word] - skipped + (uint32_t)__popc(lower)];
      *sum = __fadd_rn(*sum, __uint_as_float(entry.y));
    }
    __syncthreads();
  }
}

/* The bits of a word whose sums are to be kept. */
__device__ inline uint32_t select_of_large(const job &w, const shared &s, uint32_t word,
                                           uint32_t first)
{
  const float *sum = &s.large.sums[s.large.before[word] - s.large.before[first]];
  uint32_t keep = 0;
  for (uint32_t bits = s.large.occurs[word]; bits != 0; bits &= bits - 1)
    if (is_kept(w, *sum++)) keep |= bits & (0 - bits);
  return keep;
}

__device__ inline sparse_pair *write_large(const shared &s, uint64_t begin, uint32_t word,
                                           uint32_t first, uint32_t keep, sparse_pair *to)
{
  const float *sum = &s.large.sums[s.large.before[word] - s.large.before[first]];
  for (uint32_t bits = s.large.occurs[word]; bits != 0; bits &= bits - 1, sum++)
    if (keep & bits & (0 - bits))
      *(uint2 *)to++ = make_uint2((uint32_t)begin + word * 32 + (uint32_t)__ffs((int)bits) - 1,
                                  __float_as_uint(*sum));
  return to;
}

} // namespace

#endif
