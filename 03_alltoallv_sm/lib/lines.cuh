/* SPDX-License-Identifier: Apache-2.0 */
/* The low-latency protocol: small pairs travel as lines through the scratch memory of the receiver.
 * The sender waits for nothing, the receiver for the lines themselves. */
#ifndef ALLTOALLV_LL_CUH
#define ALLTOALLV_LL_CUH

#include "wait.cuh"

/* What a lane moves of a group, as 4 lines: its pieces begin at 16 * lane, 512 + 16 * lane and
 * 1024 + 16 * lane, so that a warp's accesses are contiguous on both sides. */
struct lane_words {
  uint4 word[3];
};

/* How many bytes of group g belong to this lane and the lanes after it. 0 or less: none. */
static __device__ __forceinline__ int bytes_left(uint64_t bytes, uint32_t g)
{
  const int rest = (int)bytes - (int)g * ALLTOALLV_GROUP_BYTES;
  return (rest < ALLTOALLV_GROUP_BYTES ? rest : ALLTOALLV_GROUP_BYTES) - (int)threadIdx.x % 32 * 16;
}

/* Loads or stores a lane's words at `at`, where `left` bytes belong to the part, in pieces of
 * type T. All loads are in flight together. */
template <typename T, bool STORE>
static __device__ __forceinline__ lane_words move_pieces(char *at, lane_words v, int left)
{
  union {
    lane_words all;
    T piece[3][16 / sizeof(T)];
  } u;
  u.all = v;
#pragma unroll
  for (int j = 0; j < 3; j++) {
    T *pieces = reinterpret_cast<T *>(at + j * 512);
#pragma unroll
    for (int i = 0; i < (int)(16 / sizeof(T)); i++)
      if (j * 512 + i * (int)sizeof(T) < left) {
        if (STORE)
          pieces[i] = u.piece[j][i];
        else
          u.piece[j][i] = pieces[i];
      }
  }
  return u.all;
}

/* Where the part does not consist of whole words of 16 bytes. */
template <bool STORE>
static __device__ __noinline__ lane_words move_odd_words(char *at, lane_words v, int left)
{
  return (reinterpret_cast<uintptr_t>(at) | (uintptr_t)left) % 4 == 0
             ? move_pieces<uint32_t, STORE>(at, v, left)
             : move_pieces<uint8_t, STORE>(at, v, left);
}

/* In group g of the part. */
template <bool STORE>
static __device__ __forceinline__ lane_words move_words(char *part, uint32_t g, lane_words v,
                                                        int left)
{
  char *at = part + (uint64_t)g * ALLTOALLV_GROUP_BYTES + threadIdx.x % 32 * 16;
  return (reinterpret_cast<uintptr_t>(at) | (uintptr_t)left) % 16 == 0
             ? move_pieces<uint4, STORE>(at, v, left)
             : move_odd_words<STORE>(at, v, left);
}

static __device__ __forceinline__ uint32_t groups_of(uint64_t bytes)
{
  return ((uint32_t)bytes + ALLTOALLV_GROUP_BYTES - 1) / ALLTOALLV_GROUP_BYTES;
}

/* The first of a lane's lines of group g; the others follow at distances of 512 bytes. */
static __device__ __forceinline__ char *lane_lines(char *mailbox, uint32_t g)
{
  return mailbox + ALLTOALLV_LL_AT +
         (g * ALLTOALLV_GROUP_LINES + threadIdx.x % 32) * ALLTOALLV_LINE_BYTES;
}

/* Blocks with the same blockIdx.y are a team. Team i > 0 sends lines to rank + i and receives them
 * from rank - i; with fewer teams than ranks also for i + gridDim.y - 1 and so on. So a block waits
 * for the block of its number at another rank, which has sent before it waits: where grids are
 * equal, blocks that are not resident yet keep nobody from going on. */
#define FOR_EACH_OF_TEAM(a, i) for (int i = blockIdx.y; i > 0 && i < (a).n; i += gridDim.y - 1)

/* The groups of a pair for this warp of its team; neighbors go to different multiprocessors. */
#define FOR_EACH_GROUP(g, bytes)                                                     \
  for (uint32_t g = threadIdx.x / 32 * gridDim.x + blockIdx.x; g < groups_of(bytes); \
       g += blockDim.x / 32 * gridDim.x)

static __device__ __forceinline__ void send_lines(const kernel_args &a,
                                                  const struct alltoallv_pair *pairs)
{
  FOR_EACH_OF_TEAM(a, i)
  {
    const int p = a.rank + i < a.n ? a.rank + i : a.rank + i - a.n; /* quicker than % */
    const uint64_t bytes = pairs[p].send_bytes;
    if (bytes > a.ll_threshold) continue;
    FOR_EACH_GROUP(g, bytes)
    {
      const int left = bytes_left(bytes, g);
      if (left <= 0) continue;
      char *part = const_cast<char *>(a.x.send) + pairs[p].send_offset;
      const lane_words v = move_words<false>(part, g, {}, left);
      const struct beginning now = begin_exchange(a);
      if (now.broken) return; /* see read_header */
      char *lines = lane_lines(mailbox(a, p, a.rank, now.epoch), g);
      store_line(lines, v.word[0].x, v.word[1].x, v.word[2].x, now.epoch);
      store_line(lines + 512, v.word[0].y, v.word[1].y, v.word[2].y, now.epoch);
      store_line(lines + 1024, v.word[0].z, v.word[1].z, v.word[2].z, now.epoch);
      store_line(lines + 1536, v.word[0].w, v.word[1].w, v.word[2].w, now.epoch);
    }
  }
}

static __device__ __forceinline__ void
receive_lines(const kernel_args &a, const struct alltoallv_pair *pairs, uint32_t epoch)
{
  FOR_EACH_OF_TEAM(a, i)
  {
    const int p = a.rank >= i ? a.rank - i : a.rank - i + a.n;
    const uint64_t bytes = pairs[p].recv_bytes;
    if (bytes > a.ll_threshold) continue;
    FOR_EACH_GROUP(g, bytes)
    {
      const int left = bytes_left(bytes, g);
      if (left <= 0) continue;
      const char *lines = lane_lines(mailbox(a, a.rank, p, epoch), g);
      auto in_vain = [&] { return contradicts(a, epoch, p, bytes); };
      line l[4];
      if (!await_lines(a, epoch, p, lines, 512, l, in_vain)) break; /* nothing more from p */
      lane_words v;
#pragma unroll
      for (int j = 0; j < 3; j++)
        v.word[j] = make_uint4(l[0].word[j], l[1].word[j], l[2].word[j], l[3].word[j]);
      move_words<true>(a.x.recv + pairs[p].recv_offset, g, v, left);
    }
  }
}

/* A small part for myself, by warp number `first` of `warps`. */
static __device__ __forceinline__ void
copy_own(const kernel_args &a, const struct alltoallv_pair &own, uint32_t first, uint32_t warps)
{
  char *part = const_cast<char *>(a.x.send) + own.send_offset;
  if (own.send_bytes != own.recv_bytes) return;
  for (uint32_t g = first; g < groups_of(own.send_bytes); g += warps) {
    const int left = bytes_left(own.send_bytes, g);
    if (left > 0)
      move_words<true>(a.x.recv + own.recv_offset, g, move_words<false>(part, g, {}, left), left);
  }
}

#endif
