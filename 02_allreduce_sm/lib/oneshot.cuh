/* SPDX-License-Identifier: Apache-2.0 */
/* One-shot with lines: for small vectors and those of middle size, where what counts is how often
 * GPUs wait for each other.
 *
 * Every rank stores its vector to every other rank, as lines into scratch memory, which is the
 * library's own, and waits for nothing before it does so. Then it waits for the lines of the
 * others: where a tag has come the data has come too. So there is one trip over the link, and no
 * barrier. A line has a tag, which has the epoch of the call in it (protocol.h):
 *   LL      8 bytes of data and the tag, stored by one instruction of one thread
 *   LL128   120 bytes of data and the tag, stored by one instruction of eight threads of a warp, 16
 *           bytes each. Nearly half as many bytes go over the link.
 * Both are NCCL's, as are the names. To the code an LL line is an LL128 line of one thread.
 *
 * Why no line is overwritten before it has been read. Let A and B be two ranks and e an epoch. A
 * begins e when its kernel has waited for the one before (wait_for_kernel_before), and has then
 * finished e - 1, because the calls of a handle follow each other on every rank. And:
 *   (1) A rank that receives a line or a flag of e from A knows that A has finished e - 1.
 *   (2) A rank that has finished e has a line or a flag of e from every other rank: each call has
 *       at least one element, so with lines there is one to wait for; two-shot waits for a flag.
 * In e, A stores lines into its part at B, which has one half for odd and one for even epochs:
 *
 *   A   e - 2   lines to half 0
 *       e - 1                      lines to half 1, waits for B's of e - 1
 *       e       lines to half 0      <- received, so by (1) B has finished e - 2: it has read those
 *
 * They replace those of e - 2 or of an older call, which B has read. Those of e - 1, which B may
 * still be reading, are in the other half. It does not matter which method a call takes, how many
 * elements or blocks it has, or whether it comes from a graph: each one counts the epoch on by one.
 * tests/unit/test_protocol_allreduce.c goes through all orders in which this can happen.
 *
 * That a thread that finds the tag of an LL128 line finds the 120 bytes too is nothing that PTX
 * promises. It rests on what NVLink does with such a store: it stays together. NCCL rests on the
 * same. So LL128 is used only where all GPUs have the same compute capability, it is one of those
 * in device.cu, and all links are NVLink; allreduce_create has all ranks agree on it, and
 * config.ll128_bytes switches it off.
 *
 * Nothing but scratch memory is written by others, so send and receive buffer need no window here.
 * In place is right, because the thread that replaces a word has stored it to every rank before.
 * How many blocks are resident does not matter: each thread sends all its lines before it waits. */
#ifndef ALLREDUCE_ONESHOT_CUH
#define ALLREDUCE_ONESHOT_CUH

#include "sum.cuh"
#include "wait.cuh"

/* ---- the user's vector, in words of 8 bytes -------------------------------------------------- */

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

template <typename T, int N>
struct vector_words {
  const char *send;
  char *recv;
  size_t bytes;

  __device__ vector_words(const kernel_args<N> &a)
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

/* ---- a thread's share of the lines ----------------------------------------------------------- */

enum { LL = 1, LL128 = 8 }; /* threads of a line */

/* 16 bytes of each line: words 2 i and 2 i + 1 for thread i; the last one has one word and the tag.
 * L is LL or LL128. */
template <typename T, int N, int L>
struct line_share {
  const vector_words<T, N> words;
  const size_t count; /* words of the vector */
  const int thread;

  __device__ line_share(const kernel_args<N> &a)
      : words(a), count((words.bytes + 7) / 8), thread(L == LL ? 0 : threadIdx.x % L)
  {
  }
  __device__ bool has_tag() const { return thread == L - 1; }
  __device__ size_t first(size_t line) const { return line * (2 * L - 1) + thread * 2; }
  /* Lines of the vector; as a warp does them together, the last ones may be empty. */
  __device__ __forceinline__ size_t lines() const
  {
    return L == LL ? count : ((count + 2 * L - 2) / (2 * L - 1) + 32 / L - 1) / (32 / L) * (32 / L);
  }
  __device__ __forceinline__ ulonglong2 load(size_t line) const
  {
    const size_t i = first(line);
    ulonglong2 v = make_ulonglong2(0, 0);
    if (L == LL || i < count) v.x = words.load(i);
    if (L != LL && !has_tag() && i + 1 < count) v.y = words.load(i + 1);
    return v;
  }
  __device__ __forceinline__ void store(size_t line, uint64_t x, uint64_t y) const
  {
    const size_t i = first(line);
    if (L == LL || i < count) words.store(i, x);
    if (L != LL && !has_tag() && i + 1 < count) words.store(i + 1, y);
  }
};

/* With LL128 all threads of a warp do the same together: an instruction of the warp stores or loads
 * its four lines, and it goes on when all of them are there. */
template <int L>
static __device__ __forceinline__ void sync_lines(void)
{
  if (L != LL) __syncwarp();
}

/* Adds the line whose share of mine is at `at` of ranks first ... first + G - 1 to the sum. All
 * loads are on their way together. Returns false where the wait was given up. */
template <typename S, int N, int L, int G>
static __device__ __forceinline__ bool add_lines(const kernel_args<N> &a, size_t at, int first,
                                                 uint64_t tag, ulonglong2 mine,
                                                 running_sum<S, uint64_t> sum[2])
{
  const char *part =
      a.scratch[a.rank] + allreduce_lines_at(a.lines, ranks(a), allreduce_epoch(tag), first) + at;
  const char *from[G]; /* kept, so that the loads of a round need nothing but registers */
  struct allreduce_line l[G];
  poll_timer timer;
  const bool has_tag = L == LL || threadIdx.x % L == L - 1;
#pragma unroll
  for (int g = 0; g < G; g++) {
    from[g] = first + g < ranks(a) && first + g != a.rank ? part + g * a.lines.part : NULL;
    l[g] = {mine.x, has_tag ? tag : mine.y}; /* stays where nothing is loaded */
  }
  for (;;) {
    sync_lines<L>();
    int late = -1;
#pragma unroll
    for (int g = 0; g < G; g++)
      if (from[g] != NULL) l[g] = load_line(from[g]);
#pragma unroll
    for (int g = 0; g < G; g++)
      if (has_tag && l[g].tag != tag) late = first + g;
    const unsigned waiting = L == LL ? late >= 0 : __ballot_sync(~0u, late >= 0);
    if (waiting == 0) break;
    if (!timer.long_wait()) continue;
    if (L != LL) late = __shfl_sync(~0u, late, __ffs(waiting) - 1);
    const bool gave_up = give_up(a, tag, timer, late);
    if (L == LL ? gave_up : __any_sync(~0u, gave_up)) return false;
  }
  if (L != LL) {
    /* The threads may have loaded their shares of a line at different times: some before it came.
     * So, now that all tags are there, everything once more. */
    sync_lines<L>();
#pragma unroll
    for (int g = 0; g < G; g++)
      if (from[g] != NULL) l[g] = load_line(from[g]);
  }
#pragma unroll
  for (int g = 0; g < G; g++)
    if (first + g < ranks(a)) {
      sum[0].add(l[g].data, first + g == 0);
      if (L != LL) sum[1].add(l[g].tag, first + g == 0); /* of no use where it is the tag */
    }
  return true;
}

/* ---- one AllReduce --------------------------------------------------------------------------- */

/* After the lines: the flag that shows a rank that it has called with another count (give_up). */
template <int N>
static __device__ __forceinline__ void post_flag(const kernel_args<N> &a, uint64_t tag)
{
  const int p = threadIdx.x;
  if (tag != 0 && blockIdx.x == 0 && p < ranks(a) && p != a.rank)
    store_relaxed(flag_of(a, p, ALLREDUCE_BEGUN, a.rank), tag);
  count_for_others(a, tag);
}

/* S says how elements are added, L is LL or LL128. */
template <typename S, int N, int L>
static __device__ __forceinline__ void oneshot_allreduce(const kernel_args<N> &a)
{
  constexpr int MOST = L == LL ? 8 : 4, G = N < MOST ? N : MOST;
  const line_share<typename S::element, N, L> share(a);
  const size_t lines = share.lines(), step = (size_t)gridDim.x * (blockDim.x / L);
  const size_t start = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / L;
  wait_for_kernel_before(a);
  /* on its way together with the epoch: one trip to memory instead of two */
  const ulonglong2 first_share =
      L != LL || start < lines ? share.load(start) : make_ulonglong2(0, 0);
  const uint64_t tag = begin_call(a);
  const size_t end = tag != 0 ? lines : 0; /* a rank that has given up sends nothing */
  const size_t mine_at = allreduce_lines_at(a.lines, ranks(a), allreduce_epoch(tag), a.rank);

  for (size_t i = start; i < end; i += step) {
    const ulonglong2 mine = i == start ? first_share : share.load(i);
    const size_t at = mine_at + i * (16 * L) + share.thread * 16;
#pragma unroll 1
    for (int q = 1; q < ranks(a); q++) {
      sync_lines<L>();
      store_line(a.scratch[nth_peer(a, q)] + at, mine.x, share.has_tag() ? tag : mine.y);
    }
  }
  post_flag(a, tag);
  for (size_t i = start; i < end; i += step) {
    const ulonglong2 mine = i == start ? first_share : share.load(i);
    const size_t at = i * (16 * L) + share.thread * 16;
    running_sum<S, uint64_t> sum[2];
    bool come = true;
    for (int first = 0; come && first < ranks(a); first += G)
      come = add_lines<S, N, L, G>(a, at, first, tag, mine, sum);
    if (!come) break; /* nothing more will come */
    share.store(i, sum[0].word(), L == LL ? 0 : sum[1].word());
  }
  launch_next_kernel();
  end_call(a, tag);
}

#endif
