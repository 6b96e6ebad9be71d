/* SPDX-License-Identifier: Apache-2.0 */
/* The body of a large pair goes straight into the receive buffer of the peer, as in
 * simple/barrier.cu; but a header, which says where it may go, takes the place of the first
 * barrier. Nothing touches a byte outside the part: that belongs to another source, which may be
 * writing it. */
#ifndef ALLTOALLV_PUSH_CUH
#define ALLTOALLV_PUSH_CUH

#include "alltoallv_lines.cuh"

/* ---- one tile ----------------------------------------------------------------------------- */

/* What a warp moves at a time: 2 loads of 16 bytes per lane before the first store. */
#define ALLTOALLV_TILE_BYTES 1024

/* One warp copies up to a tile, in pieces of type T. Up to 8 loads come before the first store; the
 * compiler, for which both may overlap, would do one after the other. */
template <typename T>
static __device__ __forceinline__ void copy_as(char *to, const char *from, int bytes)
{
  constexpr int ALL = ALLTOALLV_TILE_BYTES / 32 / sizeof(T), DEPTH = ALL < 8 ? ALL : 8;
  const int count = bytes / (int)sizeof(T);
  T *out = reinterpret_cast<T *>(to);
  const T *in = reinterpret_cast<const T *>(from);
#pragma unroll 1
  for (int i = threadIdx.x % 32; i < count; i += 32 * DEPTH) {
    T pieces[DEPTH];
#pragma unroll
    for (int u = 0; u < DEPTH; u++)
      if (i + 32 * u < count) pieces[u] = __ldcg(in + i + 32 * u); /* read once: not kept in L1 */
#pragma unroll
    for (int u = 0; u < DEPTH; u++)
      if (i + 32 * u < count) out[i + 32 * u] = pieces[u];
  }
}

static __device__ __noinline__ void copy_odd(char *to, const char *from, int bytes, uint32_t bits)
{
  if (bits % 4 == 0)
    copy_as<uint32_t>(to, from, bytes);
  else
    copy_as<uint8_t>(to, from, bytes);
}

/* The number of tiles of a part, wherever it begins; the last one may be empty. */
static __device__ __forceinline__ uint32_t tiles_in(uint64_t bytes)
{
  return (uint32_t)((bytes + 127 + ALLTOALLV_TILE_BYTES - 1) / ALLTOALLV_TILE_BYTES);
}

/* One warp copies a tile of the part. Tiles begin at whole cache lines of the destination (128
 * bytes), because stores that fill these make the largest packets. The first may be shorter. */
static __device__ __forceinline__ void copy_tile(char *to, const char *from, uint64_t bytes,
                                                 uint32_t tile)
{
  const int64_t at =
      (int64_t)tile * ALLTOALLV_TILE_BYTES - (int64_t)(reinterpret_cast<uintptr_t>(to) & 127);
  const int64_t begin = at > 0 ? at : 0, end = at + ALLTOALLV_TILE_BYTES;
  const int count = (int)((end < (int64_t)bytes ? end : (int64_t)bytes) - begin);
  to += begin, from += begin;
  const uint32_t bits = (uint32_t) reinterpret_cast<uintptr_t>(to) |
                        (uint32_t) reinterpret_cast<uintptr_t>(from) | (uint32_t)count;
  if (bits % 16 == 0)
    copy_as<uint4>(to, from, count);
  else
    copy_odd(to, from, count, bits);
}

/* ---- which warp moves which tile ---------------------------------------------------------- */

/* In a short exchange the tiles of all bodies are numbered in one sequence. Tile t goes to warp t
 * modulo the number of warps, so the warps' shares differ by one tile at most. But a warp takes one
 * tile of each pair in turn: so all links are busy, and neighboring tiles are written at the same
 * time. (One pair after the other is slower there, and so is one range per block.)
 *
 * By thread p: the tiles for rank p, and which warp has the first. In MODE_LARGE the own part is
 * for copy_own_tiles. */
static __device__ __forceinline__ void number_tiles(const kernel_args &a, block_state &b,
                                                    const struct alltoallv_pair *pairs, int p)
{
  uint32_t before = 0, tiles = 0;
  for (int q = 0; q <= p; q++) {
    const bool own = q == a.rank, none = own && a.line_blocks > 0;
    const uint64_t head = own ? 0 : in_lines(a, pairs[q].sends);
    const uint64_t bytes = none ? 0 : pairs[q].sends - head;
    before += tiles;
    tiles = bytes > 0 ? tiles_in(bytes) : 0;
  }
  b.tiles[p] = tiles;
  b.first[p] = before % (tile_blocks(a) * (blockDim.x / 32));
}

/* Neighbors are in different blocks. */
static __device__ __forceinline__ uint32_t this_warp(const kernel_args &a)
{
  return threadIdx.x / 32 * tile_blocks(a) + tile_block(a);
}

/* A long exchange takes what is next from a counter, which block 0 sets back in the exchange
 * before: with equal shares the links idle while the slowest multiprocessor finishes. (In a short
 * one that waits a microsecond: all warps ask the counter at the same time.) And it sends to rank +
 * 1 first, then to rank + 2 and so on: where several GPUs store into one at the same time, a link
 * carries less. */
#define FEW_ROUNDS 4

struct tile_count {
  uint32_t most, all, warps; /* most: of a pair */
  bool few;
};

static __device__ __forceinline__ tile_count count_tiles(const kernel_args &a, const block_state &b)
{
  tile_count t = {0, 0, tile_blocks(a) * (blockDim.x / 32), false};
  for (int p = 0; p < a.n; p++) {
    t.most = t.most > b.tiles[p] ? t.most : b.tiles[p];
    t.all += b.tiles[p];
  }
  t.few = t.all <= FEW_ROUNDS * t.warps;
  return t;
}

/* If they are few, with the own part as the last one; else without. */
static __device__ __forceinline__ void push_tiles(const kernel_args &a, const block_state &b, int k,
                                                  const tile_count &t)
{
  const int n = a.n, rank = a.rank; /* the compiler would load them again after each store */
  const char *send = a.x.payload[0].send;
  const uint32_t warps = t.warps, warp = this_warp(a);
  uint32_t *counter = &a.state->taken[b.epoch & 1].pushed[k];
  const bool few = t.few;
  const uint32_t end = few ? (t.most + warps - 1) / warps * warps : t.all - b.tiles[rank];
  uint32_t next;
  for (uint32_t at = warp; at < end; at = __shfl_sync(~0u, next, 0)) {
    next = at + warps;
    if (!few && threadIdx.x % 32 == 0) next = warps + atomicAdd(counter, 1);
    uint32_t rest = at; /* a round, which is one tile of each pair; or one tile */
    for (int i = 0, p = rank; i < n; i++) {
      if (++p == n) p = 0;
      const uint32_t tile = few ? at + (warp >= b.first[p] ? 0 : warps) - b.first[p] : rest;
      const bool mine = tile < b.tiles[p];
      if (mine && b.to[p] != NULL)
        copy_tile(b.to[p], send + b.pairs[p].sends_at, b.pairs[p].sends, tile);
      if (mine && !few) break;
      rest -= b.tiles[p];
    }
  }
}

/* ---- my own part --------------------------------------------------------------------------- */

/* A small one, by warp number `first` of `warps`; as groups, because tiles would take more
 * registers. */
static __device__ __forceinline__ void
copy_own(const kernel_args &a, const struct alltoallv_pair &own, uint32_t first, uint32_t warps)
{
  if (own.sends != own.gets) return;
  for (uint32_t g = first; g < groups_of(own.sends); g += warps) {
    const int left = bytes_left(own.sends, g);
    if (left <= 0) continue;
    const lane_words v = move_words<false>(word_at(a.x.payload[0].send, own.sends_at, g), {}, left);
    move_words<true>(word_at(a.x.payload[0].recv, own.gets_at, g), v, left);
  }
}

/* A large one, by warps that have nothing else to do. The `first` warps begin with the units of
 * their numbers; others, and all that have time for more, ask a counter. */
#define OWN_UNIT 4 /* tiles */

static __device__ __forceinline__ void copy_own_tiles(const kernel_args &a,
                                                      const struct alltoallv_pair &own,
                                                      uint32_t *counter, uint32_t warp,
                                                      uint32_t first)
{
  const uint32_t tiles = tiles_in(own.sends), leader = threadIdx.x % 32 == 0;
  if (own.sends != own.gets || own.sends == 0) return;
  uint32_t unit = warp, next = 0;
  if (warp >= first) {
    if (leader) next = first + atomicAdd(counter, 1);
    unit = __shfl_sync(~0u, next, 0);
  }
  for (; unit * OWN_UNIT < tiles; unit = __shfl_sync(~0u, next, 0)) {
    if (leader) next = first + atomicAdd(counter, 1);
    for (uint32_t t = unit * OWN_UNIT; t < (unit + 1) * OWN_UNIT && t < tiles; t++)
      copy_tile(a.x.payload[0].recv + own.gets_at, a.x.payload[0].send + own.sends_at, own.sends,
                t);
  }
}

/* ---- until the data have arrived ----------------------------------------------------------- */

/* By thread 0, after a barrier: this block has stored its share of large pairs. The last block of
 * which that is true tells every rank, and gets true. Its fence covers what the others have stored,
 * because each of them has a fence before the addition. Only this block then waits for data: so
 * every other one makes room for the next kernel, and for blocks that were not resident yet. */
static __device__ __forceinline__ bool tell_done(const kernel_args &a, const block_state &b)
{
  __threadfence();
  if (atomicAdd(&a.state->taken[b.epoch & 1].done, 1) + 1 != tile_blocks(a)) return false;
  __threadfence_system();
  for (int p = 0; p < a.n; p++)
    store_number(mailbox(a, p, a.rank, b.epoch), ALLTOALLV_LINE_DONE, 0, 0, b.epoch);
  return true;
}

/* By thread p: waits until rank p has stored its large pairs. */
static __device__ __forceinline__ void await_done(const kernel_args &a, uint32_t epoch, int p)
{
  const char *done = mailbox(a, a.rank, p, epoch) + ALLTOALLV_LINE_DONE * ALLTOALLV_LINE_BYTES;
  line l[1];
  await_lines<AWAIT_TAGGED>(a, epoch, p, done, 0, l, a.pairs[p].gets);
}

#endif
