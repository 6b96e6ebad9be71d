/* SPDX-License-Identifier: Apache-2.0 */
/* AllReduce by bare lines in two hops (two-shot): for medium vectors. Each rank adds one slice of
 * the vector, which it gets as lines from all others, and sends them the sums as lines. That is a
 * second trip over the link, but n / 2 times fewer bytes than with one hop. A part, what one rank
 * sends another:
 *
 *   lines of the first hop | lines of sums | (free) | escapes, the first line's at the end
 *
 * allreduce_lines.cuh says what bare lines are, and why none is overwritten or read too early.
 * Slices have the same number of lines on all ranks; the last ones may have no bytes of the vector.
 *
 * In place works, because the thread that stores a word of the result has sent that word before.
 * Progress: all blocks run at once (allreduce_limits). Lines of the first hop are sent before any
 * wait, those of the second one after waits for the first hop only. */
#ifndef ALLREDUCE_TWOHOP_CUH
#define ALLREDUCE_TWOHOP_CUH

#include "allreduce_lines.cuh"

/* Line k of those that a rank sends in the first hop. Warps take the other ranks in turns. */
template <int N>
struct line_for_another {
  int q;
  uint32_t at;  /* for nth_peer(q): offset in its slice ... */
  size_t place; /* ... and in the vector */

  __device__ __forceinline__ line_for_another(const kernel_args<N> &a, uint32_t k,
                                              uint32_t slice_bytes)
  {
    const uint32_t warp = k / 32, others = ranks(a) - 1;
    q = 1 + warp % others;
    at = (warp / others * 32 + k % 32) * ALLREDUCE_LINE;
    place = (size_t)nth_peer(a, q) * slice_bytes + at;
  }
};

/* S defines how elements are added. */
template <typename S, bool WHOLE, int N>
static __device__ __forceinline__ void twohop_allreduce(const kernel_args<N> &a)
{
  typedef typename S::element T;
  const uint32_t slice = allreduce_slice_lines(a.count * sizeof(T), ranks(a));
  const uint32_t slice_bytes = slice * ALLREDUCE_LINE;
  const uint32_t step = gridDim.x * blockDim.x;
  const uint32_t warp =
      blockIdx.x + gridDim.x * (threadIdx.x / 32); /* next to each other: blocks */
  const uint32_t start = warp * 32 + threadIdx.x % 32;
  const size_t bytes = a.count * sizeof(T);
  /* the last lines are after the end of the vector */
  const auto load = [&](size_t at) {
    bare_data v = {};
    if (!WHOLE || at < bytes)
      v = load_word<T, bare_data, WHOLE>(a.send + at, a.send, a.send + bytes);
    return v;
  };
  const auto store = [&](size_t at, bare_data data) {
    char *recv = a.recv_here;
    if (WHOLE && at >= bytes) return;
    store_word<T, WHOLE>(recv + at, data, recv, recv + bytes);
  };
  line_for_another<N> l(a, start, slice_bytes);
  wait_for_kernel_before(a, slice != 0 && a.send + l.place != NULL);
  /* in flight together: one trip to memory instead of two */
  const memory before = load_memory(a);
  bare_data data = load(l.place);
  const uint64_t tag = begin_call(a, before);
  const uint32_t mine = tag != 0 ? slice : 0; /* a rank that has given up sends nothing */
  const uint32_t end = mine * (ranks(a) - 1);
  for (uint32_t k = start; k < end;) {
    send_line(a, l.q, l.q, l.at, tag, data);
    k += step;
    if (k >= end) break;
    l = line_for_another<N>(a, k, slice_bytes);
    data = load(l.place);
  }
  announce(a, tag);
  launch_next_kernel(a);
  bool come = true;
  for (uint32_t i = start; i < mine; i += step) {
    const uint32_t at = i * ALLREDUCE_LINE;
    const size_t place = (size_t)a.rank * slice_bytes + at;
    bare_data sum = load(place);
    come = add_lines<S>(a, at, a.rank, tag, &sum);
    if (!come) break;                                          /* no more lines will arrive */
    send_line(a, 1, ranks(a) - 1, slice_bytes + at, tag, sum); /* after lines of the first hop */
    store(place, sum);
  }
  await_announcements(a, tag);
  for (uint32_t k = start; come && k < end; k += step) {
    const line_for_another<N> l(a, k, slice_bytes);
    bare_data sum[1];
    come = await_lines<bare_data, 1>(a, slice_bytes + l.at, nth_peer(a, l.q), -1, tag, sum);
    if (come) store(l.place, sum[0]);
  }
}

#endif
