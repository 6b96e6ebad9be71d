/* SPDX-License-Identifier: Apache-2.0 */
/* The result as entries only: what is left to do where nobody wants the dense vector (ops_apply.cu
 * makes that). Entries that are still with the owners of regions are fetched, and the bits that say
 * where the result has entries are set anew, if the next local pass is going to read them.
 *
 * A warp takes some units in a row, of 1024 elements each, and collects their bits in shared
 * memory. All words are stored, without a look at what they were: nothing has to be cleared. */
#include "onesided/ops_parts.cuh"

namespace
{

enum {
  MARK_BLOCKS = 4, /* per multiprocessor */
  GROUP = 8,       /* units in a row that a warp takes at most */
  UNIT_WORDS = SPARSE_UNIT / 32,
};

struct shared {
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
__global__ void OPS_BOUNDS(THREADS, MARK_BLOCKS)
    mark(const __grid_constant__ sparse_memory m, const __grid_constant__ sparse_list list,
         enum sparse_decision then)
{
  if (!AT_OWNERS) ops_begin(); /* AT_OWNERS: as apply, this begins early, and there are notes */
  __shared__ shared s;
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
    const uint64_t until = end < m.n ? end : m.n; /* no flag entry is in front of that */
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

} // namespace

ncclResult_t ops_mark(const struct sparse_memory *m, const struct sparse_list &list,
                      enum sparse_decision then, cudaStream_t stream)
{
  return ops_launch(list.pairs == NULL ? mark<true> : mark<false>,
                    ops_blocks(m->n, SPARSE_UNIT * WARPS, MARK_BLOCKS), THREADS, OPS_NEXT, stream,
                    *m, list, then);
}

ncclResult_t ops_load_mark(void)
{
  return ops_load_kernels(mark<false>, mark<true>);
}
