/* SPDX-License-Identifier: Apache-2.0 */
/* The low-latency protocol: small pairs, and the heads of large ones, travel as lines through the
 * scratch memory of the receiver. The sender waits for nothing, the receiver for the lines
 * themselves. */
#ifndef ALLTOALLV_LINES_CUH
#define ALLTOALLV_LINES_CUH

#include "alltoallv_wait.cuh"

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

/* What a warp sends or receives: of every `step`-th pair from `first` on, every `warps`-th group
 * from `next` on; with heads (below) counted through all of these pairs, else anew in each. Pair i
 * goes to rank + i and comes from rank - i; the own one, 0, takes no lines. */
struct share {
  int first, step;
  uint32_t next, warps;
};

/* Blocks with the same blockIdx.y are a team. Team i > 0 has pair i; with fewer teams than ranks
 * also i + gridDim.y - 1 and so on. So where grids are equal a block waits for the block of its
 * number at another rank, which has sent before it waits. Neighboring groups go to different
 * multiprocessors. */
static __device__ __forceinline__ share of_team(void)
{
  return {(int)blockIdx.y, (int)gridDim.y - 1, threadIdx.x / 32 * gridDim.x + blockIdx.x,
          blockDim.x / 32 * gridDim.x};
}

/* How many bytes of a pair take lines: of a small one all, and in MODE_LARGE, which is HEADS, of a
 * large one a head, for which the link has time while the header is awaited. Just above the
 * threshold heads are longer, so that no pair is much slower than a slightly smaller one. (With
 * device counts all of a large pair goes in tiles.) */
template <bool HEADS>
static __device__ __forceinline__ uint64_t in_lines(const kernel_args &a, uint64_t bytes)
{
  const uint64_t most = a.ll_threshold, twice = 2 * most;
  if (bytes <= most) return bytes;
  if (!HEADS) return 0;
  return bytes + a.head < twice ? (twice - bytes) / 128 * 128 : a.head;
}

/* One warp sends a group to rank p. False: nothing may be sent any more. `before`: groups of lines
 * in the mailbox before those of this payload. */
static __device__ __forceinline__ bool send_group(const kernel_args &a,
                                                  const struct alltoallv_pair &pair, int p,
                                                  uint64_t bytes, uint32_t g, uint32_t before)
{
  const int left = bytes_left(bytes, g);
  if (left <= 0) return true;
  char *part = const_cast<char *>(a.x.payload[0].send) + pair.sends_at;
  const lane_words v = move_words<false>(part, g, {}, left);
  const struct beginning now = begin_exchange(a);
  if (now.broken) return false; /* see read_header */
  char *lines = lane_lines(mailbox(a, p, a.rank, now.epoch), before + g);
  store_line(lines, v.word[0].x, v.word[1].x, v.word[2].x, now.epoch);
  store_line(lines + 512, v.word[0].y, v.word[1].y, v.word[2].y, now.epoch);
  store_line(lines + 1024, v.word[0].z, v.word[1].z, v.word[2].z, now.epoch);
  store_line(lines + 1536, v.word[0].w, v.word[1].w, v.word[2].w, now.epoch);
  return true;
}

/* One warp receives a group from rank p. False: no more come from there. */
static __device__ __forceinline__ bool receive_group(const kernel_args &a,
                                                     const struct alltoallv_pair &pair,
                                                     uint32_t epoch, int p, uint64_t bytes,
                                                     uint32_t g, uint32_t before)
{
  const int left = bytes_left(bytes, g);
  if (left <= 0) return true;
  const char *lines = lane_lines(mailbox(a, a.rank, p, epoch), before + g);
  auto in_vain = [&] { return contradicts(a, epoch, p, pair.gets); };
  line l[4];
  if (!await_lines(a, epoch, p, lines, 512, l, in_vain)) return false;
  lane_words v;
#pragma unroll
  for (int j = 0; j < 3; j++)
    v.word[j] = make_uint4(l[0].word[j], l[1].word[j], l[2].word[j], l[3].word[j]);
  move_words<true>(a.x.payload[0].recv + pair.gets_at, g, v, left);
  return true;
}

/* For i from 0 to n. */
static __device__ __forceinline__ int rank_plus(const kernel_args &a, int i)
{
  return a.rank + i < a.n ? a.rank + i : a.rank + i - a.n; /* quicker than % */
}

template <bool HEADS>
static __device__ __forceinline__ void
send_lines(const kernel_args &a, const struct alltoallv_pair *pairs, uint32_t before, share s)
{
  for (int i = s.first; i > 0 && i < a.n; i += s.step) {
    const int p = rank_plus(a, i);
    const uint64_t bytes = in_lines<HEADS>(a, pairs[p].sends);
    uint32_t g = s.next;
    for (; g < groups_of(bytes); g += s.warps)
      if (!send_group(a, pairs[p], p, bytes, g, before)) return;
    if (HEADS) s.next = g - groups_of(bytes);
  }
}

template <bool HEADS>
static __device__ __forceinline__ void receive_lines(const kernel_args &a,
                                                     const struct alltoallv_pair *pairs,
                                                     uint32_t before, uint32_t epoch, share s)
{
  for (int i = s.first; i > 0 && i < a.n; i += s.step) {
    const int p = rank_plus(a, a.n - i);
    const uint64_t bytes = in_lines<HEADS>(a, pairs[p].gets);
    uint32_t g = s.next;
    for (bool comes = true; g < groups_of(bytes); g += s.warps)
      comes = comes && receive_group(a, pairs[p], epoch, p, bytes, g, before);
    if (HEADS) s.next = g - groups_of(bytes);
  }
}

#endif
