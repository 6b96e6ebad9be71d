/* SPDX-License-Identifier: Apache-2.0 */
/* The result: making the dense vector of its entries, and fetching those on the way.
 *
 * The vector is zero but for the entries of a result. A bit for each element (ops_result_bits) says
 * where those are: which elements the next result has to clear, and which of the residual the next
 * local pass does. A warp takes 1024 elements at a time, a unit: a word of bits for each lane. It
 * gathers the values in shared memory and stores the sectors of 32 bytes that have an entry, or had
 * one. Random access takes as long as memory needs to open a row for each sector; a store of less
 * than a sector opens it twice, because the rest of the sector has to be read first. So what is
 * cleared and what is set anew takes one store, and never less than a sector.
 *
 * Where units begin in lists of other ranks their owners have written down (ops_reduce.cu, of
 * exact steps ops_keep.cuh): a search would be several round trips. */
#include "device/ops_entries.cuh"
#include "onesided/ops_notes.cuh"
#include "onesided/ops_onesided.h"

namespace
{

enum {
  WARPS = THREADS / 32,
  APPLY_BLOCKS = 4, /* per multiprocessor */
  GROUP = 8,        /* units in a row that a warp takes at most, for one look at where they begin */
  ROWS = 8,         /* of 32 entries that are on their way at the same time */
  STORES = 8,       /* of a warp, 4 elements of each lane, that make a unit */
  /* entries in a sector */
  PAIRS = SPARSE_SECTOR * sizeof(float) / sizeof(sparse_pair),
};
static_assert(STORES * 128 == SPARSE_UNIT && SPARSE_UNIT == 32 * 32, "a lane has a word of bits");

/* Parts of the result, ascending: lists of regions that end where `ends` says. */
struct sums {
  ops_lists lists;
  uint64_t displs[SPARSE_MAX_RANKS + 1];
  uint32_t ends[SPARSE_MAX_RANKS];
  int parts;
};

struct shared {
  sums sums;
  alignas(16) float values[WARPS][SPARSE_UNIT]; /* zero but for the unit that a warp works on */
  uint32_t bits[WARPS][32];
  uint32_t old_bits[WARPS][GROUP][32];
};

/* The sums of all ranks, where they are. If they do not come, there are none. */
__device__ inline void await_sums(const sparse_memory &m, sums &s)
{
  const bool there = ops_await_sums(m, s.lists);
  if (!there) ops_begin();
  OPS_ROLLED
  for (int p = (int)threadIdx.x; p < m.nranks; p += THREADS)
    if (!there) s.lists.counts[p] = 0;
}

/* The parts of a list; DIRECT: the sums of all ranks. */
template <bool DIRECT>
__device__ inline void find_parts(const sparse_memory &m, const sparse_list &list, sums &s)
{
  if (DIRECT) await_sums(m, s);
  const int parts = DIRECT ? m.nranks : list.parts;
  OPS_ROLLED
  for (int p = (int)threadIdx.x; p < parts; p += THREADS) {
    if (!DIRECT) s.lists.counts[p] = (uint32_t)list.counts[p];
    s.ends[p] = parts == 1 ? (uint32_t)m.n : (uint32_t)m.state->boundaries[p + 1];
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    s.parts = parts;
    s.displs[0] = 0;
    OPS_ROLLED
    for (int p = 0; p < parts; p++) {
      if (!DIRECT) s.lists.pairs[p] = list.pairs + s.displs[p];
      s.displs[p + 1] = s.displs[p] + s.lists.counts[p];
    }
  }
  __syncthreads();
}

/* By the first block, behind all other kernels of the step: the local pass has noted how many
 * entries were for each region, and this is how many the owner has taken. */
__device__ inline void note_counts(const sparse_memory &m, const sums &s)
{
  OPS_ROLLED
  for (int p = (int)threadIdx.x; p < m.nranks; p += THREADS) {
    m.state->region_counts[p] = ops_await_taken(m, p);
    m.state->gathered_counts[p] = s.lists.counts[p];
    m.state->gathered_displs[p] = s.displs[p];
  }
  __syncthreads();
}

/* ---- the entries of a group of units ----------------------------------------------------------
 */

/* Entries `at` to `end` of a part are next. */
struct cursor {
  int part;
  uint32_t at, end;
};

/* Where the entries of a part begin whose indices are `index`, the first of a unit, or more. */
template <bool DIRECT>
__device__ inline uint32_t begin_in(const sparse_memory &m, const sums &s, int part, uint64_t index)
{
  const uint32_t count = s.lists.counts[part];
  if (!DIRECT) return ops_lower_bound(s.lists.pairs[part], 0, count, index);
  if (count == 0 || (part > 0 && index <= s.ends[part - 1])) return 0;
  if (index >= s.ends[part]) return count;
  /* where they are known to be from the owner's sums: no trip to memory for that */
  const char *sums = (const char *)s.lists.pairs[part], *mine = (const char *)m.reduced;
  return ((const uint32_t *)(sums + ((const char *)m.unit_begins - mine)))[index / SPARSE_UNIT];
}

template <bool DIRECT>
__device__ inline cursor find(const sparse_memory &m, const sums &s, uint64_t begin, uint64_t until)
{
  int part = 0;
  while (part + 1 < s.parts && s.ends[part] <= begin) part++;
  return {part, begin_in<DIRECT>(m, s, part, begin), begin_in<DIRECT>(m, s, part, until)};
}

/* Up to ROWS x 32 entries; false if there are none left in front of `until`. DIRECT: they go to
 * `gathered`, too. */
template <bool DIRECT>
__device__ inline bool load_entries(const sparse_memory &m, const sums &s, cursor &c,
                                    uint64_t until, uint2 (&entry)[ROWS])
{
  while (c.at == c.end) {
    if (c.part + 1 >= s.parts || s.ends[c.part] >= until) return false;
    c.part++;
    c.at = 0;
    c.end = begin_in<DIRECT>(m, s, c.part, until);
  }
  const sparse_pair *from = s.lists.pairs[c.part] + c.at;
  sparse_pair *to = m.gathered + s.displs[c.part] + c.at;
  /* Rows begin with sectors of `gathered`: parts of sectors would be read from memory first. */
  const uint32_t skip = DIRECT ? (uint32_t)((uintptr_t)to / sizeof(*to) % PAIRS) : 0;
  const uint32_t left = c.end - c.at, lane = threadIdx.x % 32;
#pragma unroll
  for (uint32_t r = 0; r < ROWS; r++) entry[r] = entry_at(from, r * 32 + lane - skip, left);
#pragma unroll
  for (uint32_t r = 0; r < ROWS; r++)
    if (DIRECT && r * 32 + lane - skip < left) __stcs((uint2 *)&to[r * 32 + lane - skip], entry[r]);
  c.at += left < ROWS * 32 - skip ? left : ROWS * 32 - skip;
  return true;
}

/* ---- a unit ------------------------------------------------------------------------------------
 */

/* Puts those of a warp's entries that lie in a unit where they belong. Are there some behind it? */
__device__ inline bool put_entries(const uint2 (&entry)[ROWS], uint32_t unit, float nranks,
                                   float *values, uint32_t *bits)
{
  bool behind = false;
#pragma unroll
  for (uint32_t r = 0; r < ROWS; r++) {
    const uint32_t index = entry[r].x, at = index % SPARSE_UNIT;
    if (index / SPARSE_UNIT == unit && index != SPARSE_NO_INDEX) {
      values[at] = __fdiv_rn(__uint_as_float(entry[r].y), nranks);
      atomicOr(&bits[at / 32], 1u << at % 32);
    }
    behind |= index / SPARSE_UNIT > unit && index != SPARSE_NO_INDEX;
  }
  return __any_sync(OPS_ALL_LANES, behind);
}

/* Stores the sectors in which a bit is set, two lanes half of each, and leaves zeros in `values`.
 * They pass through the cache (.cs): nobody reads this soon. */
__device__ inline void store_sectors(float *dense, uint32_t bits, float *values)
{
  const uint32_t lane = threadIdx.x % 32, sector = lane % 8 / 2; /* of a word */
  if (__all_sync(OPS_ALL_LANES, bits == 0)) return;
#pragma unroll
  for (uint32_t i = 0; i < STORES; i++) {
    const uint32_t word = __shfl_sync(OPS_ALL_LANES, bits, (int)(4 * i + lane / 8));
    if ((word >> 8 * sector & 0xff) == 0) continue;
    float4 *four = (float4 *)values + i * 32 + lane;
    __stcs((float4 *)dense + i * 32 + lane, *four);
    *four = make_float4(0, 0, 0, 0);
  }
}

/* The same number of units for each warp, and a group of them as large as that allows. */
__device__ inline uint32_t choose_group(uint32_t units, uint32_t warps)
{
  const uint32_t rounds = (units - 1) / (warps * GROUP) + 1;
  return (units - 1) / (warps * rounds) + 1;
}

template <bool DIRECT>
__global__ void OPS_BOUNDS(THREADS, APPLY_BLOCKS)
    apply(const __grid_constant__ sparse_memory m, const __grid_constant__ sparse_list list,
          enum sparse_decision then)
{
  /* DIRECT: this follows reduce() or select_sums(), which let it begin at once. It needs sums, and
   * there are notes about those; this rank's own come when everything before has ended. */
  if (!DIRECT) ops_begin();
  __shared__ shared s;
  const uint32_t lane = threadIdx.x % 32, warps = gridDim.x * WARPS;
  const uint32_t units = (uint32_t)SPARSE_UNITS(m.n);
  const uint32_t group = choose_group(units, warps);
  const float nranks = (float)m.nranks;
  float *values = s.values[threadIdx.x / 32];
  uint32_t *bits = s.bits[threadIdx.x / 32];
  uint32_t(*old_bits)[32] = s.old_bits[threadIdx.x / 32];
  uint32_t first = (blockIdx.x * WARPS + threadIdx.x / 32) * group;
  auto load_bits = [&]() {
#pragma unroll
    for (uint32_t g = 0; g < GROUP; g++)
      if (g < group && first + g < units)
        old_bits[g][lane] = ops_result_bits(m)[(size_t)(first + g) * 32 + lane];
  };
  load_bits(); /* nobody has to be waited for to know these */
  for (uint32_t i = lane; i < SPARSE_UNIT; i += 32) values[i] = 0;
  bits[lane] = 0;
  find_parts<DIRECT>(m, list, s.sums);
  while (first < units) {
    const uint32_t last = first + group < units ? first + group : units;
    const uint64_t begin = (uint64_t)first * SPARSE_UNIT, behind = (uint64_t)last * SPARSE_UNIT;
    const uint64_t until = behind < m.n ? behind : m.n; /* no flag entry is in front of that */
    cursor c = find<DIRECT>(m, s.sums, begin, until);
    uint2 entry[ROWS];
    bool more = load_entries<DIRECT>(m, s.sums, c, until, entry);
#pragma unroll 1
    for (uint32_t unit = first; unit < last; unit++) {
      while (more && !put_entries(entry, unit, nranks, values, bits))
        more = load_entries<DIRECT>(m, s.sums, c, until, entry);
      __syncwarp();
      const uint32_t now = bits[lane], old = old_bits[unit - first][lane];
      bits[lane] = 0;
      if (now != old) ops_result_bits(m)[(size_t)unit * 32 + lane] = now;
      store_sectors(m.dense + (size_t)unit * SPARSE_UNIT, now | old, values);
      __syncwarp();
    }
    first += warps * group;
    load_bits();
  }
  if (DIRECT) ops_begin(); /* whoever waits for this kernel's end waits for that of reduce(), too */
  if (blockIdx.x > 0) return;
  if (DIRECT) note_counts(m, s.sums);
  if (threadIdx.x == 0) ops_decide(then, &m); /* of counts: no other block is needed for that */
}

unsigned blocks_of(const sparse_memory *m)
{
  return ops_blocks(m->n, SPARSE_UNIT * WARPS, APPLY_BLOCKS);
}

} // namespace

extern "C" {

ncclResult_t ops_apply(const struct sparse_memory *m, struct sparse_list list, cudaStream_t stream)
{
  return ops_launch(apply<false>, blocks_of(m), THREADS, OPS_NEXT, stream, *m, list,
                    SPARSE_THEN_NOTHING);
}

ncclResult_t ops_apply_gathered(const struct sparse_memory *m, cudaStream_t stream)
{
  const sparse_list gathered = {m->gathered, m->state->gathered_counts, m->nranks};
  return ops_launch(apply<false>, blocks_of(m), THREADS, OPS_NEXT, stream, *m, gathered,
                    SPARSE_COLLECT_GATHERED);
}

ncclResult_t ops_apply_sums(const struct sparse_memory *m, enum sparse_decision adapt,
                            cudaStream_t stream)
{
  const sparse_list of_others = {NULL, NULL, 0};
  return ops_launch(apply<true>, blocks_of(m), THREADS, OPS_NEXT, stream, *m, of_others, adapt);
}

ncclResult_t ops_clear(const struct sparse_memory *m, cudaStream_t stream)
{
  const size_t bits = ops_result_words(m->n) * sizeof(uint32_t);
  const cudaError_t dense = cudaMemsetAsync(m->dense, 0, m->n * sizeof(float), stream);
  const cudaError_t result = cudaMemsetAsync(ops_result_bits(*m), 0, bits, stream);
  return dense == cudaSuccess && result == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

} // extern "C"

ncclResult_t ops_load_apply(void)
{
  return ops_load_kernels(apply<false>, apply<true>);
}
