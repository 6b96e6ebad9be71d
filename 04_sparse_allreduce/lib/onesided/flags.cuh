/* SPDX-License-Identifier: Apache-2.0 */
/* One-sided exchange: ranks load from and store to each other's lists, and tell each other by flags
 * (struct sparse_flags) what is there. A flag of sums, or a count of what has been stored, is
 * written after what it speaks of, with a fence in between; who has read it sees that too. A flag
 * of a list says where the list is going to be; the count is what follows the entries.
 *
 * Nothing is acknowledged, and nothing has to be. A rank that begins to store the list of its next
 * step has all sums of this one, so all owners have done with its list; and an owner that has all
 * flags of the next lists has no more readers of its sums. Histograms: see there. */
#ifndef OPS_FLAGS_CUH
#define OPS_FLAGS_CUH

#include "device/device.cuh"

/* Where this rank sees, in another one's memory, what lies at `mine` in its own. */
template <typename T>
static __device__ inline T *ops_at_peer(const sparse_memory &m, char *lists, T *mine)
{
  return (T *)(lists + ((const char *)mine - m.lists));
}

template <typename T>
static __device__ inline T *ops_at_peer(const sparse_memory &m, int p, T *mine)
{
  return ops_at_peer(m, m.state->peers[p], mine);
}

/* Of the step. Kernels that begin early look at it, so not through a cache that nobody clears for
 * them. */
static __device__ inline uint32_t ops_epoch(const sparse_memory &m)
{
  return *(volatile uint32_t *)&m.state->epoch;
}

/* What it takes to tell a rank something in this step. Who is being waited for asks for it before
 * there is anything to tell: that is a trip to memory. */
struct ops_peer {
  char *lists; /* its memory */
  uint32_t epoch;
};

static __device__ inline ops_peer ops_peer_of(const sparse_memory &m, int p)
{
  return {m.state->peers[p], ops_epoch(m)};
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

/* Once in a while: has rank p, or another one, kept us waiting for too long? Not before the kernels
 * before this one have ended, which may be waiting themselves. */
static __device__ __noinline__ bool ops_give_up(const sparse_memory &m, int p, uint64_t *since)
{
  const double limit = m.config.timeout_seconds * 1e9;
  if (*since == 0) {
    ops_begin();
    *since = ops_clock();
  }
  if (ops_late(m)) return true;
  if (limit == 0 || (double)(ops_clock() - *since) < limit) return false;
  *(volatile uint32_t *)&m.state->late = (uint32_t)p + 1;
  return true;
}

static __device__ inline uint64_t ops_read_flag(const uint64_t *flag)
{
  uint64_t word;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(flag) : "memory");
  return word;
}

/* Of several flags that are awaited the one that is read last: what its rank wrote before it is
 * there, too. Only one is read in this way, since such reads wait for each other. */
static __device__ inline uint64_t ops_read_last_flag(const uint64_t *flag)
{
  uint64_t word;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(flag) : "memory");
  return word;
}

/* Waits until what is asked for is there of rank p and of this step; false if it does not come, or
 * nobody is to wait any more. */
template <typename F, typename G>
static __device__ inline bool ops_await(const sparse_memory &m, int p, F all_there, G stopped)
{
  const uint32_t epoch = ops_epoch(m);
  uint64_t since = 0;
  for (uint32_t polls = 1; !all_there(epoch); polls++) {
    if (stopped() || (polls % 256 == 0 && ops_give_up(m, p, &since))) return false;
    __nanosleep(50); /* others want that memory, too: those that are waited for */
  }
  return true;
}

template <typename F>
static __device__ inline bool ops_await(const sparse_memory &m, int p, F all_there)
{
  return ops_await(m, p, all_there, [] { return false; });
}

/* The lists of all ranks, in shared memory. */
struct ops_lists {
  const sparse_pair *pairs[SPARSE_MAX_RANKS];
  uint32_t counts[SPARSE_MAX_RANKS];
};

/* Tells the owner of region p where its entries are going to be, and above which level they count.
 * Region p begins at begins[p] in the list. */
static __device__ inline void ops_signal_owner(const sparse_memory &m, const ops_peer &owner,
                                               const uint32_t *begins, int p, sparse_level_t level)
{
  uint64_t *flags = m.flags->lists[m.rank];
  ops_write_flag(m, owner, &flags[SPARSE_FLAG_FIRST], begins[p]);
  ops_write_flag(m, owner, &flags[SPARSE_FLAG_COUNT], begins[p + 1] - begins[p]);
  ops_write_flag(m, owner, &flags[SPARSE_FLAG_LEVEL], (uint32_t)level);
}

/* All entries of a list count. */
static const sparse_level_t OPS_ALL_LEVELS = -1;

/* How many of `count` entries a block has, if the threads of the grid take them in turn. */
static __device__ inline uint32_t ops_share(uint32_t count)
{
  const uint32_t threads = gridDim.x * blockDim.x, first = blockIdx.x * blockDim.x;
  const uint32_t rest = count % threads, mine = rest > first ? rest - first : 0;
  return count / threads * blockDim.x + (mine < blockDim.x ? mine : blockDim.x);
}

/* Says that `count` entries more have been stored there. To be called after ops_fence_system(), and
 * that after storing them. */
static __device__ inline void ops_count_stored(const sparse_memory &m, const ops_peer &owner,
                                               uint64_t count)
{
  uint64_t *stored = ops_at_peer(m, owner.lists, &m.flags->stored[m.rank]);
  asm volatile("red.relaxed.sys.global.add.u64 [%0], %1;" ::"l"(stored), "l"(count) : "memory");
}

/* By all threads of a block: the entries for the owners of regions to their memory, and then how
 * many that were. Every block counts its own: none has to wait for the last one. */
static __device__ inline void ops_store_parts(const sparse_memory &m, const uint32_t *begins)
{
  const uint32_t threads = gridDim.x * blockDim.x;
  for (int step = 1; step < m.nranks; step++) { /* not all to the same one */
    const int p = (m.rank + step) % m.nranks;
    sparse_pair *to = m.state->list_at[p];
    const uint32_t me = blockIdx.x * blockDim.x + threadIdx.x;
#pragma unroll 4
    for (uint64_t i = (uint64_t)begins[p] + me; i < begins[p + 1]; i += threads)
      *(uint2 *)&to[i] = *(const uint2 *)&m.offered[i];
  }
  __syncthreads();
  OPS_ROLLED
  for (int p = (int)threadIdx.x; p < m.nranks; p += (int)blockDim.x) {
    const ops_peer owner = ops_peer_of(m, p);
    ops_fence_system();
    const uint64_t share = ops_share(begins[p + 1] - begins[p]);
    if (p != m.rank && share > 0) ops_count_stored(m, owner, share);
  }
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
    const uint64_t *flags = m.flags->lists[p], stored = m.state->stored[p];
    const sparse_pair *list = m.received + m.state->list_displs[p];
    const uint64_t *count_flag = &flags[SPARSE_FLAG_COUNT];
    const uint64_t *last = p == m.rank ? count_flag : &m.flags->stored[p];
    uint64_t first = 0, count = 0, level = 0;
    const auto all_there = [&](uint32_t epoch) {
      /* All blocks look, and memory answers one by one: only at this before it has come. */
      count = ops_read_flag(count_flag);
      if (count >> 32 != epoch) return false;
      first = ops_read_flag(&flags[SPARSE_FLAG_FIRST]);
      level = ops_read_flag(&flags[SPARSE_FLAG_LEVEL]);
      const uint64_t now = ops_read_last_flag(last);
      if ((uint32_t)count == SPARSE_TOO_MANY) atomicExch(&stop, 1u);
      return first >> 32 == epoch && level >> 32 == epoch &&
             (p == m.rank ? now == count : now - stored == (uint32_t)count);
    };
    there = ops_await(m, p, all_there, [&] { return atomicOr(&stop, 0u) != 0; });
    lists.pairs[p] = list + (uint32_t)first;
    lists.counts[p] = (uint32_t)count;
    levels[p] = (sparse_level_t)(uint32_t)level;
  }
  return __syncthreads_and(there && !late);
}

/* ---- histograms --------------------------------------------------------------------------------
 * For round after round of a step, each rank has two places in the memory of every rank. Who stores
 * in one again has had all histograms of the round in between, whose owners have read all of the
 * one before. */

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
    uint4 *to = (uint4 *)ops_at_peer(m, p, ops_histogram(m, m.rank, round));
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
    const uint64_t *flag = &m.flags->histograms[p];
    const auto all_there = [&](uint32_t epoch) {
      const uint64_t word = ops_read_last_flag(flag);
      return word >> 32 == epoch && (uint32_t)word >= round;
    };
    there = ops_await(m, p, all_there);
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

/* ---- sums --------------------------------------------------------------------------------------
 */

/* Tells a rank how many sums there are, and how many of its entries are in them. To be
 * called after ops_fence_system(), and that after writing the sums. The first flag is the one that
 * others wait for. */
static __device__ inline void ops_signal_sums(const sparse_memory &m, const ops_peer &peer,
                                              uint32_t sums, uint32_t taken)
{
  uint64_t *flags = m.flags->sums[m.rank];
  ops_write_flag(m, peer, &flags[SPARSE_FLAG_SUMS], sums);
  ops_write_flag(m, peer, &flags[SPARSE_FLAG_TAKEN], taken);
  ops_write_flag(m, peer, &flags[SPARSE_FLAG_NONFINITE], sparse_says_nonfinite(&m, m.state));
}

/* By all threads of a block: everybody's sums, where they are. False as above. */
static __device__ inline bool ops_await_sums(const sparse_memory &m, ops_lists &lists)
{
  const bool late = ops_late(m);
  bool there = true;
  OPS_ROLLED
  for (int p = (int)threadIdx.x; p < m.nranks && there; p += (int)blockDim.x) {
    const sparse_pair *pairs = ops_at_peer(m, p, m.reduced);
    uint64_t sums = 0;
    const auto is_there = [&](uint32_t epoch) {
      sums = ops_read_last_flag(&m.flags->sums[p][SPARSE_FLAG_SUMS]);
      return sums >> 32 == epoch;
    };
    there = ops_await(m, p, is_there);
    lists.pairs[p] = pairs;
    lists.counts[p] = (uint32_t)sums;
  }
  return __syncthreads_and(there && !late);
}

/* After that: what else rank p tells. Returns how many entries it has taken of this rank's, and
 * flags if a gradient was not finite. Nothing, if it does not come. */
static __device__ inline uint32_t ops_await_taken(const sparse_memory &m, int p)
{
  const uint64_t *flags = m.flags->sums[p];
  uint64_t taken = 0, nonfinite = 0;
  const auto all_there = [&](uint32_t epoch) {
    taken = ops_read_flag(&flags[SPARSE_FLAG_TAKEN]);
    nonfinite = ops_read_flag(&flags[SPARSE_FLAG_NONFINITE]);
    return taken >> 32 == epoch && nonfinite >> 32 == epoch;
  };
  if (ops_late(m) || !ops_await(m, p, all_there)) return 0;
  if ((uint32_t)nonfinite != 0) m.state->nonfinite = (uint32_t)nonfinite;
  return (uint32_t)taken;
}

#endif
