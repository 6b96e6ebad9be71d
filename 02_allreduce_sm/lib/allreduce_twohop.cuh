/* SPDX-License-Identifier: Apache-2.0 */
/* AllReduce by two hops of lines: for medium vectors. Each rank adds one slice of the vector, which
 * it gets as lines from all, and sends the sums to all as lines. That is a second trip over the
 * link, but n / 2 times fewer bytes than with one hop.
 *
 * A line is 16 bytes of data, and has no tag that shows its arrival: the second word of its place
 * is 0 before, and is not 0 in a line (allreduce_protocol.h). Whoever has read a line sets its
 * place to 0 again, and so with its escape. So all bytes that go over the link are data. The first
 * word is not looked at: both must arrive together, which PTX does not promise and store_line tells
 * of. The escape may come later; it is waited for. A part, what one rank sends another:
 *
 *   lines of the first hop | lines of sums | (free) | escapes, the first line's at the end
 *
 * Why no line is overwritten before it has been read, and none of another call is read. Let A and B
 * be two ranks and e an epoch. As in allreduce_lines.cuh:
 *   (1) A rank that receives a line or a flag of e from A knows that A has finished e - 1.
 *   (2) A rank that has finished e has a line or a flag of e from every other rank; with two hops
 *       the announcement of e (await_announcements).
 *   (3) A rank that has finished e has read all lines that others have sent it in e, and has set
 *       their places and escapes to 0: by the announcements all ranks have the same count, so each
 *       slice has the same number of lines on all of them. (Some have no bytes of the vector.)
 * In e, A stores lines into its part at B, in the half for odd or for even epochs. By (2) A has
 * something of e - 1 from B, so by (1) B has finished e - 2: by (3) it has read the lines of e - 2
 * and of all older calls in this half, and its zeros are in their places, because they were stored
 * by a kernel that ended before B began e - 1. So A's lines of e neither replace what B has to
 * read, nor are replaced by B's zeros, and what B finds there in e is of e. Lines of e - 1, which B
 * may still be reading, are in the other half. It does not matter which methods the calls take:
 * other lines and slots have memory of their own.
 *
 * Counts that differ. A rank may add lines of a call with another count, and store sums, but only
 * into its own elements; then it finds the other announcement and reports that. If the check of two
 * counts is the same by chance, lines stay in their places, and later results may be wrong, too.
 *
 * In place works, because the thread that stores a word of the result has sent that word before.
 * Progress: all blocks run at once (allreduce_limits). Lines of the first hop are sent before any
 * wait, those of the second one after waits for the first hop only. */
#ifndef ALLREDUCE_TWOHOP_CUH
#define ALLREDUCE_TWOHOP_CUH

#include "allreduce_lines.cuh"

/* Line k of those that a rank sends in the first hop: the one at offset `at` of rank p's slice.
 * Warps take the other ranks in turns. */
template <int N>
struct line_for_another {
  int p;
  size_t at;

  __device__ __forceinline__ line_for_another(const kernel_args<N> &a, uint32_t k)
  {
    const uint32_t warp = k / 32, others = ranks(a) - 1;
    p = nth_peer(a, 1 + warp % others);
    at = (warp / others * 32 + k % 32) * ALLREDUCE_LINE;
  }
};

/* Stores a line at offset `at` of a part. */
template <int N>
static __device__ __forceinline__ void send_line(const kernel_args<N> &a, char *part, size_t at,
                                                 ulonglong2 data)
{
  uint64_t second = data.y ^ ALLREDUCE_KEY;
  if (second <= 1) {
    *(volatile uint8_t *)(part + allreduce_escape_at(a.lines, at)) = 1 + second;
    second = 1;
  }
  store_line(part + at, data.x, second);
}

/* Block 0 waits until all ranks have announced this call. A rank that has announced a later one has
 * announced this one before, and has found that the counts are the same. */
template <int N>
static __device__ __forceinline__ void await_announcements(const kernel_args<N> &a, uint64_t tag)
{
  const int p = threadIdx.x;
  if (blockIdx.x != 0 || tag == 0 || p >= ranks(a) || p == a.rank) return;
  poll_timer timer;
  for (uint64_t theirs = 0; theirs != tag && allreduce_epoch(theirs) <= allreduce_epoch(tag);
       theirs = begun(a, p))
    if (timer.long_wait() && give_up(a, tag, timer, p)) return;
}

/* S defines how elements are added. */
template <typename S, bool WHOLE, int N>
static __device__ __forceinline__ void twohop_allreduce(const kernel_args<N> &a)
{
  typedef typename S::element T;
  const uint32_t slice = allreduce_slice_lines(a.count * sizeof(T), ranks(a));
  const uint32_t step = gridDim.x * blockDim.x;
  const uint32_t warp =
      blockIdx.x + gridDim.x * (threadIdx.x / 32); /* next to each other: blocks */
  const uint32_t start = warp * 32 + threadIdx.x % 32;
  const size_t bytes = a.count * sizeof(T), slice_bytes = slice * ALLREDUCE_LINE;
  const auto load = [&](int p, size_t at) {
    at += p * slice_bytes; /* the last lines are after the end of the vector */
    if (WHOLE && at >= bytes) return ulonglong2{};
    return load_word<T, ulonglong2, WHOLE>(a.send + at, a.send, a.send + bytes);
  };
  const auto store = [&](int p, size_t at, ulonglong2 data) {
    char *recv = a.recv[a.rank];
    at += p * slice_bytes;
    if (WHOLE && at >= bytes) return;
    store_word<T, WHOLE>(recv + at, data, recv, recv + bytes);
  };
  const line_for_another<N> first(a, start);
  wait_for_kernel_before(a);
  /* in flight together with the epoch: one trip to memory instead of two */
  ulonglong2 first_data = {};
  if (first.at < slice_bytes) first_data = load(first.p, first.at);
  const uint64_t tag = begin_call(a);
  const uint32_t mine = tag != 0 ? slice : 0; /* a rank that has given up sends nothing */
  const uint32_t end = mine * (ranks(a) - 1);
  const size_t mine_at = allreduce_lines_at(a.lines, ranks(a), allreduce_epoch(tag), a.rank);
  announce(a, tag);

  for (uint32_t k = start; k < end; k += step) {
    const line_for_another<N> l(a, k);
    send_line(a, a.scratch[l.p] + mine_at, l.at, k == start ? first_data : load(l.p, l.at));
  }
  bool come = true;
  for (uint32_t i = start; i < mine; i += step) {
    const size_t at = (size_t)i * ALLREDUCE_LINE;
    ulonglong2 sum = load(a.rank, at);
    come = add_lines<S, BARE>(a, at, tag, sum, &sum);
    if (!come) break;                  /* no more lines will arrive */
    for (int q = 1; q < ranks(a); q++) /* sums are after the lines of the first hop */
      send_line(a, a.scratch[nth_peer(a, q)] + mine_at, slice_bytes + at, sum);
    store(a.rank, at, sum);
  }
  await_announcements(a, tag);
  for (uint32_t k = start; come && k < end; k += step) {
    const line_for_another<N> l(a, k);
    ulonglong2 sum[1];
    come = await_lines<N, BARE, 1>(a, slice_bytes + l.at, l.p, tag, sum);
    if (come) store(l.p, l.at, sum[0]);
  }
  launch_next_kernel();
  end_call(a, tag);
}

#endif
