/* SPDX-License-Identifier: Apache-2.0 */
/* The low-latency protocol: small pairs travel as lines through the scratch memory of the receiver.
 * The sender waits for nothing, the receiver for the lines themselves. */
#ifndef ALLTOALLV_LL_CUH
#define ALLTOALLV_LL_CUH

#include "alltoallv_copy.cuh"
#include "alltoallv_wait.cuh"

/* One lane's share of a group: 3 x 16 bytes of data, 4 lines. The group has `width` lanes; lane
 * i takes the 16-byte words i, width + i and 2 width + i, so that a warp's accesses are
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
  __device__ int word(int j) const { return (j * width + lane) * 16; }
  __device__ uint32_t line(int u) const
  {
    return (first_line + (uint32_t)(u * width)) * ALLTOALLV_LINE_BYTES;
  }
  /* Nothing but whole, aligned words in the group that begins at `data`? */
  __device__ bool simple(const char *data) const
  {
    return ((reinterpret_cast<uintptr_t>(data) | (uint32_t)left) & 15) == 0;
  }
};

static __device__ __forceinline__ void load_share(const lane_share &s, const char *from, uint4 *v)
{
  if (s.simple(from)) {
#pragma unroll
    for (int j = 0; j < 3; j++) {
      v[j] = make_uint4(0, 0, 0, 0);
      if (s.word(j) < s.left) v[j] = *reinterpret_cast<const uint4 *>(from + s.word(j));
    }
  } else {
#pragma unroll 1
    for (int j = 0; j < 3; j++) {
      uint4 w = load16(from + s.word(j), s.left - s.word(j));
      if (j == 0) v[0] = w;
      if (j == 1) v[1] = w;
      if (j == 2) v[2] = w;
    }
  }
}

static __device__ __forceinline__ void store_share(const lane_share &s, char *to, const uint4 *v)
{
  if (s.simple(to)) {
#pragma unroll
    for (int j = 0; j < 3; j++)
      if (s.word(j) < s.left) *reinterpret_cast<uint4 *>(to + s.word(j)) = v[j];
  } else {
#pragma unroll 1
    for (int j = 0; j < 3; j++)
      store16(to + s.word(j), j == 0 ? v[0] : j == 1 ? v[1] : v[2], s.left - s.word(j));
  }
}

static __device__ __forceinline__ uint32_t groups_of(uint64_t bytes)
{
  return ((uint32_t)bytes + ALLTOALLV_GROUP_BYTES - 1) / ALLTOALLV_GROUP_BYTES;
}

/* Which groups of a pair are this warp's: every `step`-th from `first` on. */
struct group_range {
  uint32_t first, step;
  __device__ group_range()
  {
    uint32_t warps = blockDim.x / 32;
    first = threadIdx.x / 32 * gridDim.x + blockIdx.x; /* neighbours to different multiprocessors */
    step = warps * gridDim.x;
  }
};

template <int N>
static __device__ __forceinline__ int nth_peer(const kernel_args<N> &a, int i)
{
  int p = a.rank + i;
  return p < a.n ? p : p - a.n; /* quicker than % */
}

/* The peers of this block's row: row 1, say, serves rank + 1, and, if there are fewer rows than
 * ranks, some more. */
#define FOR_EACH_PEER_OF_ROW(a, p)                                                  \
  for (int i_ = blockIdx.y, p; i_ > 0 && i_ < (a).n && (p = nth_peer(a, i_), true); \
       i_ += gridDim.y - 1)

template <int N>
static __device__ __forceinline__ void
send_lines(const kernel_args<N> &a, const struct alltoallv_pair *pairs, uint32_t call, int lane)
{
  group_range r;
  FOR_EACH_PEER_OF_ROW(a, p)
  {
    uint64_t bytes = pairs[p].send_bytes;
    if (bytes > a.ll_threshold) continue;
    const char *from = a.send + pairs[p].send_offset;
    for (uint32_t g = r.first; g < groups_of(bytes); g += r.step) {
      lane_share s(bytes, g, lane);
      if (s.idle()) continue;
      uint4 v[3];
      load_share(s, from + s.offset, v);
      char *lines = slot(a, p, a.rank, call) + a.scratch.lines_at;
      store_line(lines + s.line(0), v[0].x, v[1].x, v[2].x, call);
      store_line(lines + s.line(1), v[0].y, v[1].y, v[2].y, call);
      store_line(lines + s.line(2), v[0].z, v[1].z, v[2].z, call);
      store_line(lines + s.line(3), v[0].w, v[1].w, v[2].w, call);
    }
  }
}

template <int N>
static __device__ __forceinline__ void
receive_lines(const kernel_args<N> &a, const struct alltoallv_pair *pairs, uint32_t call, int lane)
{
  group_range r;
  FOR_EACH_PEER_OF_ROW(a, p)
  {
    uint64_t bytes = pairs[p].recv_bytes;
    if (bytes > a.ll_threshold) continue;
    const char *lines = slot(a, a.rank, p, call) + a.scratch.lines_at;
    for (uint32_t g = r.first; g < groups_of(bytes); g += r.step) {
      lane_share s(bytes, g, lane);
      if (s.idle()) continue;
      line l[4];
      patience w;
      bool come = false;
      while (!come) {
#pragma unroll
        for (int u = 0; u < 4; u++) l[u] = load_line(lines + s.line(u));
        come = l[0].call == call && l[1].call == call && l[2].call == call && l[3].call == call;
        if (!come && w.long_wait() && (contradicts(a, call, p, bytes) || give_up(a, w, p))) break;
      }
      if (!come) break; /* nothing more from p */
      uint4 v[3];
#pragma unroll
      for (int j = 0; j < 3; j++)
        v[j] = make_uint4(l[0].word[j], l[1].word[j], l[2].word[j], l[3].word[j]);
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
    uint4 v[3];
    load_share(s, a.send + own.send_offset + s.offset, v);
    store_share(s, a.recv + own.recv_offset + s.offset, v);
  }
}

#endif
