/* SPDX-License-Identifier: Apache-2.0 */
/* Direct exchange: ranks load from and store to each other's lists, and tell each other by notes
 * (struct sparse_notes) what is there. A note is written behind what it speaks of, with a fence in
 * between; who has read the note sees that too.
 *
 * Nothing is acknowledged, and nothing has to be. A rank that offers the list of its next step has
 * all sums of this one, so all owners have done with its list; and an owner that has all offers of
 * the next step has no more readers of its sums. */
#ifndef OPS_NOTES_CUH
#define OPS_NOTES_CUH

#include "ops_device.cuh"

/* Where this rank sees, in the memory of rank p, what lies at `mine` in its own. */
template <typename T>
static __device__ inline T *ops_at_peer(const sparse_memory &m, int p, T *mine)
{
  return (T *)(m.state->peers[p] + ((const char *)mine - m.lists));
}

static __device__ inline void ops_write_note(const sparse_memory &m, uint64_t *note, uint32_t value)
{
  const uint64_t word = (uint64_t)m.state->number << 32 | value;
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(note), "l"(word) : "memory");
}

static __device__ inline uint64_t ops_clock(void)
{
  uint64_t nanoseconds;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
  return nanoseconds;
}

/* Whoever has waited in vain takes no part any more: it tells nobody of anything, so that all give
 * up, and touches no memory of others. */
static __device__ inline bool ops_late(const sparse_memory &m)
{
  return *(volatile uint32_t *)&m.state->late != 0;
}

/* Once in a while: has rank p, or another one, kept us waiting for too long? */
static __device__ __noinline__ bool ops_give_up(const sparse_memory &m, int p, uint64_t *since)
{
  const double limit = m.config.timeout_seconds * 1e9;
  if (ops_late(m)) return true;
  if (*since == 0) *since = ops_clock();
  if (limit == 0 || (double)(ops_clock() - *since) < limit) return false;
  *(volatile uint32_t *)&m.state->late = (uint32_t)p + 1;
  return true;
}

/* Waits for the notes of rank p in this step; false if they do not come. */
template <int COUNT>
static __device__ inline bool ops_await(const sparse_memory &m, int p, const uint64_t *notes,
                                        uint32_t (&values)[COUNT])
{
  const uint32_t number = m.state->number;
  uint64_t since = 0;
  for (uint32_t polls = 1;; polls++) {
    bool there = true;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      uint64_t word;
      asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(notes + i) : "memory");
      there = there && word >> 32 == number;
      values[i] = (uint32_t)word;
    }
    if (there) return true;
    if (polls % 256 == 0 && ops_give_up(m, p, &since)) return false;
  }
}

/* The lists of all ranks, in shared memory. */
struct ops_lists {
  const sparse_pair *pairs[SPARSE_MAX_RANKS];
  uint32_t counts[SPARSE_MAX_RANKS];
};

/* By all threads of a block: tells the owners of regions where their entries are. Region p begins
 * at begins[p] in the list. */
static __device__ inline void ops_tell_owners(const sparse_memory &m, const uint32_t *begins)
{
  for (int p = (int)threadIdx.x; p < m.nranks; p += (int)blockDim.x) {
    uint64_t *notes = ops_at_peer(m, p, m.notes->lists[m.rank]);
    __threadfence_system();
    ops_write_note(m, &notes[SPARSE_NOTE_FIRST], begins[p]);
    ops_write_note(m, &notes[SPARSE_NOTE_COUNT], begins[p + 1] - begins[p]);
  }
}

/* By all threads of a block: the lists that all ranks have for this one. False, in all threads, if
 * one is missing. */
static __device__ inline bool ops_await_lists(const sparse_memory &m, ops_lists &lists)
{
  bool there = !ops_late(m);
  for (int p = (int)threadIdx.x; p < m.nranks && there; p += (int)blockDim.x) {
    uint32_t values[SPARSE_LIST_NOTES];
    there = ops_await(m, p, m.notes->lists[p], values);
    lists.pairs[p] = m.received + m.state->slot_displs[p] + values[SPARSE_NOTE_FIRST];
    lists.counts[p] = values[SPARSE_NOTE_COUNT];
  }
  return __syncthreads_and(there);
}

/* By all threads of a block: tells everybody how many sums there are. */
static __device__ inline void ops_tell_sums(const sparse_memory &m, uint32_t sums)
{
  for (int p = (int)threadIdx.x; p < m.nranks; p += (int)blockDim.x) {
    uint64_t *notes = ops_at_peer(m, p, m.notes->sums[m.rank]);
    __threadfence_system();
    ops_write_note(m, &notes[SPARSE_NOTE_SUMS], sums);
    ops_write_note(m, &notes[SPARSE_NOTE_NONFINITE], sparse_says_nonfinite(&m, m.state));
  }
}

/* By all threads of a block: everybody's sums, where they are. False as above. */
static __device__ inline bool ops_await_sums(const sparse_memory &m, ops_lists &lists)
{
  bool there = !ops_late(m);
  for (int p = (int)threadIdx.x; p < m.nranks && there; p += (int)blockDim.x) {
    uint32_t values[SPARSE_SUM_NOTES];
    there = ops_await(m, p, m.notes->sums[p], values);
    if (values[SPARSE_NOTE_NONFINITE]) m.state->nonfinite = 1;
    lists.pairs[p] = ops_at_peer(m, p, m.reduced);
    lists.counts[p] = values[SPARSE_NOTE_SUMS];
  }
  return __syncthreads_and(there);
}

#endif
