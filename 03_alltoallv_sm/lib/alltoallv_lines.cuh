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

/* ---- what goes in lines -------------------------------------------------------------------- */

/* One payload of what a pair sends or receives. */
struct part {
  char *at;
  uint64_t bytes;
};

static __device__ __forceinline__ part sent_part(const kernel_args &a,
                                                 const struct alltoallv_pair &pair, int k)
{
  const struct alltoallv_payload &l = a.x.payload[k];
  return {const_cast<char *>(l.send) + pair.sends_at * l.unit, pair.sends * l.unit};
}

static __device__ __forceinline__ part received_part(const kernel_args &a,
                                                     const struct alltoallv_pair &pair, int k)
{
  const struct alltoallv_payload &l = a.x.payload[k];
  return {l.recv + pair.gets_at * l.unit, pair.gets * l.unit};
}

static __device__ __forceinline__ uint64_t most_in_lines(const kernel_args &a)
{
  return (uint64_t)a.ll_groups * ALLTOALLV_GROUP_BYTES;
}

/* A part has a head, which goes in lines, and a body, which goes in tiles. A small one is all head.
 * A large one has a head because the link has time while the header is awaited; a little above the
 * limit it is longer, so that no part takes much longer than a slightly smaller one. This depends
 * on the bytes alone, so both sides agree when their counts do. Counts that cannot be meant have no
 * head: what they say need not exist. */
static __device__ __forceinline__ uint64_t head_of(const kernel_args &a, uint64_t bytes)
{
  const uint64_t most = most_in_lines(a);
  if (bytes <= most) return bytes;
  if (bytes >= ALLTOALLV_TOO_MANY) return 0;
  return 2 * bytes + a.head < 3 * most ? (3 * most - 2 * bytes) / 128 * 128 : a.head;
}

/* Has any payload of so many units a body? */
static __device__ __forceinline__ bool has_body(const kernel_args &a, uint64_t units)
{
  return units * a.x.widest > most_in_lines(a);
}

/* ---- which warp sends and receives which group --------------------------------------------- */

static __device__ __forceinline__ uint32_t groups_of(uint64_t bytes)
{
  return ((uint32_t)bytes + ALLTOALLV_GROUP_BYTES - 1) / ALLTOALLV_GROUP_BYTES;
}

/* A warp that deals with lines: of the blocks that do not push, or if there are no bodies, of all
 * but the first. Each rank is home to 2^shift of them, for what goes to rank + i and comes from
 * rank - i. There group g begins with warp g of that home, and goes on with the homes after it. So
 * small parts have warps of their own, and of uneven ones every warp has about as many groups.
 * (No division: it would take longer than the rest.) */
struct line_warp {
  uint32_t number, warps, shift;
};

static __device__ __forceinline__ uint32_t first_line_block(const kernel_args &a, bool bodies)
{
  return bodies ? a.push_blocks : 1;
}

static __device__ __forceinline__ line_warp this_line_warp(const kernel_args &a, bool bodies)
{
  const uint32_t first = first_line_block(a, bodies), blocks = gridDim.x - first;
  return {threadIdx.x / 32 * blocks + this_block() - first, blockDim.x / 32 * blocks,
          a.line_shift[bodies]};
}

/* Calls f(i, g, step) for every rank + i that this warp deals with: g is the first group, and
 * others follow at distances of `step`. Where grids are equal, a group is received by the warp of
 * the number that has sent it. Other pairs than that at home are not even looked at if no head
 * reaches further: each would be a cache miss. */
template <typename F>
static __device__ __forceinline__ void for_each_rank(const kernel_args &a, const line_warp &w, F f)
{
  for (uint32_t at = w.number; at >> w.shift < a.n; at += w.warps) {
    int i = at >> w.shift;
    uint32_t g = at - (i << w.shift);
    for (int ranks = a.n; ranks > 0 && g < a.most_groups; ranks--, g += 1 << w.shift) {
      if (i > 0) f(i, g, a.n << w.shift);
      i = i > 0 ? i - 1 : a.n - 1;
    }
  }
}

/* The first of a lane's lines of group g; the others follow at distances of 512 bytes. */
static __device__ __forceinline__ char *lane_lines(const kernel_args &a, char *mailbox, int k,
                                                   uint32_t g)
{
  return mailbox + ALLTOALLV_LL_AT +
         ((k * a.ll_groups + g) * ALLTOALLV_GROUP_LINES + threadIdx.x % 32) * ALLTOALLV_LINE_BYTES;
}

static __device__ __forceinline__ void send_lines(const kernel_args &a, const line_warp &w,
                                                  const struct alltoallv_pair *pairs)
{
  for (int k = 0; k < a.x.payloads; k++)
    for_each_rank(a, w, [&](int i, uint32_t first, uint32_t step) {
      const int p = a.rank + i < a.n ? a.rank + i : a.rank + i - a.n; /* quicker than % */
      const part all = sent_part(a, pairs[p], k);
      const uint64_t head = head_of(a, all.bytes);
      for (uint32_t g = first; g < groups_of(head); g += step) {
        const int left = bytes_left(head, g);
        if (left <= 0) continue;
        const lane_words v = move_words<false>(all.at, g, {}, left);
        const struct beginning now = begin_exchange(a);
        if (now.broken) return; /* see read_header */
        char *lines = lane_lines(a, mailbox(a, p, a.rank, now.epoch), k, g);
        store_line(lines, v.word[0].x, v.word[1].x, v.word[2].x, now.epoch);
        store_line(lines + 512, v.word[0].y, v.word[1].y, v.word[2].y, now.epoch);
        store_line(lines + 1024, v.word[0].z, v.word[1].z, v.word[2].z, now.epoch);
        store_line(lines + 1536, v.word[0].w, v.word[1].w, v.word[2].w, now.epoch);
      }
    });
}

static __device__ __forceinline__ void receive_lines(const kernel_args &a, const line_warp &w,
                                                     const struct alltoallv_pair *pairs,
                                                     uint32_t epoch)
{
  for (int k = 0; k < a.x.payloads; k++)
    for_each_rank(a, w, [&](int i, uint32_t first, uint32_t step) {
      const int p = a.rank >= i ? a.rank - i : a.rank - i + a.n;
      const part all = received_part(a, pairs[p], k);
      const uint64_t head = head_of(a, all.bytes);
      auto in_vain = [&] { return contradicts(a, epoch, p, pairs[p].gets); };
      for (uint32_t g = first; g < groups_of(head); g += step) {
        const int left = bytes_left(head, g);
        if (left <= 0) continue;
        const char *lines = lane_lines(a, mailbox(a, a.rank, p, epoch), k, g);
        line l[4];
        if (!await_lines(a, epoch, p, lines, 512, l, in_vain)) return; /* nothing more from p */
        lane_words v;
#pragma unroll
        for (int j = 0; j < 3; j++)
          v.word[j] = make_uint4(l[0].word[j], l[1].word[j], l[2].word[j], l[3].word[j]);
        move_words<true>(all.at, g, v, left);
      }
    });
}

#endif
