/* SPDX-License-Identifier: Apache-2.0 */
/* One-shot with wide lines, for vectors of middle size: as lines.cuh, with 120 bytes of data to 8
 * of tag in place of 8 to 8. So nearly half as many bytes go over the link.
 *
 * A line is 128 bytes. Eight threads of a warp store 16 bytes each by one instruction, the last of
 * them the tag. That whoever finds the tag will find the 120 bytes too is nothing that PTX
 * promises. It rests on what NVLink does with such a store: it stays together. NCCL's own protocol
 * LL128 rests on the same. So wide lines are used only where all GPUs have the same compute
 * capability, it is one of those in possible.cu, and all links are NVLink; allreduce_create has all
 * ranks agree on it, and config.wide_bytes switches them off. Loads need not stay together: see
 * add_wide.
 *
 * Why nothing is overwritten stands in lines.cuh, for here it is the same; and progress does not
 * depend on how many blocks are resident more than it does there: each line is sent before the
 * first one is waited for by the same thread. */
#ifndef ALLREDUCE_WIDE_CUH
#define ALLREDUCE_WIDE_CUH

#include "lines.cuh"

/* A thread's share of a line, 16 bytes: words 2 i and 2 i + 1; thread 7 has one word and the tag.
 */
template <typename T, int N>
struct wide_share {
  const line_words<T, N> words;
  const size_t count; /* words of the vector */
  const int thread;   /* of the eight */

  __device__ wide_share(const kernel_args<N> &a)
      : words(a), count((words.bytes + 7) / 8), thread(threadIdx.x % 8)
  {
  }
  __device__ bool has_tag() const { return thread == 7; }
  __device__ size_t first(size_t line) const { return line * ALLREDUCE_WIDE_WORDS + thread * 2; }
  __device__ __forceinline__ ulonglong2 load(size_t line) const
  {
    const size_t i = first(line);
    ulonglong2 v = make_ulonglong2(0, 0);
    if (i < count) v.x = words.load(i);
    if (!has_tag() && i + 1 < count) v.y = words.load(i + 1);
    return v;
  }
  __device__ __forceinline__ void store(size_t line, uint64_t x, uint64_t y) const
  {
    const size_t i = first(line);
    if (i < count) words.store(i, x);
    if (!has_tag() && i + 1 < count) words.store(i + 1, y);
  }
};

/* As add_lines in lines.cuh. A warp has four lines, and goes on when all of them are there. */
template <typename S, int N, int G>
static __device__ __forceinline__ bool add_wide(const kernel_args<N> &a, size_t at, int first,
                                                uint64_t tag, ulonglong2 mine,
                                                running_sum<S, uint64_t> sum[2])
{
  const bool has_tag = threadIdx.x % 8 == 7;
  const char *from =
      a.scratch[a.rank] + allreduce_lines_at(a.lines, ranks(a), allreduce_number(tag), first) + at;
  struct allreduce_line l[G];
  patience w;
  for (;;) {
    __syncwarp(); /* one instruction of the warp */
    int late = -1;
#pragma unroll
    for (int g = 0; g < G; g++)
      if (first + g < ranks(a) && first + g != a.rank) l[g] = load_line(from + g * a.lines.part);
#pragma unroll
    for (int g = 0; g < G; g++)
      if (first + g < ranks(a) && first + g != a.rank && has_tag && l[g].tag != tag)
        late = first + g;
    const unsigned waiting = __ballot_sync(~0u, late >= 0);
    if (waiting == 0) break;
    if (!w.long_wait()) continue;
    late = __shfl_sync(~0u, late, __ffs(waiting) - 1);
    if (__any_sync(~0u, give_up(a, tag, w, late))) return false;
  }
  /* A line was stored as a whole, but the threads may have loaded their shares of it at different
   * times: some before it came. So, now that all tags are there, everything once more. */
  __syncwarp();
#pragma unroll
  for (int g = 0; g < G; g++)
    if (first + g < ranks(a) && first + g != a.rank) l[g] = load_line(from + g * a.lines.part);
#pragma unroll
  for (int g = 0; g < G; g++)
    if (first + g < ranks(a)) {
      const bool own = first + g == a.rank;
      sum[0].add(own ? mine.x : l[g].data, first + g == 0);
      sum[1].add(own ? mine.y : l[g].tag, first + g == 0); /* thread 7 has no use for it */
    }
  return true;
}

/* One AllReduce. S says how elements are added. */
template <typename S, int N>
static __device__ __forceinline__ void wide_allreduce(const kernel_args<N> &a)
{
  constexpr int G = N < 4 ? N : 4;
  const wide_share<typename S::element, N> share(a);
  /* whole warps: the lines of the last one may be empty */
  const size_t lines = (share.count + ALLREDUCE_WIDE_WORDS - 1) / ALLREDUCE_WIDE_WORDS;
  const size_t step = (size_t)gridDim.x * (blockDim.x / 8);
  const size_t start = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / 8;
  wait_for_kernel_before(a);
  const ulonglong2 first_words = share.load(start); /* on its way together with the number */
  const uint64_t tag = begin_call(a);
  const size_t end = tag != 0 ? (lines + 3) / 4 * 4 : 0; /* else nothing is sent */
  const size_t mine_at = allreduce_lines_at(a.lines, ranks(a), allreduce_number(tag), a.rank);

  for (size_t i = start; i < end; i += step) {
    const ulonglong2 mine = i == start ? first_words : share.load(i);
    const size_t at = mine_at + i * ALLREDUCE_WIDE_LINE + share.thread * 16;
#pragma unroll 1
    for (int q = 1; q < ranks(a); q++) {
      __syncwarp(); /* one instruction of the warp */
      store_line(a.scratch[nth_peer(a, q)] + at, mine.x, share.has_tag() ? tag : mine.y);
    }
  }
  announce(a, tag);
  for (size_t i = start; i < end; i += step) {
    const ulonglong2 mine = i == start ? first_words : share.load(i);
    const size_t at = i * ALLREDUCE_WIDE_LINE + share.thread * 16;
    running_sum<S, uint64_t> sum[2];
    bool come = true;
    for (int first = 0; come && first < ranks(a); first += G)
      come = add_wide<S, N, G>(a, at, first, tag, mine, sum);
    if (!come) break; /* nothing more will come */
    share.store(i, sum[0].word(), sum[1].word());
  }
  let_next_kernel_come();
  end_call(a, tag);
}

#endif
