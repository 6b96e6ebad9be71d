/* SPDX-License-Identifier: Apache-2.0 */
/* The tiles of a reduction: where they are in the lists, adding, selecting, writing.
 *
 * There are two ways to store sums. A small tile has one for each index. Where that gives many
 * tiles and few entries in each, tiles are larger, up to four times: their entries are copied to
 * shared memory in one go, the bits of all indices that occur are set, and the number of bits
 * before an index is the place of its sum. A large tile with more entries than there is room for is
 * done as small ones, twice: to count and to write. */
#ifndef OPS_REDUCE_TILES_CUH
#define OPS_REDUCE_TILES_CUH

#include "onesided/flags.cuh"

namespace
{

enum {
  THREADS = 256,
  WARPS = THREADS / 32,
  SMALL_TILE = OPS_DENSE_TILE, /* indices */
  WORDS = 4,                   /* of bits in a large tile that a thread has */
  LARGE_TILE = THREADS * WORDS * 32,
  ROUNDS = 8,              /* entries of a large tile that a thread copies at most */
  ROOM = ROUNDS * THREADS, /* entries, and so sums, that a large tile has room for */
  USUAL = 1792,            /* entries of a large tile at most, on average */
  AHEAD = 4,               /* lists of a small tile whose entries are on their way at a time */
  BLOCKS = 4,              /* per multiprocessor */
};
static_assert((int)SMALL_TILE == THREADS * 32, "in a small tile a thread has one word");
static_assert(WARPS * ROUNDS == 64, "place_rounds() has two counts per lane");

struct shared {
  uint32_t occurs[THREADS * WORDS];
  union {
    float sums[SMALL_TILE]; /* of a small tile */
    struct {
      uint2 entries[ROOM];              /* list by list */
      uint2 sums[ROOM];                 /* {index, sum}, ascending */
      uint16_t before[THREADS * WORDS]; /* bits in the words before */
    } large;
  };
  /* By rank: the lists, where the tile begins and ends in them (a small tile: where the list ends),
   * which level an entry has to exceed, and how many do not. */
  ops_lists lists;
  uint32_t first[SPARSE_MAX_RANKS], last[SPARSE_MAX_RANKS];
  sparse_level_t levels[SPARSE_MAX_RANKS];
  uint32_t dropped[SPARSE_MAX_RANKS];
  uint32_t offset[SPARSE_MAX_RANKS + 1]; /* in large.entries */
  uint32_t partial[WARPS], counts[WARPS * ROUNDS];
  uint32_t kept[WARPS * ROUNDS]; /* of a large tile: a bit for each sum */
  uint32_t next;                 /* tile */
};

struct job {
  int lists, first, stride; /* in the order of additions, modulo `lists` */
  uint64_t begin, end;      /* of the region */
  /* sums are kept whose magnitudes are above `level` and not above `limit`; by default all */
  sparse_level_t level = -1, limit = SPARSE_NAN_LEVEL;
  bool large = false; /* tiles */
  uint32_t tile_size = 0;
};

/* The rank whose list is added at this place in the order. */
__device__ inline int rank_at(const job &w, int place)
{
  const int p = w.first + w.stride * place;
  return p < 0 ? p + w.lists : p >= w.lists ? p - w.lists : p;
}

/* As few rounds as the room for entries allows, and the same number of tiles for each block, but
 * for those of one multiprocessor (of two, if few run at once): where the last block of the kernel
 * before is still at work they begin later, and all would wait for their tiles. */
__device__ inline void choose_tile_size(job &w, const shared &s)
{
  const uint32_t size = w.end > w.begin ? (uint32_t)(w.end - w.begin) : 0;
  uint64_t entries = 0;
  OPS_ROLLED
  for (int p = (int)threadIdx.x % 32; p < w.lists; p += 32) entries += s.lists.counts[p];
  entries = ops_warp_sum(entries);
  if (entries > 0xffffffffu) entries = 0xffffffffu; /* divisions of 64 bits take long */
  const uint32_t blocks = gridDim.x > 8 * BLOCKS ? gridDim.x - BLOCKS : gridDim.x;
  const uint32_t rounds = (uint32_t)entries / (USUAL * blocks) + 1;
  const uint32_t even = (size / (rounds * blocks) + 32) / 32 * 32;
  w.large = even > SMALL_TILE;
  w.tile_size = even < SMALL_TILE ? SMALL_TILE : even < LARGE_TILE ? even : LARGE_TILE;
}

/* Where a tile is in all lists; a warp for each end that is to be searched for. */
__device__ inline void find_tile(const job &w, shared &s, uint32_t tile)
{
  const uint64_t begin = w.begin + (uint64_t)tile * w.tile_size;
  const uint64_t end = begin + w.tile_size < w.end ? begin + w.tile_size : w.end;
  OPS_ROLLED
  for (int i = (int)threadIdx.x / 32; i < (w.large ? 2 : 1) * w.lists; i += WARPS) {
    const bool is_end = i >= w.lists;
    const int p = is_end ? i - w.lists : i;
    const uint32_t count = s.lists.counts[p];
    const uint32_t at = ops_lower_bound(s.lists.pairs[p], 0, count, is_end ? end : begin);
    if (threadIdx.x % 32 != 0) continue;
    (is_end ? s.last : s.first)[p] = at;
    if (!w.large) s.last[p] = count;
  }
}

/* The part of a tile that begins at `from` is done. */
__device__ inline void next_part(const job &w, shared &s, uint64_t from)
{
  s.occurs[threadIdx.x] = 0;
  if (!w.large) return;
  OPS_ROLLED
  for (int p = (int)threadIdx.x / 32; p < w.lists; p += WARPS) {
    const uint32_t at = ops_lower_bound(s.lists.pairs[p], s.first[p], s.last[p], from + SMALL_TILE);
    __syncwarp();
    if (threadIdx.x % 32 == 0) s.first[p] = at;
  }
  __syncthreads();
}

__device__ inline bool is_kept(const job &w, float sum)
{
  const sparse_level_t magnitude = sparse_magnitude(sum);
  return magnitude > w.level && magnitude <= w.limit;
}

/* What an entry of rank p adds: nothing if it does not exceed the level. (Its sum is kept then only
 * if others are in it: no sum of 0 is, where there are levels.) Such entries are counted, unless
 * this is the second time. */
__device__ inline float value_of(shared &s, int p, uint2 entry, bool again)
{
  const float value = __uint_as_float(entry.y);
  if (sparse_magnitude(value) > s.levels[p]) return value;
  if (!again) atomicAdd(&s.dropped[p], 1u);
  return 0;
}

/* ---- small tiles --------------------------------------------------------------------------- */

__device__ inline uint2 entry_at(const shared &s, int p, uint32_t i)
{
  return i < s.last[p] - s.first[p] ? *(const uint2 *)&s.lists.pairs[p][s.first[p] + i]
                                    : make_uint2(SPARSE_NO_INDEX, 0); /* beyond all */
}

/* Sums need not be cleared: the first of an index starts at 0. Ends with a barrier. */
__device__ inline void add_to_small(const job &w, shared &s, uint64_t begin, uint64_t end,
                                    bool again)
{
  for (int group = 0; group < w.lists; group += AHEAD) {
    uint2 entry[AHEAD];
#pragma unroll
    for (int a = 0; a < AHEAD; a++)
      if (group + a < w.lists) entry[a] = entry_at(s, rank_at(w, group + a), threadIdx.x);
#pragma unroll
    for (int a = 0; a < AHEAD; a++) {
      if (group + a >= w.lists) break;
      const int p = rank_at(w, group + a);
      for (uint32_t i = threadIdx.x;; entry[a] = entry_at(s, p, i += THREADS)) {
        const bool inside = entry[a].x < end;
        if (inside) {
          const uint32_t at = (uint32_t)(entry[a].x - begin), bit = 1u << at % 32;
          const bool has_sum = atomicOr(&s.occurs[at / 32], bit) & bit;
          s.sums[at] = __fadd_rn(has_sum ? s.sums[at] : 0.0f, value_of(s, p, entry[a], again));
        }
        if (!__syncthreads_or(threadIdx.x == THREADS - 1 && inside)) break;
      }
    }
  }
}

/* The bits of this thread's word whose sums are to be kept. */
__device__ inline uint32_t select_of_small(const job &w, const shared &s)
{
  uint32_t keep = s.occurs[threadIdx.x];
  for (uint32_t bits = keep; bits != 0; bits &= bits - 1)
    if (!is_kept(w, s.sums[threadIdx.x * 32 + (uint32_t)__ffs((int)bits) - 1]))
      keep &= ~(bits & (0 - bits));
  return keep;
}

__device__ inline void write_small(const shared &s, uint64_t begin, uint32_t keep, sparse_pair *to)
{
  for (; keep != 0; keep &= keep - 1) {
    const uint32_t i = threadIdx.x * 32 + (uint32_t)__ffs((int)keep) - 1;
    *(uint2 *)to++ = make_uint2((uint32_t)begin + i, __float_as_uint(s.sums[i]));
  }
}

/* Adds up the part of a tile that begins at `from`; returns what select_of_small() does. */
__device__ inline uint32_t add_part(const job &w, shared &s, uint64_t from, uint64_t end,
                                    bool again)
{
  add_to_small(w, s, from, from + SMALL_TILE < end ? from + SMALL_TILE : end, again);
  return select_of_small(w, s);
}

/* Notes where a unit begins that does within this thread's word. The thread's sums are those from
 * number `first` on. */
__device__ inline void note_unit(uint32_t *unit_begins, uint64_t begin, uint64_t end, uint32_t keep,
                                 uint32_t first)
{
  const uint64_t word = begin + threadIdx.x * 32, unit = (word + SPARSE_UNIT - 1) / SPARSE_UNIT;
  const uint32_t at = (uint32_t)(unit * SPARSE_UNIT - word);
  if (at < 32 && word + at < end)
    unit_begins[unit] = first + (uint32_t)__popc(keep & ((1u << at) - 1));
}

/* Sums of `kept` over the threads: of those before this one, and in *all of the block. Begins
 * without a barrier, has one. */
__device__ inline uint32_t place_words(shared &s, uint32_t kept, uint32_t *all)
{
  const uint32_t through = ops_warp_scan(kept);
  if (threadIdx.x % 32 == 31) s.counts[threadIdx.x / 32] = through;
  __syncthreads();
  uint32_t before;
  *all = ops_block_sum(s.counts, WARPS, &before);
  return before + through - kept;
}

/* ---- large tiles --------------------------------------------------------------------------- */

/* Where each list's entries are to be among all of the tile; returns how many there are. */
__device__ inline uint32_t lay_out(const job &w, shared &s)
{
  uint32_t all = 0;
  OPS_ROLLED
  for (int group = 0; group < w.lists; group += 32) {
    const int p = group + (int)threadIdx.x % 32;
    const uint32_t count = p < w.lists ? s.last[p] - s.first[p] : 0;
    const uint32_t through = all + ops_warp_scan(count);
    if (threadIdx.x < 32 && p < w.lists) s.offset[p + 1] = through;
    all = __shfl_sync(OPS_ALL_LANES, through, 31);
  }
  if (threadIdx.x == 0) s.offset[0] = 0;
  return all;
}

/* Copies the tile's entries to shared memory and sets the bits of their indices. All of a thread's
 * are on their way at the same time. Begins and ends with a barrier. */
__device__ inline void copy_entries(const job &w, shared &s, uint64_t begin, uint32_t count)
{
  __syncthreads();
  int top = 1; /* power of two, not below half the lists */
  while (2 * top < w.lists) top *= 2;
  OPS_ROLLED
  for (uint32_t i = threadIdx.x; i < count; i += THREADS) {
    int p = 0;
    OPS_ROLLED
    for (int step = top; step > 0; step /= 2)
      if (p + step < w.lists && s.offset[p + step] <= i) p += step;
    const sparse_pair *from = s.lists.pairs[p] + s.first[p] + (i - s.offset[p]);
    __pipeline_memcpy_async(&s.large.entries[i], from, sizeof(*from));
  }
  ops_await_copies();
  OPS_ROLLED
  for (uint32_t i = threadIdx.x; i < count; i += THREADS) {
    const uint32_t at = s.large.entries[i].x - (uint32_t)begin;
    atomicOr(&s.occurs[at / 32], 1u << at % 32);
  }
  __syncthreads();
}

/* Counts the bits before each word; returns how many there are. Has a barrier. */
__device__ inline uint32_t rank_bits(shared &s)
{
  const uint32_t *occurs = &s.occurs[threadIdx.x * WORDS];
  uint32_t mine = 0, all;
#pragma unroll
  for (int v = 0; v < WORDS; v++) mine += (uint32_t)__popc(occurs[v]);
  uint32_t before = place_words(s, mine, &all);
#pragma unroll
  for (int v = 0; v < WORDS; v++) {
    s.large.before[threadIdx.x * WORDS + v] = (uint16_t)before;
    before += (uint32_t)__popc(occurs[v]);
  }
  return all;
}

/* All sums of the tile; returns how many there are. Ends with a barrier. */
__device__ inline uint32_t add_to_large(const job &w, shared &s, uint64_t begin, uint32_t count)
{
  copy_entries(w, s, begin, count);
  const uint32_t sums = rank_bits(s);
  OPS_ROLLED
  for (uint32_t i = threadIdx.x; i < sums; i += THREADS) s.large.sums[i].y = 0;
  __syncthreads();
  OPS_ROLLED
  for (int place = 0; place < w.lists; place++) {
    const int p = rank_at(w, place);
    OPS_ROLLED
    for (uint32_t i = s.offset[p] + threadIdx.x; i < s.offset[p + 1]; i += THREADS) {
      const uint2 entry = s.large.entries[i];
      const uint32_t at = entry.x - (uint32_t)begin, word = at / 32;
      const uint32_t lower = s.occurs[word] & ((1u << at % 32) - 1);
      uint2 *sum = &s.large.sums[s.large.before[word] + (uint32_t)__popc(lower)];
      const float both = __fadd_rn(__uint_as_float(sum->y), value_of(s, p, entry, false));
      *sum = make_uint2(entry.x, __float_as_uint(both));
    }
    __syncthreads();
  }
  return sums;
}

/* Bit r: whether sum threadIdx.x + r * THREADS is to be kept. Leaves the warp's bits and their
 * number in each round in s.kept and s.counts. */
__device__ inline uint32_t select_of_large(const job &w, shared &s, uint32_t sums)
{
  uint32_t keep = 0;
  OPS_ROLLED
  for (uint32_t r = 0; r < ROUNDS; r++) {
    const uint32_t i = threadIdx.x + r * THREADS;
    const bool kept = i < sums && is_kept(w, __uint_as_float(s.large.sums[i].y));
    const uint32_t lanes = __ballot_sync(OPS_ALL_LANES, kept);
    if (threadIdx.x % 32 == 0) {
      s.kept[r * WARPS + threadIdx.x / 32] = lanes;
      s.counts[r * WARPS + threadIdx.x / 32] = (uint32_t)__popc(lanes);
    }
    keep |= (uint32_t)kept << r;
  }
  return keep;
}

/* Of the counts that select_of_large has left, in lane l the sums of those before count l and
 * before count 32 + l; returns the sum of all. */
__device__ inline uint32_t place_rounds(const shared &s, uint32_t before[2])
{
  const uint32_t low = s.counts[threadIdx.x % 32], high = s.counts[32 + threadIdx.x % 32];
  const uint32_t through_low = ops_warp_scan(low);
  const uint32_t half = __shfl_sync(OPS_ALL_LANES, through_low, 31);
  const uint32_t through_high = half + ops_warp_scan(high);
  before[0] = through_low - low;
  before[1] = through_high - high;
  return __shfl_sync(OPS_ALL_LANES, through_high, 31);
}

__device__ inline void write_large(const shared &s, uint32_t keep, const uint32_t before[2],
                                   sparse_pair *to)
{
  OPS_ROLLED
  for (uint32_t r = 0; r < ROUNDS; r++) {
    const bool kept = keep >> r & 1;
    const uint32_t lanes = __ballot_sync(OPS_ALL_LANES, kept), count = r * WARPS + threadIdx.x / 32;
    const uint32_t of_warp = count < 32 ? before[0] : before[1];
    const uint32_t at = __shfl_sync(OPS_ALL_LANES, of_warp, (int)(count % 32)) +
                        (uint32_t)__popc(lanes & ((1u << threadIdx.x % 32) - 1));
    if (kept) *(uint2 *)(to + at) = s.large.sums[threadIdx.x + r * THREADS];
  }
}

/* Where a unit begins in the tile's kept sums, for a warp, one for each lane: the bits before it
 * say how many sums that is, and theirs how many are kept. */
struct unit_begin {
  uint64_t unit;
  uint32_t at;
  bool any;
};

__device__ inline unit_begin find_unit(const shared &s, uint64_t begin, uint64_t end,
                                       const uint32_t before[2])
{
  const uint64_t unit = (begin + SPARSE_UNIT - 1) / SPARSE_UNIT + threadIdx.x % 32;
  const bool any = unit * SPARSE_UNIT < end;
  const uint32_t bit = any ? (uint32_t)(unit * SPARSE_UNIT - begin) : 0;
  const uint32_t sums =
      s.large.before[bit / 32] + (uint32_t)__popc(s.occurs[bit / 32] & ((1u << bit % 32) - 1));
  const uint32_t count = sums < ROOM ? sums / 32 : WARPS * ROUNDS - 1;
  const uint32_t lanes = sums < ROOM ? (1u << sums % 32) - 1 : 0xffffffffu;
  const uint32_t low = __shfl_sync(OPS_ALL_LANES, before[0], (int)(count % 32));
  const uint32_t high = __shfl_sync(OPS_ALL_LANES, before[1], (int)(count % 32));
  return {unit, (count < 32 ? low : high) + (uint32_t)__popc(s.kept[count] & lanes), any};
}

} // namespace

#endif
