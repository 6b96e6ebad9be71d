/* SPDX-License-Identifier: Apache-2.0 */
/* The low-latency protocol: small pairs, and the heads of large ones, travel as bare lines through
 * the scratch memory of the receiver. The sender waits for nothing, the receiver for the lines
 * themselves: their places are empty before, and whoever reads a line makes its place empty again.
 * So all bytes on the link are data. At read_header is the proof that no line is overwritten and
 * none of another exchange is read. */
#ifndef ALLTOALLV_LINES_CUH
#define ALLTOALLV_LINES_CUH

#include "alltoallv_wait.cuh"

/* What a lane moves of a group, a line each: words that begin at 16 * lane, 512 + 16 * lane and so
 * on, so that a warp's accesses are contiguous on both sides. */
struct lane_words {
  line word[ALLTOALLV_LANE_LINES];
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
    T piece[ALLTOALLV_LANE_LINES][16 / sizeof(T)];
  } u;
  u.all = v;
#pragma unroll
  for (int j = 0; j < ALLTOALLV_LANE_LINES; j++) {
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

/* This lane's first word of group g, where a part begins `offset` bytes after `buffer`. */
static __device__ __forceinline__ char *word_at(const char *buffer, uint64_t offset, uint32_t g)
{
  return const_cast<char *>(buffer) + offset + (uint64_t)g * ALLTOALLV_GROUP_BYTES +
         threadIdx.x % 32 * 16;
}

template <bool STORE>
static __device__ __forceinline__ lane_words move_words(char *at, lane_words v, int left)
{
  return (reinterpret_cast<uintptr_t>(at) | (uintptr_t)left) % 16 == 0
             ? move_pieces<uint4, STORE>(at, v, left)
             : move_odd_words<STORE>(at, v, left);
}

static __device__ __forceinline__ uint32_t groups_of(uint64_t bytes)
{
  return ((uint32_t)bytes + ALLTOALLV_GROUP_BYTES - 1) / ALLTOALLV_GROUP_BYTES;
}

/* The number of a lane's first line in group g of a mailbox; the others follow at distances of
 * 32. */
static __device__ __forceinline__ uint32_t lane_line(uint32_t g)
{
  return g * ALLTOALLV_GROUP_LINES + threadIdx.x % 32;
}

static __device__ __forceinline__ char *line_at(char *mailbox, uint32_t number)
{
  return mailbox + ALLTOALLV_LL_AT + number * ALLTOALLV_LINE_BYTES;
}

/* ---- bare lines ---------------------------------------------------------------------------- */

/* From data to what is sent, and back: see ALLTOALLV_KEY. */
static __device__ __forceinline__ void apply_key(line &l)
{
  l.w ^= ALLTOALLV_KEY;
}

static __device__ __forceinline__ bool may_escape(const line &l)
{
  return l.w <= 1;
}

/* STORE: puts the words that must not be sent as they are into escapes. Else takes them from there,
 * and makes the escapes empty again. That wait needs no timeout: the thread that has sent the line
 * stored the escape before it, so the escape has come, or is on its way. */
template <bool STORE>
static __device__ __noinline__ lane_words move_escapes(const kernel_args &a, char *mailbox,
                                                       uint32_t number, lane_words v)
{
  volatile uint8_t *last = reinterpret_cast<uint8_t *>(mailbox) + a.mailbox_bytes - 1 - number;
#pragma unroll
  for (int j = 0; j < ALLTOALLV_LANE_LINES; j++) {
    line &l = v.word[j];
    volatile uint8_t *escape = last - 32 * j;
    if (!may_escape(l)) continue;
    if (STORE) {
      *escape = (uint8_t)(1 + l.w);
      l.w = 1;
    } else {
      while (*escape == 0) continue;
      l.w = *escape - 1u;
      *escape = 0;
    }
  }
  return v;
}

/* ---- who moves what ------------------------------------------------------------------------ */

/* What a warp sends or receives: of every `step`-th pair from `first` on, every `warps`-th group
 * from `next` on, counted through all of these pairs. Pair i goes to rank + i and comes from rank -
 * i; the own one, 0, takes no lines. */
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

/* How many bytes of a pair take lines: of a small one all, and of a large one a head, for which the
 * link has time while the header, or the rows of counts, are awaited. Just above the threshold
 * heads are longer, so that no pair is much slower than a slightly smaller one. */
static __device__ __forceinline__ uint32_t in_lines(const kernel_args &a, uint64_t bytes)
{
  const uint32_t most = a.ll_threshold, head = most / 2;
  if (bytes <= most) return (uint32_t)bytes;
  return bytes < most + head ? (2 * most - (uint32_t)bytes) / 128 * 128 : head;
}

/* One warp sends a group to rank p. False: nothing may be sent any more. `before`: groups of lines
 * in the mailbox before those of this payload. */
static __device__ __forceinline__ bool send_group(const kernel_args &a,
                                                  const struct alltoallv_pair &pair, int p,
                                                  uint64_t bytes, uint32_t g, uint32_t before)
{
  const int left = bytes_left(bytes, g);
  const uint32_t number = lane_line(before + g);
  char *from = word_at(a.x.payload[0].send, pair.sends_at, g);
  GRIDDEPCONTROL("wait"); /* only the first one waits: what comes before it takes arguments only */
  if (left <= 0) return true;
  lane_words v = move_words<false>(from, {}, left);
  const struct beginning now = begin_exchange(a);
  if (now.broken) return false; /* see read_header */
  char *box = mailbox(a, p, a.rank, now.epoch);
  bool escapes = false;
#pragma unroll
  for (int j = 0; j < ALLTOALLV_LANE_LINES; j++) {
    apply_key(v.word[j]);
    escapes |= may_escape(v.word[j]);
  }
  if (escapes) v = move_escapes<true>(a, box, number, v);
#pragma unroll
  for (int j = 0; j < ALLTOALLV_LANE_LINES; j++)
    store_line(line_at(box, number + 32 * j), v.word[j]);
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
  char *box = mailbox(a, a.rank, p, epoch);
  const uint32_t number = lane_line(before + g);
  lane_words v;
  if (!await_lines<AWAIT_BARE>(a, epoch, p, line_at(box, number), 512, v.word, pair.gets))
    return false;
  bool escapes = false;
#pragma unroll
  for (int j = 0; j < ALLTOALLV_LANE_LINES; j++) {
    store_line(line_at(box, number + 32 * j), {}); /* empty again */
    escapes |= may_escape(v.word[j]);
  }
  if (escapes) v = move_escapes<false>(a, box, number, v);
#pragma unroll
  for (int j = 0; j < ALLTOALLV_LANE_LINES; j++) apply_key(v.word[j]);
  move_words<true>(word_at(a.x.payload[0].recv, pair.gets_at, g), v, left);
  return true;
}

/* For i from 0 to n. */
static __device__ __forceinline__ int rank_plus(const kernel_args &a, int i)
{
  return a.rank + i < a.n ? a.rank + i : a.rank + i - a.n; /* quicker than % */
}

/* SEND: sends what the others get; the epoch is not needed. Else receives what they send. */
template <bool SEND>
static __device__ __forceinline__ void move_lines(const kernel_args &a,
                                                  const struct alltoallv_pair *pairs,
                                                  uint32_t before, uint32_t epoch, share s)
{
  for (int i = s.first; i > 0 && i < a.n; i += s.step) {
    const int p = rank_plus(a, SEND ? i : a.n - i);
    const uint32_t bytes = in_lines(a, SEND ? pairs[p].sends : pairs[p].gets);
    uint32_t g = s.next;
    for (bool moves = true; g < groups_of(bytes); g += s.warps)
      moves = moves && (SEND ? send_group(a, pairs[p], p, bytes, g, before)
                             : receive_group(a, pairs[p], epoch, p, bytes, g, before));
    s.next = g - groups_of(bytes);
  }
}

#endif
