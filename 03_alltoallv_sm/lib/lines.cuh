/* SPDX-License-Identifier: Apache-2.0 */
/* The low-latency protocol: small pairs, and the eager bytes of large ones, travel as lines through
 * the scratch memory of the receiver. The sender waits for nothing, the receiver for the lines
 * themselves. */
#ifndef ALLTOALLV_LL_CUH
#define ALLTOALLV_LL_CUH

#include "wait.cuh"

/* One lane's share of a group: 3 x 16 bytes of data, 4 lines. The group has `width` lanes; lane
 * i coming the 16-byte words i, width + i and 2 width + i, so that a warp's accesses are
 * contiguous on both sides. */
struct lane_share {
  uint64_t offset; /* of the group's first byte in the pair */
  int left;        /* bytes of the pair from there on, as far as the group reaches */
  int width, lane;
  uint32_t first_line; /* of this lane; the others follow at a distance of width */

  __device__ lane_share(uint64_t bytes, uint32_t group, int lane) : lane(lane)
  {
    offset = (uint64_t)group * ALLTOALLV_GROUP_BYTES;
    left = bytes - offset < ALLTOALLV_GROUP_BYTES ? (int)(bytes - offset) : ALLTOALLV_GROUP_BYTES;
    width = (left + ALLTOALLV_LANE_BYTES - 1) / ALLTOALLV_LANE_BYTES;
    first_line = group * ALLTOALLV_GROUP_LINES + (uint32_t)lane;
  }
  __device__ bool idle() const { return lane >= width; }
  __device__ uint32_t line(int u) const
  {
    return (first_line + (uint32_t)(u * width)) * ALLTOALLV_LINE_BYTES;
  }
};

struct lane_words {
  uint4 word[3];
};

/* The first `left` bytes of the 16 at `from` (none if left <= 0), piece by piece. `from` and `left`
 * are multiples of the piece's size. All loads are in flight together. */
template <typename T>
static __device__ __forceinline__ uint4 load_pieces(const char *from, int left)
{
  union {
    T piece[16 / sizeof(T)];
    uint4 all;
  } u;
  u.all = make_uint4(0, 0, 0, 0);
#pragma unroll
  for (int i = 0; i < (int)(16 / sizeof(T)); i++)
    if (i * (int)sizeof(T) < left) u.piece[i] = reinterpret_cast<const T *>(from)[i];
  return u.all;
}

template <typename T>
static __device__ __forceinline__ void store_pieces(char *to, uint4 value, int left)
{
  union {
    T piece[16 / sizeof(T)];
    uint4 all;
  } u;
  u.all = value;
#pragma unroll
  for (int i = 0; i < (int)(16 / sizeof(T)); i++)
    if (i * (int)sizeof(T) < left) reinterpret_cast<T *>(to)[i] = u.piece[i];
}

/* Three words at `at`, at + step and at + 2 step, of which `left` bytes from `at` on belong to the
 * segment, in pieces of type T. All loads are in flight together. */
template <typename T>
static __device__ __forceinline__ lane_words load_words(const char *at, int left, int step)
{
  lane_words v;
#pragma unroll
  for (int j = 0; j < 3; j++) v.word[j] = load_pieces<T>(at + j * step, left - j * step);
  return v;
}

template <typename T>
static __device__ __forceinline__ void store_words(char *at, const lane_words &v, int left,
                                                   int step)
{
#pragma unroll
  for (int j = 0; j < 3; j++) store_pieces<T>(at + j * step, v.word[j], left - j * step);
}

/* Does the segment consist of pieces of that size? */
static __device__ __forceinline__ bool made_of(int size, const char *at, int left)
{
  return (((uint32_t) reinterpret_cast<uintptr_t>(at) | (uint32_t)left) & (uint32_t)(size - 1)) ==
         0;
}

/* For segments that are not aligned to 16 bytes. Functions of their own, so that the code of the
 * usual case is short. */
static __device__ __noinline__ lane_words load_odd_words(const char *at, int left, int step)
{
  if (made_of(8, at, left)) return load_words<uint64_t>(at, left, step);
  if (made_of(4, at, left)) return load_words<uint32_t>(at, left, step);
  if (made_of(2, at, left)) return load_words<uint16_t>(at, left, step);
  return load_words<uint8_t>(at, left, step);
}

static __device__ __noinline__ void store_odd_words(char *at, lane_words v, int left, int step)
{
  if (made_of(8, at, left)) return store_words<uint64_t>(at, v, left, step);
  if (made_of(4, at, left)) return store_words<uint32_t>(at, v, left, step);
  if (made_of(2, at, left)) return store_words<uint16_t>(at, v, left, step);
  store_words<uint8_t>(at, v, left, step);
}

/* A lane's words of the group that begins at `from`. */
static __device__ __forceinline__ lane_words load_share(const lane_share &s, const char *from)
{
  const char *at = from + s.lane * 16;
  int left = s.left - s.lane * 16, step = s.width * 16;
  return made_of(16, at, left) ? load_words<uint4>(at, left, step) : load_odd_words(at, left, step);
}

static __device__ __forceinline__ void store_share(const lane_share &s, char *to,
                                                   const lane_words &v)
{
  char *at = to + s.lane * 16;
  int left = s.left - s.lane * 16, step = s.width * 16;
  if (made_of(16, at, left))
    store_words<uint4>(at, v, left, step);
  else
    store_odd_words(at, v, left, step);
}

static __device__ __forceinline__ uint32_t groups_of(uint64_t bytes)
{
  return ((uint32_t)bytes + ALLTOALLV_GROUP_BYTES - 1) / ALLTOALLV_GROUP_BYTES;
}

/* The blocks of the grid form teams: those with the same blockIdx.y, gridDim.x of them. Team i
 * sends lines to rank + i and receives them from rank - i; if there are fewer teams than ranks,
 * for some more values of i too. Team 0 has no peer: kernel.cuh says what its blocks do.
 * So a block waits for the block of the same number at another rank, which has sent before it
 * waits: where grids are equal, blocks that have to wait for room keep nobody from going on. */

/* Which groups of a pair are this warp's, of all warps of its team: every `step`-th from `first`
 * on. The first `without` warps of each block have something else to do. */
struct group_range {
  uint32_t first, step;
  __device__ group_range(uint32_t without = 0)
  {
    uint32_t warps = blockDim.x / 32 - without, warp = threadIdx.x / 32 - without;
    first = warp * gridDim.x + blockIdx.x; /* neighbours to different multiprocessors */
    step = warps * gridDim.x;
  }
};

/* The peers of this block's team: i, i + gridDim.y - 1, ... */
#define FOR_EACH_OF_TEAM(a, i) for (int i = blockIdx.y; i > 0 && i < (a).n; i += gridDim.y - 1)

template <int N>
static __device__ __forceinline__ void send_lines(const kernel_args<N> &a,
                                                  const struct alltoallv_pair *pairs, int lane,
                                                  group_range r = group_range())
{
  FOR_EACH_OF_TEAM(a, i)
  {
    const int p = a.rank + i < a.n ? a.rank + i : a.rank + i - a.n; /* quicker than % */
    uint64_t bytes = pairs[p].send_bytes;
    if (bytes > a.ll_threshold) bytes = a.eager;
    const char *from = a.send + pairs[p].send_offset;
    for (uint32_t g = r.first; g < groups_of(bytes); g += r.step) {
      lane_share s(bytes, g, lane);
      if (s.idle()) continue;
      lane_words v = load_share(s, from + s.offset);
      uint32_t epoch = this_epoch(a);
      if (is_broken(a)) return; /* see read_header */
      char *lines = mailbox(a, p, a.rank, epoch) + a.scratch.lines_at;
      store_line(lines + s.line(0), v.word[0].x, v.word[1].x, v.word[2].x, epoch);
      store_line(lines + s.line(1), v.word[0].y, v.word[1].y, v.word[2].y, epoch);
      store_line(lines + s.line(2), v.word[0].z, v.word[1].z, v.word[2].z, epoch);
      store_line(lines + s.line(3), v.word[0].w, v.word[1].w, v.word[2].w, epoch);
    }
  }
}

/* coming[p]: a large pair is coming from p, so its eager bytes are wanted. */
template <int N>
static __device__ __forceinline__ void
receive_lines(const kernel_args<N> &a, const struct alltoallv_pair *pairs, uint32_t epoch, int lane,
              const bool *coming = NULL, group_range r = group_range())
{
  FOR_EACH_OF_TEAM(a, i)
  {
    const int p = a.rank >= i ? a.rank - i : a.rank - i + a.n;
    const uint64_t whole = pairs[p].recv_bytes;
    uint64_t bytes = whole;
    if (whole > a.ll_threshold) {
      if (coming == NULL || !coming[p]) continue;
      bytes = a.eager;
    }
    const char *lines = mailbox(a, a.rank, p, epoch) + a.scratch.lines_at;
    for (uint32_t g = r.first; g < groups_of(bytes); g += r.step) {
      lane_share s(bytes, g, lane);
      if (s.idle()) continue;
      line l[4];
      poll_clock w;
      bool come = false;
      while (!come) {
#pragma unroll
        for (int u = 0; u < 4; u++) l[u] = load_line(lines + s.line(u));
        come = l[0].epoch == epoch && l[1].epoch == epoch && l[2].epoch == epoch &&
               l[3].epoch == epoch;
        if (!come && w.long_wait() && (contradicts(a, epoch, p, whole) || give_up(a, epoch, w, p)))
          break;
      }
      if (!come) break; /* nothing more from p */
      lane_words v;
#pragma unroll
      for (int j = 0; j < 3; j++)
        v.word[j] = make_uint4(l[0].word[j], l[1].word[j], l[2].word[j], l[3].word[j]);
      store_share(s, a.recv + pairs[p].recv_offset + s.offset, v);
    }
  }
}

/* A small part for myself, by warp number `first` of `warps`. */
template <int N>
static __device__ __forceinline__ void copy_own(const kernel_args<N> &a,
                                                const struct alltoallv_pair &own, uint32_t first,
                                                uint32_t warps, int lane)
{
  if (!alltoallv_counts_agree(own.send_bytes, own.recv_bytes)) return;
  for (uint32_t g = first; g < groups_of(own.send_bytes); g += warps) {
    lane_share s(own.send_bytes, g, lane);
    if (s.idle()) continue;
    store_share(s, a.recv + own.recv_offset + s.offset,
                load_share(s, a.send + own.send_offset + s.offset));
  }
}

#endif
