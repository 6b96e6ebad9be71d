/* SPDX-License-Identifier: Apache-2.0 */
/* Large pairs go straight into the receive buffer of the peer, as in simple/barrier.cu; but a
 * header, which says where they may go, takes the place of its first barrier. Nothing touches a
 * byte outside the part: that belongs to another source, which may be writing it. */
#ifndef ALLTOALLV_PUSH_CUH
#define ALLTOALLV_PUSH_CUH

#include "lines.cuh"

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

/* The tiles of all pairs are numbered in one sequence. Tile t goes to warp t modulo the number of
 * warps, so the warps' shares differ by one tile at most. But a warp takes one tile of each pair in
 * turn: so all links are busy, and neighboring tiles are written at the same time. (One pair after
 * the other is slower, and so is one range per block.)
 *
 * By thread p: the tiles of pair p, if it is large or my own, and which warp has the first. */
static __device__ __forceinline__ void number_tiles(const kernel_args &a, block_state &b,
                                                    const struct alltoallv_pair *pairs, int p)
{
  uint32_t before = 0, tiles = 0;
  for (int q = 0; q <= p; q++) {
    before += tiles;
    const uint64_t bytes = pairs[q].send_bytes;
    tiles = q == a.rank || bytes > a.ll_threshold ? tiles_in(bytes) : 0;
  }
  b.tiles[p] = tiles;
  b.first[p] = before % (all_blocks() * (blockDim.x / 32));
}

/* Neighbors are in different blocks. */
static __device__ __forceinline__ uint32_t this_warp(void)
{
  return threadIdx.x / 32 * all_blocks() + this_block();
}

/* Moves a round, which is one tile of each pair. */
static __device__ __forceinline__ void move_round(const kernel_args &a, const block_state &b,
                                                  uint32_t round)
{
  const uint32_t warps = all_blocks() * (blockDim.x / 32), warp = round % warps;
  int p = a.rank;
  for (int i = 0; i < a.n; i++) { /* rank + 1 first, myself last */
    if (++p == a.n) p = 0;
    const uint32_t tile = round + (warp >= b.first[p] ? 0 : warps) - b.first[p];
    if (tile >= b.tiles[p]) continue;
    const struct alltoallv_pair &pair = b.pairs[p];
    if (b.to[p] != NULL) copy_tile(b.to[p], a.x.send + pair.send_offset, pair.send_bytes, tile);
  }
}

/* A warp's first round is that of its own number. If there are few, the others follow at equal
 * distances. Else they come from a counter, which block 0 sets back in the next exchange: with
 * equal shares the links idle while the slowest multiprocessor finishes. (When all warps ask the
 * counter at the same time, the last one waits a microsecond.) */
#define FEW_ROUNDS 4

static __device__ __forceinline__ void push_tiles(const kernel_args &a, const block_state &b)
{
  const uint32_t warps = all_blocks() * (blockDim.x / 32);
  uint32_t most = 0, next;
  for (int p = 0; p < a.n; p++) most = most > b.tiles[p] ? most : b.tiles[p];
  const bool few = most <= FEW_ROUNDS * warps;
  most = (most + warps - 1) / warps * warps;
  for (uint32_t round = this_warp(); round < most; round = __shfl_sync(~0u, next, 0)) {
    next = round + warps;
    if (!few && threadIdx.x % 32 == 0) next = warps + atomicAdd(&a.state->taken[b.epoch & 1], 1);
    move_round(a, b, round);
  }
}

/* ---- from the header of the peer to the arrival of the data there ------------------------- */

/* By all threads, when b.to, b.pairs and b.tiles are set: stores the large pairs and my own part.
 * Then thread p tells rank p that all of this block has been stored there. */
static __device__ __forceinline__ void push_pairs(const kernel_args &a, const block_state &b)
{
  const int p = threadIdx.x;
  __syncthreads();
  push_tiles(a, b);
  __syncthreads();
  if (p >= a.n || p == a.rank || b.tiles[p] == 0 || b.to[p] == NULL) return;
  __threadfence_system();
  store_number(slot(a, p, a.rank, b.epoch, this_block()), ALLTOALLV_LINE_DONE, 0, 0, b.epoch);
}

/* Waits until the blocks of rank p have stored a large pair: each block here for its share of them.
 * What reads the data begins after this kernel, so nothing has to be acquired. */
static __device__ __forceinline__ void await_data(const kernel_args &a, uint32_t epoch, int p,
                                                  uint32_t blocks)
{
  for (uint32_t block = this_block(); block < blocks; block += all_blocks()) {
    const char *done =
        slot(a, a.rank, p, epoch, block) + ALLTOALLV_LINE_DONE * ALLTOALLV_LINE_BYTES;
    line l[1];
    if (!await_lines(a, epoch, p, done, 0, l, [] { return false; })) return;
  }
}

#endif
