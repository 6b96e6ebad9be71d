/* SPDX-License-Identifier: Apache-2.0 */
/* The entries of a result on their way to whoever wants them in the order of their indices: which
 * lists they are in, where the entries of a stretch of the vector begin in each list, and the
 * entries themselves, many loads at the same time. Stretches are units of SPARSE_UNIT elements.
 *
 * Where units begin in lists of other ranks their owners have written down (kernels/reduce.cu; of
 * exact steps, onesided.cu): a search would be several round trips. */
#ifndef OPS_PARTS_CUH
#define OPS_PARTS_CUH

#include "device/entries.cuh"
#include "onesided/flags.cuh"

namespace
{

enum {
  WARPS = THREADS / 32,
  ROWS = 8, /* of 32 entries that are on their way at the same time */
  SECTOR_PAIRS = SPARSE_SECTOR * sizeof(float) / sizeof(sparse_pair), /* entries in a sector */
  LINE_PAIRS = 128 / sizeof(sparse_pair),
};

/* Parts of the result, ascending: lists of regions that end where `ends` says. */
struct sums {
  ops_lists lists;
  uint64_t displs[SPARSE_MAX_RANKS + 1];
  uint32_t ends[SPARSE_MAX_RANKS];
  int parts;
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

/* The parts of a list. AT_OWNERS: the sums of all ranks, each part in its owner's memory. */
template <bool AT_OWNERS>
__device__ inline void find_parts(const sparse_memory &m, const sparse_list &list, sums &s)
{
  if (AT_OWNERS) await_sums(m, s);
  const int parts = AT_OWNERS ? m.nranks : list.parts;
  OPS_ROLLED
  for (int p = (int)threadIdx.x; p < parts; p += THREADS) {
    if (!AT_OWNERS) s.lists.counts[p] = (uint32_t)list.counts[p];
    s.ends[p] = parts == 1 ? (uint32_t)m.n : (uint32_t)m.state->boundaries[p + 1];
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

/* By the first block, after all other kernels of the step: the local pass has noted how many
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
template <bool AT_OWNERS>
__device__ inline uint32_t begin_in(const sparse_memory &m, const sums &s, int part, uint64_t index)
{
  const uint32_t count = s.lists.counts[part];
  if (!AT_OWNERS) return ops_lower_bound(s.lists.pairs[part], 0, count, index);
  if (count == 0 || (part > 0 && index <= s.ends[part - 1])) return 0;
  if (index >= s.ends[part]) return count;
  /* where they are known to be from the owner's sums: no trip to memory for that */
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

/* Where rows of entries begin that are AT_OWNERS: with sectors of `gathered`, parts of which would
 * be read from memory first; or, where nothing else is stored, with lines of the owner's list,
 * since NVLink carries whole ones best. */
enum align { TO_SECTORS, FROM_LINES };

/* Up to ROWS x 32 entries; false if there are none left before `until`. AT_OWNERS: they go to
 * `gathered`, too. */
template <bool AT_OWNERS, align ALIGN>
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
  const uintptr_t place = ALIGN == TO_SECTORS ? (uintptr_t)to : (uintptr_t)from;
  const uint32_t pairs = ALIGN == TO_SECTORS ? SECTOR_PAIRS : LINE_PAIRS;
  const uint32_t skip = AT_OWNERS ? (uint32_t)(place / sizeof(*to) % pairs) : 0;
  const uint32_t left = c.end - c.at, lane = threadIdx.x % 32;
#pragma unroll
  for (uint32_t r = 0; r < ROWS; r++) entry[r] = entry_at(from, r * 32 + lane - skip, left);
#pragma unroll
  for (uint32_t r = 0; r < ROWS; r++)
    if (AT_OWNERS && r * 32 + lane - skip < left)
      __stcs((uint2 *)&to[r * 32 + lane - skip], entry[r]);
  c.at += left < ROWS * 32 - skip ? left : ROWS * 32 - skip;
  return true;
}

/* How many units in a row a warp takes for one look at where they begin, at most `most`: so many
 * that all warps have the same number in the end. */
__device__ inline uint32_t choose_group(uint32_t units, uint32_t warps, uint32_t most)
{
  const uint32_t rounds = (units - 1) / (warps * most) + 1;
  return (units - 1) / (warps * rounds) + 1;
}

} // namespace

#endif
