/* SPDX-License-Identifier: Apache-2.0 */
/* AllReduce by lines with tags, in one hop (one-shot): for small vectors, whose time depends on how
 * often GPUs wait for each other. Every rank stores its vector to every other rank, as lines in
 * scratch memory that only this library uses, so it need not wait before. Then it waits for the
 * lines of the others: a rank that sees a tag has the data as well. So there is one trip over the
 * link, and no barrier. The tag of a line contains the epoch of the call (allreduce_protocol.h).
 *
 *   LL      (NCCL's name) 8 bytes of data and the tag, by one thread
 *   wide    120 bytes of data in eight pieces of 16 bytes, by eight threads of a warp. One byte of
 *           each piece, its mark, has a part of the tag. Nearly half as many bytes go over the
 *           link. One instruction stores a piece, and one loads it. An LL line is treated as a
 *           wide line of one piece.
 *
 * Why no line is overwritten before it has been read. Let A and B be two ranks and e an epoch. A
 * begins e when its kernel has waited for the previous one (wait_for_kernel_before). Then it has
 * finished e - 1, because the calls of a handle follow each other on every rank. And:
 *   (1) A rank that receives a line or a flag of e from A knows that A has finished e - 1.
 *   (2) A rank that has finished e has a line or a flag of e from every other rank: a call has at
 *       least one element, so with lines it waits for one; pushes and two hops wait for flags.
 * In e, A stores lines into its part at B, which has one half for odd and one for even epochs:
 *
 *   A   e - 2   lines to half 0
 *       e - 1                      lines to half 1, waits for B's of e - 1
 *       e       lines to half 0      <- received, so by (1) B has finished e - 2: it has read those
 *
 * They replace those of e - 2 or of an older call, which B has read. Those of e - 1, which B may
 * still be reading, are in the other half. The method of a call, its elements and blocks, and
 * whether it comes from a graph do not matter: each call increments the epoch.
 * tests/races.sh runs the kernels in many orders of events.
 *
 * Why B takes no mark of an older call for one of e. B sets each piece that it has read to 0, and
 * it has read all pieces that A stored in older calls: the ranks have made the same calls, and a
 * rank that has given up sends and reads nothing more. As above, A stores lines of e after B has
 * finished e - 2, so B's zeros do not replace them.
 *
 * Other ranks write only to scratch memory, so this method would work without a window
 * (allreduce_run requires one all the same, because the method depends on the size). In place
 * works, because a thread has stored a word to every rank that adds it before it replaces it. Block
 * b waits for block b of the other ranks, as in allreduce_push.cuh. */
#ifndef ALLREDUCE_LINES_CUH
#define ALLREDUCE_LINES_CUH

#include "allreduce_sum.cuh"
#include "allreduce_wait.cuh"

/* ---- a thread's share of the lines ----------------------------------------------------------- */

enum { LL = 1, WIDE = ALLREDUCE_WIDE_PIECES }; /* threads of a line */
enum { BARE = 2 };                             /* a line without tag: allreduce_twohop.cuh */

/* 16 bytes of each line: thread i has words 2 i and 2 i + 1; the last thread has one word. L is LL
 * or WIDE. */
template <typename T, int N, int L, bool WHOLE>
struct line_share {
  const char *const send;
  char *const recv;
  const size_t bytes, count; /* bytes and words of the vector */
  const int thread;

  __device__ line_share(const kernel_args<N> &a)
      : send(a.send), recv(a.recv[a.rank]), bytes(a.count * sizeof(T)), count((bytes + 7) / 8),
        thread(L == LL ? 0 : threadIdx.x % L)
  {
  }
  __device__ size_t first(size_t line) const { return line * (2 * L - 1) + thread * 2; }
  /* Lines of the vector. A warp does its lines together, so the last ones may be empty. */
  __device__ __forceinline__ size_t lines() const
  {
    return L == LL ? count : ((count + 2 * L - 2) / (2 * L - 1) + 32 / L - 1) / (32 / L) * (32 / L);
  }
  __device__ __forceinline__ uint64_t load_word(size_t i) const
  {
    return ::load_word<T, uint64_t, WHOLE>(send + i * 8, send, send + bytes);
  }
  __device__ __forceinline__ void store_word(size_t i, uint64_t value) const
  {
    ::store_word<T, WHOLE>(recv + i * 8, value, recv, recv + bytes);
  }
  __device__ __forceinline__ ulonglong2 load(size_t line) const
  {
    const size_t i = first(line);
    ulonglong2 v = make_ulonglong2(0, 0);
    if (L == LL || i < count) v.x = load_word(i);
    if (thread < L - 1 && i + 1 < count) v.y = load_word(i + 1);
    return v;
  }
  __device__ __forceinline__ void store(size_t line, ulonglong2 v) const
  {
    const size_t i = first(line);
    if (L == LL || i < count) store_word(i, v.x);
    if (thread < L - 1 && i + 1 < count) store_word(i + 1, v.y);
  }
};

/* The bits of the second word that show that this thread's 16 bytes have arrived. */
template <int L>
static __device__ __forceinline__ uint64_t mark_of(uint64_t tag)
{
  return L != WIDE ? tag : (uint64_t)allreduce_mark(tag, threadIdx.x % L) << 56;
}

/* Makes room for the mark: the last byte of a thread's second word moves to the last thread of the
 * line. All threads of the warp call this. */
template <int L>
static __device__ __forceinline__ uint64_t make_room(uint64_t second)
{
  if (L == LL) return 0;
  const int thread = threadIdx.x % L;
  uint32_t four = (uint32_t)(second >> 56) << (8 * (thread % 4)); /* of four threads */
  four |= __shfl_xor_sync(~0u, four, 1);
  four |= __shfl_xor_sync(~0u, four, 2);
  const uint32_t others = __shfl_xor_sync(~0u, four, 4);
  const uint64_t all = (uint64_t)four << 32 | others; /* in order, in the last thread */
  return (thread == L - 1 ? all : second) & ~((uint64_t)0xff << 56);
}

static __device__ __forceinline__ uint64_t fill_room(uint64_t second)
{
  const uint64_t all = __shfl_sync(~0u, second, WIDE - 1, WIDE);
  return (second & ~((uint64_t)0xff << 56)) | all >> (threadIdx.x % WIDE * 8) << 56;
}

/* Waits for this thread's 16 bytes of a line of each of the ranks first ... first + G - 1, with all
 * loads in flight at once; this rank has none. `at` is their offset in the part of a rank. Returns
 * false if it gave up. */
template <int N, int L, int G>
static __device__ __forceinline__ bool await_lines(const kernel_args<N> &a, size_t at, int first,
                                                   uint64_t tag, ulonglong2 l[G])
{
  char *part =
      a.scratch[a.rank] + allreduce_lines_at(a.lines, ranks(a), allreduce_epoch(tag), first) + at;
  char *from[G]; /* addresses in registers, so that a round only loads lines */
  poll_timer timer;
  const uint64_t mark = mark_of<L>(tag);
#pragma unroll
  for (int g = 0; g < G; g++) {
    from[g] = first + g < ranks(a) && first + g != a.rank ? part + g * a.lines.part : NULL;
    l[g] = {0, mark}; /* stays if no line is loaded */
  }
  for (;;) {
    int late = -1;
#pragma unroll
    for (int g = 0; g < G; g++)
      if (from[g] != NULL) l[g] = load_line(from[g]);
#pragma unroll
    for (int g = 0; g < G; g++)
      if (L == BARE ? l[g].y == 0 : (l[g].y ^ mark) >> (L == LL ? 0 : 56) != 0) late = first + g;
    /* the threads of a warp stay together: they exchange bytes below */
    const unsigned waiting = L == WIDE ? __ballot_sync(~0u, late >= 0) : late >= 0;
    if (waiting == 0) break;
    if (!timer.long_wait()) continue;
    if (L == WIDE) late = __shfl_sync(~0u, late, __ffs(waiting) - 1);
    const bool gave_up = give_up(a, tag, timer, late);
    if (L == WIDE ? __any_sync(~0u, gave_up) : gave_up) return false;
  }
#pragma unroll
  for (int g = 0; g < G; g++) {
    if (L == LL || from[g] == NULL) continue;
    store_line(from[g], 0, 0);
    if (L == WIDE) l[g].y = fill_room(l[g].y); /* is data now */
    if (L != BARE) continue;
    if (l[g].y == 1) {
      auto escape = (volatile uint8_t *)from[g] - at + allreduce_escape_at(a.lines, at);
      while ((l[g].y = *escape) == 0)
        if (timer.long_wait() && give_up(a, tag, timer, first + g)) return false;
      *escape = 0;
      l[g].y--;
    }
    l[g].y ^= ALLREDUCE_KEY;
  }
  return true;
}

/* Waits for this thread's 16 bytes of all ranks, and adds them and those of this one, in rank
 * order. */
template <typename S, int L, int N>
static __device__ __forceinline__ bool add_lines(const kernel_args<N> &a, size_t at, uint64_t tag,
                                                 ulonglong2 own, ulonglong2 *result)
{
  constexpr int MOST = L == LL ? 8 : 4, G = N < MOST ? N : MOST;
  running_sum<S, ulonglong2> sum; /* what is no data has a sum that is not stored */
  for (int first = 0; first < ranks(a); first += G) {
    ulonglong2 l[G];
    if (!await_lines<N, L, G>(a, at, first, tag, l)) return false;
#pragma unroll
    for (int g = 0; g < G; g++)
      if (first + g < ranks(a)) sum.add(first + g == a.rank ? own : l[g], first + g == 0);
  }
  *result = sum.word();
  return true;
}

/* ---- one AllReduce --------------------------------------------------------------------------- */

/* S defines how elements are added, L is LL or WIDE. */
template <typename S, int N, int L, bool WHOLE>
static __device__ __forceinline__ void lines_allreduce(const kernel_args<N> &a)
{
  const line_share<typename S::element, N, L, WHOLE> share(a);
  const size_t step = (size_t)gridDim.x * (blockDim.x / L);
  const size_t start = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / L;
  const size_t lines = share.lines();
  wait_for_kernel_before(a);
  /* in flight together with the epoch: one trip to memory instead of two */
  const ulonglong2 first_share =
      L != LL || start < lines ? share.load(start) : make_ulonglong2(0, 0);
  const uint64_t tag = begin_call(a);
  const size_t end = tag != 0 ? lines : 0; /* a rank that has given up sends nothing */
  const size_t mine_at = allreduce_lines_at(a.lines, ranks(a), allreduce_epoch(tag), a.rank);

  for (size_t i = start; i < end; i += step) {
    const ulonglong2 mine = i == start ? first_share : share.load(i);
    const size_t at = mine_at + i * (16 * L) + share.thread * 16;
    const uint64_t second = make_room<L>(mine.y) | mark_of<L>(tag);
#pragma unroll
    for (int q = 1; q < (N <= 4 ? N : ranks(a)); q++)
      if (q < ranks(a)) store_line(a.scratch[nth_peer(a, q)] + at, mine.x, second);
  }
  announce(a, tag);
  for (size_t i = start; i < end; i += step) {
    ulonglong2 sum = i == start ? first_share : share.load(i);
    if (!add_lines<S, L>(a, i * (16 * L) + share.thread * 16, tag, sum, &sum))
      break; /* no more lines will arrive */
    share.store(i, sum);
  }
  launch_next_kernel();
  end_call(a, tag);
}

#endif
