/* SPDX-License-Identifier: Apache-2.0 */
/* AllReduce by lines in one hop (one-shot): for small vectors, whose time depends on how often GPUs
 * wait for each other. Every rank stores its vector to all ranks, itself too, as lines in scratch
 * memory that only this library uses, so it need not wait before. Then it waits for the lines of
 * all, and adds them. So there is one trip over the link, and no barrier. One instruction stores a
 * line, and one loads it:
 *
 *   LL     (after NCCL's) 8 bytes of data and the tag of the call (allreduce_protocol.h). A rank
 *          that sees the tag has the data as well.
 *   bare   16 bytes of data, so half as many bytes go over the link. The last 4 of a line are
 *          never 0 (ALLREDUCE_KEY). Before and after, they are: a rank that has read a line sets
 *          its place to 0, and so with its escape. The other 12 are not looked at: all must arrive
 *          together, see store_line. The escape may come later; it is waited for.
 *
 * Why no line is overwritten before it has been read. Let A and B be two ranks and e an epoch. A
 * begins e when its kernel has waited for the previous one (wait_for_kernel_before). Then it has
 * finished e - 1, because the calls of a handle follow each other on every rank. And:
 *   (1) A rank that receives a line or a flag of e from A knows that A has finished e - 1.
 *   (2) A rank that has finished e has a line or a flag of e from every other rank: a call has at
 *       least one element, so with LL lines it waits for one. Pushes wait for flags, and bare
 *       lines for announcements (await_announcements).
 * In e, A stores lines into its part at B, which has one half for odd and one for even epochs:
 *
 *   A   e - 2   lines to half 0
 *       e - 1                      lines to half 1, waits for something of B's e - 1
 *       e       lines to half 0      <- received, so by (1) B has finished e - 2: it has read those
 *
 * They replace those of e - 2 or of an older call, which B has read. Those of e - 1, which B may
 * still be reading, are in the other half. The method of a call, its elements and blocks, and
 * whether it comes from a graph do not matter: each call increments the epoch, and each method has
 * memory of its own. tests/races.sh runs the kernels in many orders of events.
 *
 * What (1) relies on. PTX promises that A's loads and stores of e - 1 are done, zeros among them,
 * to A's next kernel (griddepcontrol.wait). We rely on it for a rank that sees a line or a flag of
 * that kernel, and then stores there. Lines and announcements are relaxed stores, so PTX does not
 * promise that; a release would wait for all lines that have been sent.
 *
 * Why B takes no line of an older call for one of e. LL lines have tags. As to bare lines:
 *   (3) A rank that has finished e has read all lines that came to it in e, its own too, and has
 *       set their places and escapes to 0: by the announcements all ranks have the same count.
 * B's zeros in this half were stored in e - 2 or before. As above, A stores lines of e after B has
 * finished e - 2. So they come after the zeros: B finds in e what is of e, and loses nothing.
 *
 * Counts that differ. LL lines then have another tag, and are not added. Bare lines may be, and
 * sums be stored, but only into this rank's own elements; then it finds the other announcement and
 * reports that. If the check of two counts is the same by chance, lines stay in their places, and
 * later results may be wrong, too.
 *
 * Other ranks write only to scratch memory, so this method would work without a window
 * (allreduce_run requires one all the same, because the method depends on the size). In place
 * works, because a thread has stored a word to every rank that adds it before it replaces it.
 * Progress: all blocks run at once (allreduce_limits), and send before they wait. */
#ifndef ALLREDUCE_LINES_CUH
#define ALLREDUCE_LINES_CUH

#include "allreduce_sum.cuh"
#include "allreduce_wait.cuh"

/* ---- lines ----------------------------------------------------------------------------------- */

/* The data of a line, at its beginning; their type says of which kind it is. */
typedef unsigned long long ll_data;
typedef ulonglong2 bare_data;

/* Bytes from a part for even calls to that for this call. */
template <int N>
static __device__ __forceinline__ uint32_t half_of(const kernel_args<N> &a, uint64_t tag)
{
  return allreduce_epoch(tag) & 1 ? a.lines.half : 0;
}

/* The last 4 bytes of a bare line. */
static __device__ __forceinline__ uint32_t last_bytes(uint64_t second)
{
  return (uint32_t)(second >> 32);
}

static __device__ __forceinline__ uint64_t with_last_bytes(uint64_t second, uint32_t last)
{
  return (uint64_t)last << 32 | (uint32_t)second;
}

/* The escape of the line at offset `at` of a part; `line` is its address. */
template <int N>
static __device__ __forceinline__ volatile uint8_t *escape_of(const kernel_args<N> &a, char *line,
                                                              uint32_t at)
{
  return (volatile uint8_t *)line - at + allreduce_escape_at(a.lines, at);
}

/* Stores a line at offset `at` of this rank's part at the ranks `from` to `to` after it; number n
 * is this rank itself (part_there). */
template <int N>
static __device__ __forceinline__ void send_line(const kernel_args<N> &a, int from, int to,
                                                 uint32_t at, uint64_t tag, ll_data data)
{
  const uint32_t half = half_of(a, tag);
#pragma unroll
  for (int i = from; i <= to; i++) store_line(a.part_there[i - 1] + half + at, data, tag);
}

template <int N>
static __device__ __forceinline__ void send_line(const kernel_args<N> &a, int from, int to,
                                                 uint32_t at, uint64_t tag, bare_data data)
{
  const uint32_t half = half_of(a, tag);
  uint32_t last = last_bytes(data.y) ^ ALLREDUCE_KEY;
  if (last <= 1) { /* rare, so it must not make the rest longer */
#pragma unroll 1
    for (int i = from; i <= to; i++) *escape_of(a, a.part_there[i - 1] + half + at, at) = 1 + last;
    last = 1;
  }
  data.y = with_last_bytes(data.y, last);
#pragma unroll
  for (int i = from; i <= to; i++) store_line(a.part_there[i - 1] + half + at, data.x, data.y);
}

/* The last bytes of lines of which all have come, and some have an escape, which says what they
 * are. False: an escape has not come. The last bytes are then 1 still, so call this again. */
template <int G, int N>
static __device__ __forceinline__ bool take_escapes(const kernel_args<N> &a, char *line,
                                                    uint32_t at, ulonglong2 l[G])
{
  uint32_t escape[G];
  bool come = true;
#pragma unroll
  for (int g = 0; g < G; g++) {
    escape[g] = last_bytes(l[g].y) == 1 ? *escape_of(a, line + g * a.lines.part, at) : 3;
    come = come && escape[g] != 0;
  }
#pragma unroll
  for (int g = 0; g < G; g++) {
    if (!come || escape[g] == 3) continue;
    *escape_of(a, line + g * a.lines.part, at) = 0;
    l[g].y = with_last_bytes(l[g].y, escape[g] - 1);
  }
  return come;
}

/* Waits for the line at offset `at` of each of the ranks first ... first + G - 1 except `without`,
 * with all loads in flight at once. Returns false if it gave up. */
template <typename Data, int G, int N>
static __device__ __forceinline__ bool await_lines(const kernel_args<N> &a, uint32_t at, int first,
                                                   int without, uint64_t tag, ulonglong2 l[G])
{
  constexpr bool LL = sizeof(Data) == sizeof(ll_data);
  char *line = a.parts_here + half_of(a, tag) + (size_t)first * a.lines.part + at;
  const auto awaited = [&](int g) { return first + g < ranks(a) && first + g != without; };
  /* 0: the line has not come; 1: it has, and an escape says what its last bytes are */
  const auto mark = [&](int g) { return LL ? 2 * (l[g].y == tag) : last_bytes(l[g].y); };
  poll_timer timer;
#pragma unroll
  for (int g = 0; g < G; g++) l[g] = {0, LL ? tag : ~0ull}; /* stays if no line is loaded */
  for (;;) {
    uint32_t least = ~0u;
#pragma unroll
    for (int g = 0; g < G; g++)
      if (awaited(g)) l[g] = load_line(line + g * a.lines.part);
#pragma unroll
    for (int g = 0; g < G; g++) least = min(least, mark(g));
    if (least > 1 || (least == 1 && take_escapes<G>(a, line, at, l))) break;
    if (!timer.long_wait()) continue;
    int late = first;
#pragma unroll
    for (int g = 0; g < G; g++)
      if (mark(g) == 0) late = first + g;
    if (give_up(a, tag, timer, late)) return false;
  }
#pragma unroll
  for (int g = 0; g < G; g++) {
    if (LL) continue;
    if (awaited(g)) store_line(line + g * a.lines.part, 0, 0);
    l[g].y ^= (uint64_t)ALLREDUCE_KEY << 32;
  }
  return true;
}

/* Waits for the line of all ranks, and adds them, in rank order. The word of the rank `own`, if it
 * is one, is no line, but what `result` has before. */
template <typename S, int N, typename Data>
static __device__ __forceinline__ bool add_lines(const kernel_args<N> &a, uint32_t at, int own,
                                                 uint64_t tag, Data *result)
{
  constexpr int G = N < 4 ? N : 4;
  running_sum<S, Data> sum;
  for (int first = 0; first < ranks(a); first += G) {
    ulonglong2 l[G];
    if (!await_lines<Data, G>(a, at, first, own, tag, l)) return false;
#pragma unroll
    for (int g = 0; g < G; g++)
      if (first + g < ranks(a))
        sum.add(first + g == own ? *result : *(Data *)&l[g], first + g == 0);
  }
  *result = sum.word();
  return true;
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

/* ---- one hop --------------------------------------------------------------------------------- */

/* S defines how elements are added. */
template <typename S, typename Data, bool WHOLE, int N>
static __device__ __forceinline__ void onehop_allreduce(const kernel_args<N> &a)
{
  typedef typename S::element T;
  const uint32_t bytes = (uint32_t)(a.count * sizeof(T));
  const uint32_t lines = (bytes + sizeof(Data) - 1) / sizeof(Data);
  const uint32_t step = gridDim.x * blockDim.x, start = blockIdx.x * blockDim.x + threadIdx.x;
  const auto load = [&](uint32_t i) {
    Data v = {};
    if (!WHOLE || i < lines)
      v = load_word<T, Data, WHOLE>(a.send + (size_t)i * sizeof(Data), a.send, a.send + bytes);
    return v;
  };
  wait_for_kernel_before(a, lines != 0 && a.send + (size_t)start * sizeof(Data) != NULL);
  /* in flight together: one trip to memory instead of two */
  const memory before = load_memory(a);
  Data mine = load(start);
  const uint64_t tag = begin_call(a, before);
  const uint32_t end = tag != 0 ? lines : 0; /* a rank that has given up sends nothing */
  for (uint32_t i = start; i < end;) {
    send_line(a, 1, ranks(a), i * ALLREDUCE_LINE, tag, mine); /* the last one is this rank */
    i += step;
    if (i < end) mine = load(i);
  }
  announce(a, tag);
  launch_next_kernel(a);
  for (uint32_t i = start; i < end; i += step) {
    Data sum = {};
    if (!add_lines<S>(a, i * ALLREDUCE_LINE, -1, tag, &sum)) break;
    char *recv = a.recv_here;
    store_word<T, WHOLE>(recv + (size_t)i * sizeof(Data), sum, recv, recv + bytes);
  }
  if (sizeof(Data) == sizeof(bare_data)) await_announcements(a, tag);
}

#endif
