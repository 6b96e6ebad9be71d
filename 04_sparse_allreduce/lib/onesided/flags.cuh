/* SPDX-License-Identifier: Apache-2.0 */
/* One-sided exchange: ranks load from and store to each other's lists, and say by flags (struct
 * sparse_flags) what is there. A flag of sums, or a count of what has been stored, is written after
 * what it counts, with a fence in between. A rank that has read it sees that, too. The flags of
 * a list say where its entries are going to be, and how many; `stored` grows after the entries.
 *
 * Nothing is acknowledged, and nothing has to be. A rank that begins to store the list of its next
 * step has all sums of this one, so all owners are done with its list; and an owner that has all
 * flags of the next lists has no more readers of its sums. Histograms: see there. */
#ifndef OPS_FLAGS_CUH
#define OPS_FLAGS_CUH

#include "device/device.cuh"

/* Operators of struct sparse_onesided that are forms of others, beside those. */
ncclResult_t ops_pass_and_send(const sparse_memory *m, const void *gradient, cudaStream_t stream);
ncclResult_t ops_reduce_sent(const sparse_memory *m, enum sparse_sums which, cudaStream_t stream);
ncclResult_t ops_apply_sent(const sparse_memory *m, enum sparse_thresholds thresholds,
                            cudaStream_t stream);

/* ---- writing --------------------------------------------------------------------------------- */

/* Where this rank sees, in another one's memory, what lies at `mine` in its own. */
template <typename T>
static __device__ inline T *ops_at_peer(const sparse_memory &m, char *lists, T *mine)
{
  return (T *)(lists + ((const char *)mine - m.lists));
}

/* Of the step. Kernels that begin early read it: not through a cache, which is not cleared then. */
static __device__ inline uint32_t ops_epoch(const sparse_memory &m)
{
  return *(volatile uint32_t *)&m.state->progress.epoch;
}

/* What is needed to write flags to a rank in this step. It is loaded before there is anything to
 * write, because that is a trip to memory. */
struct ops_peer {
  char *lists; /* its memory */
  uint32_t epoch;
};

static __device__ inline ops_peer ops_peer_of(const sparse_memory &m, int p)
{
  return {m.state->fixed.peers[p], ops_epoch(m)};
}

/* `flag`: in this rank's memory, what is written is the one at the same place in the peer's. */
static __device__ inline void ops_write_flag(const sparse_memory &m, const ops_peer &peer,
                                             uint64_t *flag, uint32_t value)
{
  const uint64_t word = (uint64_t)peer.epoch << 32 | value;
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(ops_at_peer(m, peer.lists, flag)),
               "l"(word)
               : "memory");
}

/* ---- waiting --------------------------------------------------------------------------------- */

static __device__ inline uint64_t ops_read_flag(const uint64_t *flag)
{
  uint64_t word;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(flag) : "memory");
  return word;
}

/* Of several flags that are awaited the one that is read last: what its rank wrote before it is
 * there, too. Only one is read in this way, because these reads wait for each other. */
static __device__ inline uint64_t ops_read_last_flag(const uint64_t *flag)
{
  uint64_t word;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(flag) : "memory");
  return word;
}

/* A rank that has timed out takes no part any more: it sends nothing, so that all give up, and
 * touches no memory of others. */
static __device__ inline bool ops_late(const sparse_memory &m)
{
  return *(volatile uint32_t *)&m.state->progress.late != 0;
}

/* Is rank p, or another one, too late? Asked now and then; time counts only after the kernels
 * before this one have ended, which may be waiting themselves. */
static __device__ __noinline__ bool ops_give_up(const sparse_memory &m, int p, uint64_t *since)
{
  const double limit = m.config.timeout_seconds * 1e9;
  uint64_t now;
  if (*since == 0) ops_begin();
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  if (*since == 0) *since = now;
  if (ops_late(m)) return true;
  if (limit < 0 || (double)(now - *since) < limit) return false;
  *(volatile uint32_t *)&m.state->progress.late = (uint32_t)p + 1;
  return true;
}

/* Waits until there(epoch) says that what rank p writes in this step has come; false: timed out. */
template <typename F>
static __device__ inline bool ops_await(const sparse_memory &m, int p, F there)
{
  const uint32_t epoch = ops_epoch(m);
  uint64_t since = 0;
  for (uint32_t polls = 1; !there(epoch); polls++) {
    if (polls % 256 == 0 && ops_give_up(m, p, &since)) return false;
    __nanosleep(50); /* those that are waited for use that memory, too */
  }
  return true;
}

/* Waits for one flag, which has to say at least `least`, and what is before it. */
static __device__ inline bool ops_await_flag(const sparse_memory &m, int p, const uint64_t *flag,
                                             uint32_t least, uint32_t *value)
{
  uint64_t word = 0;
  const bool there = ops_await(m, p, [&](uint32_t epoch) {
    word = ops_read_last_flag(flag);
    return word >> 32 == epoch && (uint32_t)word >= least;
  });
  *value = (uint32_t)word;
  return there;
}

/* ---- lists ----------------------------------------------------------------------------------- */

/* The lists of all ranks, in shared memory. */
struct ops_lists {
  const sparse_pair *pairs[SPARSE_MAX_RANKS];
  uint32_t counts[SPARSE_MAX_RANKS];
};

/* All entries of a list count. */
static const sparse_level_t OPS_ALL_LEVELS = -1;

/* Writes to the owner of region p where its entries are going to be, and above which level they
 * count. Region p begins at begins[p] in the list. */
static __device__ inline void ops_signal_owner(const sparse_memory &m, const ops_peer &owner,
                                               const uint32_t *begins, int p, sparse_level_t level)
{
  uint64_t *flags = m.flags->lists[m.rank];
  ops_write_flag(m, owner, &flags[SPARSE_FLAG_FIRST], begins[p]);
  ops_write_flag(m, owner, &flags[SPARSE_FLAG_COUNT], begins[p + 1] - begins[p]);
  ops_write_flag(m, owner, &flags[SPARSE_FLAG_LEVEL], (uint32_t)level);
}

/* Says that `count` entries more are there: after storing them, and then ops_fence_system(). */
static __device__ inline void ops_count_stored(const sparse_memory &m, const ops_peer &owner,
                                               uint64_t count)
{
  uint64_t *stored = ops_at_peer(m, owner.lists, &m.flags->stored[m.rank]);
  asm volatile("red.relaxed.sys.global.add.u64 [%0], %1;" ::"l"(stored), "l"(count) : "memory");
}

/* Where the regions begin among the offered entries; a warp looks for each. */
static __device__ inline void ops_find_regions(const sparse_memory &m, uint32_t *begins)
{
  const uint32_t count = (uint32_t)m.state->offered_count;
  for (uint32_t j = threadIdx.x / 32; j <= (uint32_t)m.nranks; j += blockDim.x / 32) {
    const uint32_t at = ops_lower_bound(m.offered, 0, count, m.state->kept.boundaries[j]);
    if (threadIdx.x % 32 == 0) begins[j] = at;
  }
}

/* By `threads` threads of a block, of which this is number `thread`. */
static __device__ inline void ops_note_regions(const sparse_memory &m, const uint32_t *begins,
                                               uint32_t thread, uint32_t threads)
{
  for (int j = (int)thread; j < m.nranks; j += (int)threads) {
    m.state->region_displs[j] = begins[j];
    m.state->region_counts[j] = begins[j + 1] - begins[j];
  }
}

/* Where the share of a block begins in the part of the list that is for rank p. */
static __device__ inline uint32_t ops_share_begin(const uint32_t *begins, int p, uint32_t block)
{
  const uint32_t count = begins[p + 1] - begins[p];
  return begins[p] + min(count, (count / gridDim.x + 1) * block);
}

/* By all threads of a grid; `begins` is shared memory for a number per rank and one more. Each
 * block stores a share of every part in the owner's memory, and counts what it has stored: none has
 * to wait for the last one. So each looks where the regions begin, and what the first block writes
 * to the state, no other one reads. */
static __device__ inline void ops_store_at_owners(const sparse_memory &m, uint32_t *begins)
{
  if (__syncthreads_or(ops_late(m))) return;
  ops_find_regions(m, begins);
  __syncthreads();
  for (int p = (int)threadIdx.x; blockIdx.x == 0 && p < m.nranks; p += (int)blockDim.x)
    ops_signal_owner(m, ops_peer_of(m, p), begins, p, OPS_ALL_LEVELS);
  for (int step = 1; step < m.nranks; step++) { /* not all to the same one */
    const int p = (m.rank + step) % m.nranks;
    const uint32_t end = ops_share_begin(begins, p, blockIdx.x + 1);
    sparse_pair *to = m.state->fixed.list_at[p];
#pragma unroll 4
    for (uint32_t i = ops_share_begin(begins, p, blockIdx.x) + threadIdx.x; i < end;
         i += blockDim.x)
      *(uint2 *)&to[i] = *(const uint2 *)&m.offered[i];
  }
  __syncthreads();
  OPS_ROLLED
  for (int p = (int)threadIdx.x; p < m.nranks; p += (int)blockDim.x) {
    const uint32_t stored =
        ops_share_begin(begins, p, blockIdx.x + 1) - ops_share_begin(begins, p, blockIdx.x);
    ops_fence_system();
    if (p != m.rank && stored > 0) ops_count_stored(m, ops_peer_of(m, p), stored);
  }
  if (blockIdx.x == 0) ops_note_regions(m, begins, threadIdx.x, blockDim.x);
}

/* By all threads of a block: the lists that all ranks have for this one, and above which levels.
 * False, in all threads, if one is missing, or if this rank has to choose its own entries first:
 * others may be waiting for those. */
static __device__ inline bool ops_await_lists(const sparse_memory &m, ops_lists &lists,
                                              sparse_level_t *levels)
{
  __shared__ uint32_t stop;
  if (threadIdx.x == 0) stop = 0;
  const bool late = ops_late(m);
  bool there = true;
  __syncthreads();
  OPS_ROLLED
  for (int p = (int)threadIdx.x; p < m.nranks && there; p += (int)blockDim.x) {
    const uint64_t *flags = m.flags->lists[p], stored = m.state->progress.stored[p];
    const uint64_t *count_flag = &flags[SPARSE_FLAG_COUNT];
    const uint64_t *last = p == m.rank ? count_flag : &m.flags->stored[p];
    uint64_t first = 0, count = 0, level = 0;
    const bool came = ops_await(m, p, [&](uint32_t epoch) {
      if (atomicOr(&stop, 0u) != 0) return true;
      /* All blocks look, and memory answers one by one: only at this before it has come. */
      count = ops_read_flag(count_flag);
      if (count >> 32 != epoch) return false;
      first = ops_read_flag(&flags[SPARSE_FLAG_FIRST]);
      level = ops_read_flag(&flags[SPARSE_FLAG_LEVEL]);
      const uint64_t now = ops_read_last_flag(last);
      if ((uint32_t)count == SPARSE_TOO_MANY) atomicExch(&stop, 1u);
      return first >> 32 == epoch && level >> 32 == epoch &&
             (p == m.rank ? now == count : now - stored == (uint32_t)count);
    });
    there = came && atomicOr(&stop, 0u) == 0;
    lists.pairs[p] = m.received + m.state->fixed.list_displs[p] + (uint32_t)first;
    lists.counts[p] = (uint32_t)count;
    levels[p] = (sparse_level_t)(uint32_t)level;
  }
  return __syncthreads_and(there && !late);
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* Writes to a rank how many sums there are, and how many of its entries are in them. To be called
 * after ops_fence_system(), and that after writing the sums. Others wait for the first flag. */
static __device__ inline void ops_signal_sums(const sparse_memory &m, const ops_peer &peer,
                                              uint32_t sums, uint32_t taken)
{
  uint64_t *flags = m.flags->sums[m.rank];
  ops_write_flag(m, peer, &flags[SPARSE_FLAG_SUMS], sums);
  ops_write_flag(m, peer, &flags[SPARSE_FLAG_TAKEN], taken);
  ops_write_flag(m, peer, &flags[SPARSE_FLAG_NONFINITE], sparse_says_nonfinite(&m, m.state));
}

/* By all threads of a block: the sums of all ranks, where they are. False as above. */
static __device__ inline bool ops_await_sums(const sparse_memory &m, ops_lists &lists)
{
  const bool late = ops_late(m);
  bool there = true;
  OPS_ROLLED
  for (int p = (int)threadIdx.x; p < m.nranks && there; p += (int)blockDim.x) {
    lists.pairs[p] = ops_at_peer(m, m.state->fixed.peers[p], m.reduced);
    there = ops_await_flag(m, p, &m.flags->sums[p][SPARSE_FLAG_SUMS], 0, &lists.counts[p]);
  }
  return __syncthreads_and(there && !late);
}

/* After that: what else rank p writes, for the state. 0, if it does not come. */
static __device__ inline void ops_await_taken(const sparse_memory &m, int p)
{
  const uint64_t *flags = m.flags->sums[p];
  uint64_t taken = 0, nonfinite = 0;
  const auto both_there = [&](uint32_t epoch) {
    taken = ops_read_flag(&flags[SPARSE_FLAG_TAKEN]);
    nonfinite = ops_read_flag(&flags[SPARSE_FLAG_NONFINITE]);
    return taken >> 32 == epoch && nonfinite >> 32 == epoch;
  };
  const bool there = !ops_late(m) && ops_await(m, p, both_there);
  m.state->region_counts[p] = there ? (uint32_t)taken : 0;
  m.state->all_nonfinite[p] = (uint32_t)nonfinite;
}

/* ---- histograms --------------------------------------------------------------------------------
 * For round after round of a step, each rank has two places in the memory of every rank. A rank
 * that stores in one again has had all histograms of the round in between, whose owners have read
 * all of the one before. */

static __device__ inline uint32_t *ops_histogram(const sparse_memory &m, int p, uint32_t round)
{
  return m.histograms[2 * p + round % 2];
}

/* By all threads of a block: sums[b], in shared memory, becomes the sum of all ranks' bins[b]. All
 * come to this. False, in all threads, if one does not in time. */
static __device__ inline bool ops_add_histograms(const sparse_memory &m, const uint32_t *bins,
                                                 uint32_t round, uint32_t *sums)
{
  const uint32_t quads = SPARSE_BINS / 4;
  for (int step = 0; step < m.nranks; step++) {
    const int p = (m.rank + step) % m.nranks;
    uint4 *to = (uint4 *)ops_at_peer(m, m.state->fixed.peers[p], ops_histogram(m, m.rank, round));
    for (uint32_t q = threadIdx.x; q < quads; q += blockDim.x)
      to[q] = __ldcg((const uint4 *)bins + q);
  }
  __syncthreads();
  bool there = true;
  OPS_ROLLED
  for (int p = (int)threadIdx.x; p < m.nranks; p += (int)blockDim.x) {
    const ops_peer peer = ops_peer_of(m, p);
    ops_fence_system();
    ops_write_flag(m, peer, &m.flags->histograms[m.rank], round);
  }
  OPS_ROLLED
  for (int p = (int)threadIdx.x; p < m.nranks && there; p += (int)blockDim.x) {
    uint32_t its_round;
    there = ops_await_flag(m, p, &m.flags->histograms[p], round, &its_round);
  }
  if (!__syncthreads_and(there)) return false;
  for (uint32_t q = threadIdx.x; q < quads; q += blockDim.x) {
    uint4 sum = make_uint4(0, 0, 0, 0);
    for (int p = 0; p < m.nranks; p++) {
      const uint4 theirs = __ldcg((const uint4 *)ops_histogram(m, p, round) + q);
      sum.x += theirs.x, sum.y += theirs.y, sum.z += theirs.z, sum.w += theirs.w;
    }
    ((uint4 *)sums)[q] = sum;
  }
  return true;
}

/* Of the `wanted` first entries in a bin of that round, ranks taking theirs in turn: this one's. */
static __device__ inline uint64_t ops_own_share(const sparse_memory &m, uint32_t round,
                                                uint32_t bin, uint64_t wanted)
{
  uint64_t before = 0;
  for (int p = 0; p < m.rank; p++) before += __ldcg(&ops_histogram(m, p, round)[bin]);
  const uint64_t own = __ldcg(&ops_histogram(m, m.rank, round)[bin]);
  const uint64_t left = wanted > before ? wanted - before : 0;
  return own < left ? own : left;
}

#endif
