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
 * Where the dense vector is not wanted, entries that are still with the owners of regions are
 * fetched, and the bits are set anew, if the next local pass is going to read them. */
#include <type_traits>

#include "onesided/flags.cuh"

namespace
{

enum {
  THREADS = 256,
  WARPS = THREADS / 32,
  APPLY_BLOCKS = 4, /* per multiprocessor */
  GROUP = 8,        /* units in a row that a warp takes at most, for one look at where they begin */
  ROWS = 8,         /* of 32 entries that are on their way at the same time */
  STORES = 8,       /* of a warp, 4 elements of each lane, that make a unit */
  UNIT_WORDS = SPARSE_UNIT / 32,                                      /* of bits */
  SECTOR_PAIRS = SPARSE_SECTOR * sizeof(float) / sizeof(sparse_pair), /* entries in a sector */
  LINE_PAIRS = 128 / sizeof(sparse_pair),
};
static_assert(STORES * 128 == SPARSE_UNIT && UNIT_WORDS == 32, "a lane has a word of bits");

/* ---- where the entries are ------------------------------------------------------------------- */

/* Parts of the result, ascending: lists of regions that end where `ends` says. */
struct sums {
  ops_lists lists;
  uint64_t displs[SPARSE_MAX_RANKS + 1];
  uint32_t ends[SPARSE_MAX_RANKS];
  int parts;
};

/* The parts of a list. AT_OWNERS: the sums of all ranks, each part in its owner's memory; if they
 * do not come, there are none. */
template <bool AT_OWNERS>
__device__ inline void find_parts(const sparse_memory &m, const sparse_list &list, sums &s)
{
  const bool there = !AT_OWNERS || ops_await_sums(m, s.lists);
  if (!there) ops_begin();
  const int parts = AT_OWNERS ? m.nranks : list.parts;
  OPS_ROLLED
  for (int p = (int)threadIdx.x; p < parts; p += THREADS) {
    if (!AT_OWNERS || !there) s.lists.counts[p] = there ? (uint32_t)list.counts[p] : 0;
    s.ends[p] = parts == 1 ? (uint32_t)m.n : (uint32_t)m.state->kept.boundaries[p + 1];
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    s.parts = parts;
    s.displs[0] = 0;
    OPS_ROLLED
    for (int p = 0; p < parts; p++) {
      if (!AT_OWNERS) s.lists.pairs[p] = list.pairs + s.displs[p];
      s.displs[p + 1] = s.displs[p] + s.lists.counts[p];
    }
  }
  __syncthreads();
}

/* Entries `at` to `end` of a part are next. */
struct cursor {
  int part;
  uint32_t at, end;
};

/* Where the entries of a part begin whose indices are `index`, the first of a unit, or more. In the
 * sums of other ranks their owners have written that down (reduce.cu, in exact steps
 * onesided.cu): a search would be several round trips. */
template <bool AT_OWNERS>
__device__ inline uint32_t begin_in(const sparse_memory &m, const sums &s, int part, uint64_t index)
{
  const uint32_t count = s.lists.counts[part];
  if (!AT_OWNERS) return ops_lower_bound(s.lists.pairs[part], 0, count, index);
  if (count == 0 || (part > 0 && index <= s.ends[part - 1])) return 0;
  if (index >= s.ends[part]) return count;
  /* its place follows from that of the owner's sums: no trip to memory */
  const char *sums = (const char *)s.lists.pairs[part], *mine = (const char *)m.reduced;
  return ((const uint32_t *)(sums + ((const char *)m.unit_begins - mine)))[index / SPARSE_UNIT];
}

template <bool AT_OWNERS>
__device__ inline cursor find(const sparse_memory &m, const sums &s, uint64_t begin, uint64_t until)
{
  int part = 0;
  while (part + 1 < s.parts && s.ends[part] <= begin) part++;
  return {part, begin_in<AT_OWNERS>(m, s, part, begin), begin_in<AT_OWNERS>(m, s, part, until)};
}

/* Up to ROWS x 32 entries; false if there are none left before `until`. AT_OWNERS: they go to
 * `gathered`, too. Rows begin where sectors of `gathered` do, parts of which would be read from
 * memory first; or, where nothing else is stored, where lines of the owner's list do, since NVLink
 * carries whole ones best. */
template <bool AT_OWNERS, bool DENSE>
__device__ inline bool load_entries(const sparse_memory &m, const sums &s, cursor &c,
                                    uint64_t until, uint2 (&entry)[ROWS])
{
  while (c.at == c.end) {
    if (c.part + 1 >= s.parts || s.ends[c.part] >= until) return false;
    c.part++;
    c.at = 0;
    c.end = begin_in<AT_OWNERS>(m, s, c.part, until);
  }
  const sparse_pair *from = s.lists.pairs[c.part] + c.at;
  sparse_pair *to = m.gathered + s.displs[c.part] + c.at;
  const uintptr_t place = DENSE ? (uintptr_t)to : (uintptr_t)from;
  const uint32_t pairs = DENSE ? SECTOR_PAIRS : LINE_PAIRS;
  const uint32_t skip = AT_OWNERS ? (uint32_t)(place / sizeof(*to) % pairs) : 0;
  const uint32_t left = c.end - c.at, lane = threadIdx.x % 32;
#pragma unroll
  for (uint32_t r = 0; r < ROWS; r++) entry[r] = ops_entry_at(from, r * 32 + lane - skip, left);
#pragma unroll
  for (uint32_t r = 0; r < ROWS; r++)
    if (AT_OWNERS && r * 32 + lane - skip < left)
      __stcs((uint2 *)&to[r * 32 + lane - skip], entry[r]);
  c.at += left < ROWS * 32 - skip ? left : ROWS * 32 - skip;
  return true;
}

/* ---- the dense vector ------------------------------------------------------------------------ */

/* Puts a warp's entries of a unit where they belong; returns whether some lie after the unit. */
__device__ inline bool put_entries(const uint2 (&entry)[ROWS], uint32_t unit, float nranks,
                                   float *values, uint32_t *bits)
{
  bool after = false;
#pragma unroll
  for (uint32_t r = 0; r < ROWS; r++) {
    const uint32_t index = entry[r].x, at = index % SPARSE_UNIT;
    if (index / SPARSE_UNIT == unit && index != SPARSE_NO_INDEX) {
      values[at] = __fdiv_rn(__uint_as_float(entry[r].y), nranks);
      atomicOr(&bits[at / 32], 1u << at % 32);
    }
    after |= index / SPARSE_UNIT > unit && index != SPARSE_NO_INDEX;
  }
  return __any_sync(OPS_ALL_LANES, after);
}

/* Stores the sectors in which a bit is set, two lanes half of each, and leaves zeros in `values`.
 * They pass through the cache (.cs): this is not read soon. */
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

/* ---- the kernel ------------------------------------------------------------------------------ */

/* Of the warps; values and bits are zero but while a warp works on them. */
struct dense_shared {
  alignas(16) float values[WARPS][SPARSE_UNIT];
  uint32_t bits[WARPS][UNIT_WORDS];
  uint32_t old_bits[WARPS][GROUP][UNIT_WORDS];
};
struct bits_shared {
  uint32_t bits[WARPS][GROUP * UNIT_WORDS];
};
static_assert(sizeof(sums) + sizeof(dense_shared) <= OPS_PLACE_BYTES, "it can begin early");

/* The bits of the result before, of a warp's next units. */
__device__ inline void load_old_bits(const sparse_memory &m, uint32_t first, uint32_t end,
                                     uint32_t units, uint32_t (*bits)[UNIT_WORDS])
{
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (uint32_t g = 0; g < GROUP; g++)
    if (first + g < end && first + g < units)
      bits[g][lane] = ops_result_bits(m)[(size_t)(first + g) * UNIT_WORDS + lane];
}

/* By a block: some of the sums, if the global threshold is to be found by them. */
__device__ inline void sample_sums(const sparse_memory &m, const sums &s)
{
  const uint64_t count = s.displs[s.parts];
  if (!sparse_needs_sample(&m, count)) return;
  for (int i = (int)threadIdx.x; i < SPARSE_SAMPLE; i += THREADS) {
    const uint64_t at = sparse_sample_place(i, count);
    int part = 0;
    while (at >= s.displs[part + 1]) part++;
    m.state->sample[i] = sparse_magnitude(s.lists.pairs[part][at - s.displs[part]].value);
  }
}

/* Not inlined, as ops_decide(). */
__device__ __noinline__ void applied(const sparse_memory &m, uint64_t count,
                                     enum sparse_thresholds thresholds)
{
  sparse_applied(&m, count, thresholds);
}

/* A warp takes a group of units in a row. Groups have a size that gives all warps the same number
 * of units in the end. */
template <bool AT_OWNERS, bool DENSE>
__global__ void OPS_BOUNDS(THREADS, APPLY_BLOCKS)
    make_result(const __grid_constant__ sparse_memory m, const __grid_constant__ sparse_list list,
                enum sparse_thresholds thresholds)
{
  /* AT_OWNERS: the sums are in their owners' memory. Then this follows reduce() or choose_sent(),
   * which let it begin at once. It needs sums, and there are flags about those; this rank's own
   * come when everything before has ended. */
  if (!AT_OWNERS) ops_begin();
  __shared__ sums parts;
  __shared__ std::conditional_t<DENSE, dense_shared, bits_shared> s;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = gridDim.x * WARPS;
  const uint32_t units = (uint32_t)SPARSE_UNITS(m.n);
  const uint32_t rounds = (units - 1) / (warps * GROUP) + 1;
  const uint32_t group = (units - 1) / (warps * rounds) + 1;
  uint32_t *bits = s.bits[warp];
  uint32_t first = (blockIdx.x * WARPS + warp) * group;
  /* these are known without waiting */
  if constexpr (DENSE) load_old_bits(m, first, first + group, units, s.old_bits[warp]);
  for (uint32_t i = lane; i < sizeof(s.bits[0]) / sizeof(*bits); i += 32) bits[i] = 0;
  if constexpr (DENSE)
    for (uint32_t i = lane; i < SPARSE_UNIT; i += 32) s.values[warp][i] = 0;
  else if (!AT_OWNERS && m.state->pending != SPARSE_REMOVE_IN_RESULT)
    first = units; /* all that was offered leaves the residual: bits are not read */
  find_parts<AT_OWNERS>(m, list, parts);
  while (first < units) {
    const uint32_t last = first + group < units ? first + group : units;
    const uint64_t begin = (uint64_t)first * SPARSE_UNIT, end = (uint64_t)last * SPARSE_UNIT;
    const uint64_t until = end < m.n ? end : m.n;
    uint32_t *result_bits = ops_result_bits(m) + (size_t)first * UNIT_WORDS;
    cursor c = find<AT_OWNERS>(m, parts, begin, until);
    uint2 entry[ROWS];
    if constexpr (DENSE) {
      bool more = load_entries<AT_OWNERS, DENSE>(m, parts, c, until, entry);
      float *values = s.values[warp];
#pragma unroll 1
      for (uint32_t unit = first; unit < last; unit++) {
        while (more && !put_entries(entry, unit, (float)m.nranks, values, bits))
          more = load_entries<AT_OWNERS, DENSE>(m, parts, c, until, entry);
        __syncwarp();
        const uint32_t now = bits[lane], old = s.old_bits[warp][unit - first][lane];
        bits[lane] = 0;
        if (now != old) result_bits[(unit - first) * UNIT_WORDS + lane] = now;
        store_sectors(m.dense + (size_t)unit * SPARSE_UNIT, now | old, values);
        __syncwarp();
      }
    } else {
      while (load_entries<AT_OWNERS, DENSE>(m, parts, c, until, entry))
#pragma unroll
        for (uint32_t r = 0; r < ROWS; r++) {
          const uint32_t at = entry[r].x - (uint32_t)begin;
          if (entry[r].x < until) atomicOr(&bits[at / 32], 1u << at % 32); /* an entry */
        }
      __syncwarp();
      for (uint32_t i = lane; i < (last - first) * UNIT_WORDS; i += 32) {
        result_bits[i] = bits[i]; /* without a look at what they were: nothing has to be cleared */
        bits[i] = 0;
      }
      __syncwarp();
    }
    first += warps * group;
    if constexpr (DENSE) load_old_bits(m, first, first + group, units, s.old_bits[warp]);
  }
  if (AT_OWNERS)
    ops_begin(); /* whoever waits for this kernel's end waits for that of reduce(), too */
  if (blockIdx.x > 0) return;
  if (thresholds == SPARSE_THRESHOLDS_ADAPT) sample_sums(m, parts);
  if (AT_OWNERS) {
    /* How many entries the owners have taken. The local pass has noted how many it had for each. */
    OPS_ROLLED
    for (int p = (int)threadIdx.x; p < m.nranks; p += THREADS) {
      ops_await_taken(m, p);
      m.state->gathered_counts[p] = parts.lists.counts[p];
    }
  }
  __syncthreads();
  /* the first block's counts are those of all */
  if (threadIdx.x == 0) applied(m, parts.displs[parts.parts], thresholds);
}

} // namespace

template <bool AT_OWNERS>
static ncclResult_t launch(const sparse_memory *m, const sparse_list &list,
                           enum sparse_thresholds thresholds, cudaStream_t stream)
{
  const bool entries = m->config.result == SPARSE_RESULT_ENTRIES;
  return ops_launch(entries ? make_result<AT_OWNERS, false> : make_result<AT_OWNERS, true>,
                    ops_blocks(m->n, SPARSE_UNIT * WARPS, APPLY_BLOCKS), THREADS, OPS_NEXT, stream,
                    *m, list, thresholds);
}

extern "C" {

ncclResult_t ops_apply(const struct sparse_memory *m, struct sparse_list list,
                       enum sparse_thresholds thresholds, cudaStream_t stream)
{
  return launch<false>(m, list, thresholds, stream);
}

} // extern "C"

ncclResult_t ops_apply_sent(const sparse_memory *m, enum sparse_thresholds thresholds,
                            cudaStream_t stream)
{
  return launch<true>(m, {}, thresholds, stream);
}

static const ops_load_kernels load(make_result<true, true>, make_result<true, false>,
                                   make_result<false, true>, make_result<false, false>);
