/* SPDX-License-Identifier: Apache-2.0 */
/* Two-shot: for large vectors, whose time depends on the bytes that go over the links. Each rank
 * adds one slice: it loads that slice from every rank and stores the sums to every rank. One-shot,
 * where every rank adds everything, moves n / 2 times as many bytes.
 *
 *   barrier   all ranks are in this call: send buffers are filled, receive buffers may be written
 *   add       load this rank's slice from all ranks, add in rank order, store the sums to all ranks
 *   barrier   all ranks have finished with this rank's buffers
 *
 * Why this is right:
 * - Send and receive buffers. This kernel is not launched early, unlike those of lines.cuh. Other
 *   ranks read what the previous kernel wrote. An early kernel would need a flag with release
 *   semantics, which costs more than the overlap gains. Let A and B be two ranks. A stores into B's
 *   receive buffer, and reads B's send buffer, only after the flag BEGUN of B in this call. B sets
 *   it in its kernel, so earlier work of its stream on the buffers is done. B's kernel waits for
 *   the flag ENDED from every block of A, which comes after A's loads and stores. So later work of
 *   B's stream cannot conflict with them.
 * - Flags. A waits until a flag has this call's tag. Only a later call can replace the flag, and B
 *   cannot begin a later call before A has seen this one: B waits for ENDED of this call from the
 *   same block of A, which sends it after it has seen BEGUN. ENDED of a later call comes after
 *   BEGUN of that call, for which A must have ended this one.
 * - In place. Each word, or element of head and tail, is loaded from all ranks by one thread of one
 *   rank, and then stored to all of them by the same thread; no other thread touches it. For this a
 *   word must belong to one slice as a whole, wherever the vector begins. So slices are cut at
 *   multiples of 16 bytes of the address, and elements before and after are added one by one
 *   (allreduce_slice_of).
 * - Progress. Block b waits for block b of the other ranks. All ranks launch the same number of
 *   blocks, and no more than fit on each GPU at the same time (allreduce_limits).
 *
 * Loads are plain loads. They must not use the cache for read-only data (ld.global.nc), which may
 * hold data from before the barrier. So no pointer here is `const __restrict__`. */
#ifndef ALLREDUCE_TWOSHOT_CUH
#define ALLREDUCE_TWOSHOT_CUH

#include "allreduce_sum.cuh"
#include "allreduce_wait.cuh"

/* Adds words i, i + 32, ... (U of them) of all ranks. All loads are in flight before the first
 * addition waits. Ranks are taken in groups, because there are not enough registers for all. */
template <typename S, typename Word, int N, int U>
static __device__ __forceinline__ void add_words(const kernel_args<N> &a, size_t at, size_t i)
{
  constexpr int G = N < 8 ? N : 8;
  running_sum<S, Word> sum[U];
  for (int first = 0; first < ranks(a); first += G) {
    Word word[U][G];
#pragma unroll
    for (int u = 0; u < U; u++)
#pragma unroll
      for (int g = 0; g < G; g++)
        if (first + g < ranks(a)) word[u][g] = ((const Word *)(a.send[first + g] + at))[i + u * 32];
#pragma unroll
    for (int u = 0; u < U; u++)
#pragma unroll
      for (int g = 0; g < G; g++)
        if (first + g < ranks(a)) sum[u].add(word[u][g], first + g == 0);
  }
  for (int q = 0; q < ranks(a); q++) {
    Word *to = (Word *)(a.recv[nth_peer(a, q)] + at);
#pragma unroll
    for (int u = 0; u < U; u++) to[i + u * 32] = sum[u].word();
  }
}

/* Adds words first ... end - 1; word 0 is at offset `at` in the buffers. A warp takes pieces of U
 * times 32 words, with neighboring pieces on different multiprocessors. */
template <typename S, typename Word, int N, int U>
static __device__ __forceinline__ void add_range(const kernel_args<N> &a, size_t at, size_t first,
                                                 size_t end)
{
  const size_t step = (size_t)gridDim.x * (blockDim.x / 32) * (32 * U);
  const int lane = threadIdx.x % 32;
  size_t i = first + (threadIdx.x / 32 * (size_t)gridDim.x + blockIdx.x) * (32 * U);
  for (; i + 32 * U <= end; i += step) add_words<S, Word, N, U>(a, at, i + lane);
  for (int u = 0; u < U; u++) /* the last piece may be shorter */
    if (i + u * 32 + lane < end) add_words<S, Word, N, 1>(a, at, i + u * 32 + lane);
}

/* One AllReduce. S defines how elements are added, U is how many words a thread has in flight. */
template <typename S, int N, int U>
static __device__ __forceinline__ void twoshot_allreduce(const kernel_args<N> &a)
{
  typedef typename S::element T;
  const uint64_t tag = begin_call(a);
  if (barrier_before(a, tag)) {
    count_for_others(a, tag);
    const struct allreduce_slice s = a.slice;
    const size_t head = s.head * sizeof(T);
    if (s.misaligned) {
      add_range<S, T, N, 4>(a, 0, s.first, s.end);
    } else {
      add_range<S, uint4, N, U>(a, head, s.first, s.end);
      if (s.has_edges) {
        add_range<S, T, N, 1>(a, 0, 0, s.head);
        add_range<S, T, N, 1>(a, 0, s.tail, a.count);
      }
    }
    barrier_after(a, tag);
  }
  end_call(a, tag);
}

#endif
