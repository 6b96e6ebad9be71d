/* SPDX-License-Identifier: Apache-2.0 */
/* The result: making the dense vector of its entries, and fetching those on the way.
 *
 * The vector is zero but for the entries of a result. A bit for each element (ops_result_bits) says
 * where those are: which elements the next result has to clear, and which of the residual the next
 * local pass does. A warp takes 1024 elements at a time, a unit: a word of bits for each lane. It
 * gathers the values in shared memory and stores the sectors of 32 bytes that have an entry, or had
 * one. Random access takes as long as memory needs to open a row for each sector; a store of less
 * than a sector opens it twice, because the rest of the sector has to be read first. So what is
 * cleared and what is set anew takes one store, and never less than a sector. */
#include "onesided/onesided.h"
#include "onesided/parts.cuh"

namespace
{

enum {
  APPLY_BLOCKS = 4, /* per multiprocessor */
  GROUP = 8,        /* units in a row that a warp takes at most, for one look at where they begin */
  STORES = 8,       /* of a warp, 4 elements of each lane, that make a unit */
};
static_assert(STORES * 128 == SPARSE_UNIT && SPARSE_UNIT == 32 * 32, "a lane has a word of bits");

struct shared {
  sums sums;
  alignas(16) float values[WARPS][SPARSE_UNIT]; /* zero but for the unit that a warp works on */
  uint32_t bits[WARPS][32];
  uint32_t old_bits[WARPS][GROUP][32];
};

/* ---- a unit ------------------------------------------------------------------------------------
 */

/* Puts those of a warp's entries that lie in a unit where they belong. Are there some after it? */
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

template <bool AT_OWNERS>
__global__ void OPS_BOUNDS(THREADS, APPLY_BLOCKS)
    apply(const __grid_constant__ sparse_memory m, const __grid_constant__ sparse_list list,
          enum sparse_decision then)
{
  /* AT_OWNERS: the sums are in their owners' memory. Then this follows reduce() or select_sums(),
   * which let it begin at once. It needs sums, and there are flags about those; this rank's own
   * come when everything before has ended. */
  if (!AT_OWNERS) ops_begin();
  __shared__ shared s;
  const uint32_t lane = threadIdx.x % 32, warps = gridDim.x * WARPS;
  const uint32_t units = (uint32_t)SPARSE_UNITS(m.n);
  const uint32_t group = choose_group(units, warps, GROUP);
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
  find_parts<AT_OWNERS>(m, list, s.sums);
  while (first < units) {
    const uint32_t last = first + group < units ? first + group : units;
    const uint64_t begin = (uint64_t)first * SPARSE_UNIT, end = (uint64_t)last * SPARSE_UNIT;
    const uint64_t until = end < m.n ? end : m.n;
    cursor c = find<AT_OWNERS>(m, s.sums, begin, until);
    uint2 entry[ROWS];
    bool more = load_entries<AT_OWNERS, TO_SECTORS>(m, s.sums, c, until, entry);
#pragma unroll 1
    for (uint32_t unit = first; unit < last; unit++) {
      while (more && !put_entries(entry, unit, nranks, values, bits))
        more = load_entries<AT_OWNERS, TO_SECTORS>(m, s.sums, c, until, entry);
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
  if (AT_OWNERS)
    ops_begin(); /* whoever waits for this kernel's end waits for that of reduce(), too */
  if (blockIdx.x > 0) return;
  if (AT_OWNERS) note_counts(m, s.sums);
  if (threadIdx.x == 0) ops_decide(then, &m); /* of counts: no other block is needed for that */
}

/* ---- entries only ------------------------------------------------------------------------------
 * Where nobody wants the dense vector, entries that are still with the owners of regions are
 * fetched, and the bits that say where the result has entries are set anew, if the next local pass
 * is going to read them. A warp takes some units in a row and collects their bits in shared memory.
 * All words are stored, without a look at what they were: nothing has to be cleared. */

enum { UNIT_WORDS = SPARSE_UNIT / 32 };

struct mark_shared {
  sums sums;
  uint32_t bits[WARPS][GROUP * UNIT_WORDS]; /* zero but while a warp works on them */
};

/* The bits of the entries from element `begin` on. */
__device__ inline void set_bits(const uint2 (&entry)[ROWS], uint64_t begin, uint64_t until,
                                uint32_t *bits)
{
#pragma unroll
  for (uint32_t r = 0; r < ROWS; r++) {
    const uint32_t at = entry[r].x - (uint32_t)begin;
    if (entry[r].x < until) atomicOr(&bits[at / 32], 1u << at % 32); /* not SPARSE_NO_INDEX */
  }
}

template <bool AT_OWNERS>
__global__ void OPS_BOUNDS(THREADS, APPLY_BLOCKS)
    mark(const __grid_constant__ sparse_memory m, const __grid_constant__ sparse_list list,
         enum sparse_decision then)
{
  if (!AT_OWNERS) ops_begin(); /* AT_OWNERS: as apply, this begins early, and there are flags */
  __shared__ mark_shared s;
  const uint32_t lane = threadIdx.x % 32, warps = gridDim.x * WARPS;
  const uint32_t units = (uint32_t)SPARSE_UNITS(m.n);
  const uint32_t group = choose_group(units, warps, GROUP);
  uint32_t *bits = s.bits[threadIdx.x / 32];
  uint32_t first = (blockIdx.x * WARPS + threadIdx.x / 32) * group;
  /* what leaves the residual is what was offered: nobody reads bits */
  if (!AT_OWNERS && m.state->pending != SPARSE_REMOVE_IN_RESULT) first = units;
  for (uint32_t i = lane; i < GROUP * UNIT_WORDS; i += 32) bits[i] = 0;
  find_parts<AT_OWNERS>(m, list, s.sums);
  while (first < units) {
    const uint32_t last = first + group < units ? first + group : units;
    const uint64_t begin = (uint64_t)first * SPARSE_UNIT, end = (uint64_t)last * SPARSE_UNIT;
    const uint64_t until = end < m.n ? end : m.n;
    cursor c = find<AT_OWNERS>(m, s.sums, begin, until);
    uint2 entry[ROWS];
    while (load_entries<AT_OWNERS, FROM_LINES>(m, s.sums, c, until, entry))
      set_bits(entry, begin, until, bits);
    __syncwarp();
    for (uint32_t i = lane; i < (last - first) * UNIT_WORDS; i += 32) {
      ops_result_bits(m)[(size_t)first * UNIT_WORDS + i] = bits[i];
      bits[i] = 0;
    }
    __syncwarp();
    first += warps * group;
  }
  if (AT_OWNERS)
    ops_begin(); /* whoever waits for this kernel's end waits for that of reduce(), too */
  if (blockIdx.x > 0) return;
  if (AT_OWNERS) note_counts(m, s.sums);
  if (threadIdx.x == 0) ops_decide(then, &m); /* of counts: no other block is needed for that */
}

/* Of a list; of one without pairs: of the sums of all ranks. */
ncclResult_t make_result(const sparse_memory *m, const sparse_list &list, sparse_decision then,
                         cudaStream_t stream)
{
  const bool at_owners = list.pairs == NULL, entries = m->config.result == SPARSE_RESULT_ENTRIES;
  return ops_launch(entries     ? at_owners ? mark<true> : mark<false>
                        : at_owners ? apply<true>
                                : apply<false>,
                    ops_blocks(m->n, SPARSE_UNIT * WARPS, APPLY_BLOCKS), THREADS, OPS_NEXT, stream,
                    *m, list, then);
}

} // namespace

extern "C" {

ncclResult_t ops_apply(const struct sparse_memory *m, struct sparse_list list,
                       enum sparse_decision then, cudaStream_t stream)
{
  return make_result(m, list, then, stream);
}

ncclResult_t ops_apply_sums(const struct sparse_memory *m, enum sparse_decision adapt,
                            cudaStream_t stream)
{
  return make_result(m, {NULL, NULL, 0}, adapt, stream);
}

} // extern "C"

ncclResult_t ops_load_apply(void)
{
  return ops_load_kernels(apply<false>, apply<true>, mark<false>, mark<true>);
}
