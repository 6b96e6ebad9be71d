/* SPDX-License-Identifier: Apache-2.0 */
/* AllReduce by pushes: for large vectors, whose time depends on the bytes that go over the links.
 * Each rank adds one slice of the vector. Over NVLink stores are faster than loads, so ranks only
 * store: each one pushes its part of a slice to the rank that adds it, and that rank pushes the
 * sums to all. The parts go to scratch memory. It need not hold a whole slice, because a block
 * takes its share in rounds, and each round's chunk has one of two slots:
 *
 *   round r   wait until all have freed the slots of r - 2
 *             push chunk r of every other rank's slice to that rank; tell it: READY
 *             wait until the chunks r - 1 of all are in the slots here
 *             add them in rank order, push the sums to all; tell all: FREED
 *   at last   tell all: ENDED, and wait for theirs
 *
 * Why this is right. Let A and B be two ranks. Flags are stored with release and loaded with
 * acquire semantics, after and before a barrier of the block. Block b only has to do with block b
 * of other ranks: they push, add and free chunks of the same place.
 * - No slot is overwritten before it has been read. In a call, A pushes chunk r >= 2 to B after B
 *   has told FREED of r - 2, which is after B's loads. Chunks 0 and 1: A is in this call, so its
 *   previous kernels have ended. The last one that pushed had ENDED from every block of B, which
 *   comes after all loads of that block's slots. So all slots are free, even if this call divides
 *   them otherwise. No other method uses this memory.
 * - No flag of an older call is taken for one of this call: it has another epoch.
 * - No sum is stored too early. A stores sums of a chunk to B after READY of that chunk from B, in
 *   this call. So earlier work of B's stream on the receive buffer is done; and if B's vector is in
 *   place, B has loaded what these sums replace. A's own chunk is loaded and replaced by the same
 *   thread. Nobody else reads a send buffer: it may be any memory, anywhere.
 * - The result is complete when the kernel ends: B waits for ENDED from every rank, which releases
 *   all sums that the block has stored.
 * - Progress. All blocks run at once (allreduce_limits). In round r a block waits at most for FREED
 *   of chunk r - 2, which is told in round r - 1, and for READY of r - 1, and it has told its own
 *   READY of r - 1 before. The last two rounds tell no FREED: ENDED does.
 * - Counts that differ. The first two chunks are pushed before anything is compared, into slots of
 *   this call's layout, which are within the slots' memory for every count. They are never added:
 *   READY of another count is no READY of this call.
 *
 * Loads of slots are plain loads. They must not use the cache for read-only data (ld.global.nc),
 * which may hold data from before the flag. So no pointer here is `const __restrict__`. */
#ifndef ALLREDUCE_PUSH_CUH
#define ALLREDUCE_PUSH_CUH

#include "allreduce_sum.cuh"
#include "allreduce_wait.cuh"

/* One chunk, as its words are divided among the threads: warps take pieces of U times 32 words. */
template <int N>
struct chunk {
  uint32_t round, words;
  size_t at; /* its first word */

  __device__ chunk(const kernel_args<N> &a, int slice, uint32_t round) : round(round)
  {
    at = allreduce_chunk_at(a.push, slice, round, blockIdx.x, gridDim.x, &words);
  }
  /* The slot of `source` for this chunk in the memory of `owner`. */
  __device__ uint4 *slot(const kernel_args<N> &a, int owner, int source) const
  {
    const int after = source - owner + (source < owner ? ranks(a) : 0);
    return (uint4 *)(a.scratch[owner] +
                     allreduce_slot_at(a.push, after, round, blockIdx.x, gridDim.x));
  }
};

/* Loads words i, i + 32, ... of this rank's vector, as many as there are up to `end`. */
template <typename T, int U, int N>
static __device__ __forceinline__ void load_own(const kernel_args<N> &a, size_t i, size_t end,
                                                uint4 v[U])
{
#pragma unroll
  for (int u = 0; u < U; u++, i += 32)
    if (i < end)
      v[u] = load_word<T, uint4, false>(a.send - a.push.skip + i * ALLREDUCE_WORD, a.send,
                                        a.send + a.push.bytes);
}

/* Pushes chunk `round` of every other rank's slice into the slots of that rank; but nothing if this
 * rank has given up. The loads need not wait until that is known. */
template <typename T, int U, int N>
static __device__ __forceinline__ void push_chunks(const kernel_args<N> &a, uint32_t round,
                                                   bool given_up)
{
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int q = 1; q < ranks(a); q++) {
    const int p = nth_peer(a, q);
    const chunk<N> c(a, p, round);
    uint4 *to = c.slot(a, p, a.rank);
    for (uint32_t i = warp * 32 * U; i < c.words; i += blockDim.x * U) {
      uint4 v[U];
      load_own<T, U>(a, c.at + i + lane, c.at + c.words, v);
#pragma unroll
      for (int u = 0; u < U; u++)
        if (!given_up && i + u * 32 + lane < c.words) to[i + u * 32 + lane] = v[u];
    }
  }
}

/* Adds chunk `round` of this rank's slice and pushes the sums to all ranks. The loads of a piece
 * are all in flight before the first addition waits; ranks are taken in groups, because there are
 * not enough registers for all. */
template <typename S, int U, int N>
static __device__ __forceinline__ void add_chunk(const kernel_args<N> &a, uint32_t round)
{
  typedef typename S::element T;
  constexpr int G = N < 4 ? N : 4;
  const chunk<N> c(a, a.rank, round);
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (uint32_t i = warp * 32 * U; i < c.words; i += blockDim.x * U) {
    running_sum<S, uint4> sum[U];
    uint4 own[U];
    load_own<T, U>(a, c.at + i + lane, c.at + c.words, own);
    for (int first = 0; first < ranks(a); first += G) {
      uint4 v[U][G];
#pragma unroll
      for (int g = 0; g < G; g++) {
        const int r = first + g;
        const uint4 *slot = r < ranks(a) && r != a.rank ? c.slot(a, a.rank, r) : NULL;
#pragma unroll
        for (int u = 0; u < U; u++)
          if (i + u * 32 + lane < c.words)
            v[u][g] = slot != NULL ? slot[i + u * 32 + lane] : own[u];
      }
#pragma unroll
      for (int u = 0; u < U; u++)
#pragma unroll
        for (int g = 0; g < G; g++)
          if (first + g < ranks(a)) sum[u].add(v[u][g], first + g == 0);
    }
    uint4 word[U];
#pragma unroll
    for (int u = 0; u < U; u++) word[u] = sum[u].word();
    for (int q = 0; q < ranks(a); q++) {
      char *recv = a.recv[nth_peer(a, q)];
      char *to = recv - a.push.skip + (c.at + i + lane) * ALLREDUCE_WORD;
#pragma unroll
      for (int u = 0; u < U; u++)
        if (i + u * 32 + lane < c.words)
          store_word<T, false>(to + u * (32 * ALLREDUCE_WORD), word[u], recv, recv + a.push.bytes);
    }
  }
}

/* One AllReduce. S defines how elements are added, U is how many words a thread has in flight. */
template <typename S, int U, int N>
static __device__ __forceinline__ void push_allreduce(const kernel_args<N> &a)
{
  const uint32_t rounds = a.push.rounds;
  wait_for_kernel_before(a);
  const uint64_t tag = begin_call(a, load_memory(a));
  bool come = true;
  for (uint32_t r = 0; come && r <= rounds; r++) {
    if (r < rounds) {
      if (r >= ALLREDUCE_SLOTS) come = await_all(a, ALLREDUCE_FREED, tag, r + 1 - ALLREDUCE_SLOTS);
      if (!come) break;
      push_chunks<typename S::element, U>(a, r, tag == 0);
      come = tag != 0;
      if (!come) break;
      tell_all(a, ALLREDUCE_READY, tag, r + 1);
      if (r == 0) announce(a, tag);
    }
    if (r > 0) {
      come = await_all(a, ALLREDUCE_READY, tag, r);
      if (!come) break;
      add_chunk<S, U>(a, r - 1);
      if (r - 1 + ALLREDUCE_SLOTS < rounds) tell_all(a, ALLREDUCE_FREED, tag, r);
    }
  }
  launch_next_kernel(a);
  if (come) {
    tell_all(a, ALLREDUCE_ENDED, tag, 0);
    await_all(a, ALLREDUCE_ENDED, tag, 0);
  }
}

#endif
