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

/* ---- the rank's own part ------------------------------------------------------------------- */

/* What is next, from a counter that block 0 sets back in the next exchange. The first lane asks,
 * before the warp copies, and the others hear of it when it has copied. */
static __device__ __forceinline__ uint32_t ask(uint32_t *counter, uint32_t first)
{
  return threadIdx.x % 32 == 0 ? first + atomicAdd(counter, 1) : 0;
}

/* By warps that have nothing to send, beginning with tile number `first` (NO_TILE: ask). The next
 * ones follow at distances of `step`, or if there are bodies, all who have time ask for one. */
#define NO_TILE UINT32_MAX

static __device__ __forceinline__ void copy_own(const kernel_args &a,
                                                const struct alltoallv_pair &own, uint32_t epoch,
                                                bool bodies, uint32_t first, uint32_t step)
{
  if (own.sends != own.gets) return;
  for (int k = 0; k < a.x.payloads; k++) {
    const part from = sent_part(a, own, k), to = received_part(a, own, k);
    const uint32_t tiles = from.bytes > 0 ? tiles_in(from.bytes) : 0;
    uint32_t *counter = &a.state->taken[epoch & 1].own[k], tile = first, next;
    if (tile == NO_TILE) tile = __shfl_sync(~0u, ask(counter, step), 0);
    for (; tile < tiles; tile = __shfl_sync(~0u, next, 0)) {
      next = bodies ? ask(counter, step) : tile + step;
      copy_tile(to.at, from.at, from.bytes, tile);
    }
  }
}

/* The warps that deal with lines; without bodies, those that are at home at this rank. */
static __device__ __forceinline__ void copy_own_by(const kernel_args &a, const line_warp &w,
                                                   const struct alltoallv_pair *pairs,
                                                   uint32_t epoch, bool bodies)
{
  const uint32_t step = bodies ? w.warps : min(w.warps, 1 << w.shift);
  if (w.number < step) copy_own(a, pairs[a.rank], epoch, bodies, w.number, step);
}

/* ---- which warp pushes which tile ---------------------------------------------------------- */

static __device__ __forceinline__ uint32_t push_warps(const kernel_args &a)
{
  return blockDim.x / 32 * a.push_blocks;
}

/* The tiles of all bodies are numbered in one sequence. In a short exchange tile t goes to warp t
 * modulo the number of warps, so the warps' shares differ by one tile at most. But a warp takes one
 * tile of each pair in turn: so all links are busy, and neighboring tiles are written at the same
 * time. (One pair after the other is slower there, and so is one range per block.)
 *
 * By thread p: the tiles of payload k for rank p, and which warp has the first. */
static __device__ __forceinline__ void
number_tiles(const kernel_args &a, block_state &b, const struct alltoallv_pair *pairs, int k, int p)
{
  uint32_t before = 0, tiles = 0;
  for (int q = 0; q <= p; q++) {
    const uint64_t bytes = sent_part(a, pairs[q], k).bytes;
    const uint64_t body = q == a.rank ? 0 : bytes - head_of(a, bytes);
    before += tiles;
    tiles = body > 0 ? tiles_in(body) : 0;
  }
  b.tiles[p] = tiles;
  b.first[p] = before % push_warps(a);
}

static __device__ __forceinline__ void push_tile(const kernel_args &a, const block_state &b, int k,
                                                 int p, uint32_t tile)
{
  if (b.place[k][p] == 0) return;
  const part all = sent_part(a, b.pairs[p], k);
  const uint64_t head = head_of(a, all.bytes);
  copy_tile(at_place(a, p, b.place[k][p]) + head, all.at + head, all.bytes - head, tile);
}

/* In a long exchange tiles come from a counter: with equal shares the links idle while the slowest
 * multiprocessor finishes. (In a short one that takes a microsecond more: all warps ask at the same
 * time.) And it sends to rank + 1 first, then to rank + 2 and so on: where several GPUs store into
 * one at the same time, a link carries less. */
#define FEW_ROUNDS 4

static __device__ __forceinline__ void push_tiles(const kernel_args &a, const block_state &b, int k)
{
  const uint32_t warps = push_warps(a), warp = threadIdx.x / 32 * a.push_blocks + this_block();
  uint32_t *counter = &a.state->taken[b.epoch & 1].pushed[k];
  uint32_t most = 0, all = 0, next;
  for (int p = 0; p < a.n; p++) {
    most = most > b.tiles[p] ? most : b.tiles[p];
    all += b.tiles[p];
  }
  const bool few = all <= FEW_ROUNDS * warps;
  const uint32_t end = few ? (most + warps - 1) / warps * warps : all;
  for (uint32_t at = warp; at < end; at = __shfl_sync(~0u, next, 0)) {
    next = few ? at + warps : ask(counter, warps);
    uint32_t rest = at; /* a round, which is one tile of each pair; or one tile */
    for (int i = 1, p = a.rank; i < a.n; i++) {
      if (++p == a.n) p = 0;
      const uint32_t tile = few ? at + (warp >= b.first[p] ? 0 : warps) - b.first[p] : rest;
      const bool mine = tile < b.tiles[p];
      if (mine) push_tile(a, b, k, p, tile);
      if (mine && !few) break;
      rest -= b.tiles[p];
    }
  }
}

/* ---- from the header of the peer to the arrival of the data there ------------------------- */

/* Waits until the blocks of all ranks have stored their shares of the bodies for this one. */
static __device__ __forceinline__ void await_bodies(const kernel_args &a, const block_state &b)
{
  for (int p = 0; p < a.n; p++) {
    const uint32_t mine = (threadIdx.x + p * 128) % blockDim.x; /* few ranks: a flag for each */
    for (uint32_t block = mine; block < b.blocks[p]; block += blockDim.x) {
      const char *done =
          slot(a, a.rank, p, b.epoch, block) + ALLTOALLV_LINE_DONE * ALLTOALLV_LINE_BYTES;
      line l[1];
      if (!await_lines(a, b.epoch, p, done, 0, l, [] { return false; })) return;
    }
  }
}

/* By all threads of a block that pushes, when b is complete and its tiles of payload 0 are
 * numbered: stores the bodies. Then thread p tells rank p that all of this block has been stored
 * there. Only the block that began last waits for the others: by then all blocks of this rank are
 * there, so those that end make room for the next kernel, and it keeps none from beginning. */
static __device__ __forceinline__ void push_bodies(const kernel_args &a, block_state &b)
{
  const int p = threadIdx.x;
  const bool tells = p < a.n && p != a.rank && b.place[0][p] != 0 && has_body(a, b.pairs[p].sends);
  uint32_t begun = 0;
  if (p == 0) begun = atomicAdd(&a.state->taken[b.epoch & 1].begun, 1) + 1; /* needed later */
  push_tiles(a, b, 0);
  for (int k = 1; k < a.x.payloads; k++) {
    __syncthreads();
    if (p < a.n) number_tiles(a, b, b.pairs, k, p);
    __syncthreads();
    push_tiles(a, b, k);
  }
  if (p == 0) b.last = begun == a.push_blocks;
  __syncthreads();
  if (tells) {
    __threadfence_system();
    store_number(slot(a, p, a.rank, b.epoch, this_block()), ALLTOALLV_LINE_DONE, 0, 0, b.epoch);
  }
  GRIDDEPCONTROL("launch_dependents");
  if (p / 32 > (a.n - 1) / 32) /* the others have a fence to wait for */
    copy_own(a, b.pairs[a.rank], b.epoch, true, NO_TILE, this_line_warp(a, true).warps);
  if (b.last) await_bodies(a, b);
}

#endif
