/* SPDX-License-Identifier: Apache-2.0 */
/* One-shot with lines: for small vectors, where what counts is how often GPUs wait for each other.
 *
 * A line is 8 bytes of data and 8 bytes of tag, stored by one instruction. The tag has the number
 * of the call (protocol.h). Every rank stores its vector to every other rank, as lines into scratch
 * memory, which is the library's own, and waits for nothing before it does so. Then it waits for
 * the lines of the others: where a tag has come the data has come too. So there is one trip over
 * the link, and no barrier.
 *
 * Why no line is overwritten before it has been read. Let A and B be two ranks and e a call. A
 * begins e when its kernel has waited for the one before (wait_for_kernel_before), and has then
 * finished e - 1, because the calls of a handle follow each other on every rank. And: (1) Whoever
 * has a line or a flag of e from A knows that A has finished e - 1. (2) Whoever has finished e has
 * had a line or a flag of e from every other rank: each call has at least one element, so with
 * lines there is one to wait for; two-shot waits for a flag. In e, A stores lines into its part at
 * B, which has one half for odd and one for even numbers. They replace those of e - 2 or of an
 * older call. A has begun e and so finished e - 1; by (2) it had something of e - 1 from B; by (1)
 * B has finished e - 2, and with it the reading of these lines. Those of e - 1, which B may still
 * be reading, are in the other half. It does not matter which method a call takes, how many
 * elements or blocks it has, or whether it comes from a graph: each one counts the number on by
 * one. A call without elements does nothing on any rank and is not counted.
 *
 * Flags and the layout of the scratch memory are explained in protocol.h; wait.cuh has what the
 * kernels begin, wait and end with.
 *
 * Nothing but scratch memory is written by others, so send and receive buffer need no window here.
 * In place is right, because the thread that replaces a word has stored it to everybody before. */
#ifndef ALLREDUCE_LINES_CUH
#define ALLREDUCE_LINES_CUH

#include "sum.cuh"
#include "wait.cuh"

/* Up to 8 bytes at `from`, which is aligned to an element of type T only. */
template <typename T>
static __device__ __noinline__ uint64_t load_elements(const char *from, size_t left)
{
  union {
    uint64_t all;
    T element[8 / sizeof(T)];
  } u;
  u.all = 0;
#pragma unroll
  for (int i = 0; i < (int)(8 / sizeof(T)); i++)
    if (i * sizeof(T) < left) u.element[i] = ((const T *)from)[i];
  return u.all;
}

template <typename T>
static __device__ __noinline__ void store_elements(char *to, uint64_t value, size_t left)
{
  union {
    uint64_t all;
    T element[8 / sizeof(T)];
  } u;
  u.all = value;
#pragma unroll
  for (int i = 0; i < (int)(8 / sizeof(T)); i++)
    if (i * sizeof(T) < left) ((T *)to)[i] = u.element[i];
}

/* The words of one thread. */
template <typename T, int N>
struct line_words {
  const char *send;
  char *recv;
  size_t bytes;

  __device__ line_words(const kernel_args<N> &a)
      : send(a.send[a.rank]), recv(a.recv[a.rank]), bytes(a.count * sizeof(T))
  {
  }
  __device__ __forceinline__ uint64_t load(size_t i) const
  {
    const char *from = send + i * 8;
    return ((uintptr_t)send & 7) == 0 && i * 8 + 8 <= bytes ? *(const uint64_t *)from
                                                            : load_elements<T>(from, bytes - i * 8);
  }
  __device__ __forceinline__ void store(size_t i, uint64_t value) const
  {
    char *to = recv + i * 8;
    if (((uintptr_t)recv & 7) == 0 && i * 8 + 8 <= bytes)
      *(uint64_t *)to = value;
    else
      store_elements<T>(to, value, bytes - i * 8);
  }
};

/* Adds line i of ranks first ... first + G - 1 to the sum; my own is `mine`. All loads are on their
 * way together. Returns false where the wait was given up. */
template <typename S, int N, int G>
static __device__ __forceinline__ bool add_lines(const kernel_args<N> &a, size_t i, int first,
                                                 uint64_t tag, uint64_t mine,
                                                 running_sum<S, uint64_t> &sum)
{
  const char *from = a.scratch[a.rank] +
                     allreduce_lines_at(a.lines, ranks(a), allreduce_number(tag), first) +
                     i * sizeof(struct allreduce_line);
  struct allreduce_line l[G];
  patience w;
  for (int late = first; late >= 0;) {
    late = -1;
#pragma unroll
    for (int g = 0; g < G; g++)
      if (first + g < ranks(a) && first + g != a.rank) l[g] = load_line(from + g * a.lines.part);
#pragma unroll
    for (int g = 0; g < G; g++)
      if (first + g < ranks(a) && first + g != a.rank && l[g].tag != tag) late = first + g;
    if (late >= 0 && w.long_wait() && give_up(a, tag, w, late)) return false;
  }
#pragma unroll
  for (int g = 0; g < G; g++)
    if (first + g < ranks(a)) sum.add(first + g == a.rank ? mine : l[g].data, first + g == 0);
  return true;
}

/* What need not be done before the lines have gone: the flag by which a rank that has called with
 * another count finds out (give_up), also one that waits in another method. */
template <int N>
static __device__ __forceinline__ void announce(const kernel_args<N> &a, uint64_t tag)
{
  const int p = threadIdx.x;
  if (tag != 0 && blockIdx.x == 0 && p < ranks(a) && p != a.rank)
    store_relaxed(flag_of(a, p, ALLREDUCE_BEGUN, a.rank), tag);
  count_for_others(a, tag);
}

/* One AllReduce. S says how elements are added. */
template <typename S, int N>
static __device__ __forceinline__ void lines_allreduce(const kernel_args<N> &a)
{
  constexpr int G = N < 8 ? N : 8;
  const line_words<typename S::element, N> words(a);
  const size_t n = (words.bytes + 7) / 8, step = (size_t)gridDim.x * blockDim.x;
  const size_t start = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  wait_for_kernel_before(a);
  /* on its way together with the number of the call: one trip to memory in place of two */
  const uint64_t first_word = start < n ? words.load(start) : 0;
  const uint64_t tag = begin_call(a);
  const size_t end = tag != 0 ? n : 0; /* a rank that has given up sends nothing */
  const size_t at = allreduce_lines_at(a.lines, ranks(a), allreduce_number(tag), a.rank);

  for (size_t i = start; i < end; i += step) {
    const uint64_t mine = i == start ? first_word : words.load(i);
#pragma unroll 1
    for (int q = 1; q < ranks(a); q++)
      store_line(a.scratch[nth_peer(a, q)] + at + i * sizeof(struct allreduce_line), mine, tag);
  }
  announce(a, tag);
  for (size_t i = start; i < end; i += step) {
    const uint64_t mine = i == start ? first_word : words.load(i);
    running_sum<S, uint64_t> sum;
    bool come = true;
    for (int first = 0; come && first < ranks(a); first += G)
      come = add_lines<S, N, G>(a, i, first, tag, mine, sum);
    if (!come) break; /* nothing more will come */
    words.store(i, sum.word());
  }
  let_next_kernel_come();
  end_call(a, tag);
}

#endif
