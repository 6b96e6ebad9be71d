/* SPDX-License-Identifier: Apache-2.0 */
/* Direct push: large pairs go straight into the receive buffer of the peer, in tiles. */
#ifndef ALLTOALLV_PUSH_CUH
#define ALLTOALLV_PUSH_CUH

#include "alltoallv_copy.cuh"
#include "alltoallv_wait.cuh"

/* Tiles are dealt two at a time, as couples: of 8 TiB per exchange 32 bits can count the couples,
 * and divide faster. */
#define COUPLE_BYTES (2 * ALLTOALLV_TILE_BYTES)
static __device__ __forceinline__ uint32_t couples_of(uint64_t bytes)
{
  return (uint32_t)((bytes + COUPLE_BYTES - 1) / COUPLE_BYTES);
}

/* Tiles are dealt in 2^shift rounds, in each of which most warps take one. A round holds tiles of
 * all pairs in proportion to their bytes: so all pairs end together, every link is busy all the
 * time, one large pair is moved by all blocks, and neighbouring tiles are written at the same time.
 * (One pair after the other loses 5 to 10 %, one contiguous range per block as much.) A power of
 * two, because a division takes longer than anything else here before the first store.
 *
 * Every thread for itself; b.couples is given. */
template <int N>
static __device__ __forceinline__ struct deal deal_tiles(const kernel_args<N> &a,
                                                         const block_state<N> &b, uint32_t warps)
{
  struct deal d = {0, 0, 0};
  uint32_t all = 0;
  for (int p = 0; p < a.n; p++) all += b.couples[p];
  while (all >> d.shift > warps / 2) d.shift++;
  d.width = (all >> d.shift) + a.n; /* n: every pair may round up */
  if (all > 0) d.turns = 2 * ((uint64_t)d.width << d.shift);
  return d;
}

/* The tile of a turn. */
template <int N>
static __device__ __forceinline__ struct place
find_tile(const kernel_args<N> &a, const block_state<N> &b, const struct deal &d, uint64_t turn)
{
  struct place at = {-1, 0};
  if (turn >= d.turns) return at;
  uint32_t couple = (uint32_t)(turn >> 1), round = couple / d.width;
  uint32_t left = couple - round * d.width;
  int p = a.rank;
  for (int i = 0; i < a.n; i++) { /* rank + 1 first, myself last */
    if (++p == a.n) p = 0;
    uint64_t couples = b.couples[p];
    uint32_t begin = (uint32_t)(couples * round >> d.shift);
    uint32_t end = (uint32_t)(couples * (round + 1) >> d.shift);
    if (left < end - begin) {
      at.tile = 2 * (uint64_t)(begin + left) + (turn & 1);
      if (at.tile * ALLTOALLV_TILE_BYTES < b.pairs[p].send_bytes) at.peer = p;
      break;
    }
    left -= end - begin;
  }
  return at;
}

/* Fetches a tile into the second-level cache. */
template <int N>
static __device__ __forceinline__ void
prefetch_tile(const kernel_args<N> &a, const block_state<N> &b, struct place at, int lane)
{
  if (at.peer < 0) return;
  const struct alltoallv_pair &pair = b.pairs[at.peer];
  uint64_t offset = at.tile * ALLTOALLV_TILE_BYTES + lane * (ALLTOALLV_TILE_BYTES / 32);
  if (offset < pair.send_bytes)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(a.send + pair.send_offset + offset));
}

/* A warp's first turn has its own number (and `at` is the tile); the next ones come from a counter:
 * multiprocessors are not equally fast, and with equal shares the slow ones would leave the links
 * idle at the end. The next number is on its way while a tile is copied. To be called by all
 * threads. */
template <int N>
static __device__ __forceinline__ void push_tiles(const kernel_args<N> &a, block_state<N> &b,
                                                  const struct deal &d, struct place at,
                                                  uint32_t warp, uint32_t warps, int lane)
{
  for (uint64_t turn = warp, next = 0; turn < d.turns; turn = __shfl_sync(~0u, next, 0)) {
    next = turn + warps;
    if (lane == 0 && d.turns > warps) next = warps + atomicAdd(&a.state->taken, 1ull);
    if (turn != warp) at = find_tile(a, b, d, turn);
    if (at.peer < 0 || b.to[at.peer] == NULL) continue;
    const struct alltoallv_pair &pair = b.pairs[at.peer];
    uint64_t bytes = pair.send_bytes, rest = bytes - at.tile * ALLTOALLV_TILE_BYTES;
    copy_tile(b.to[at.peer], a.send + pair.send_offset, bytes, at.tile, lane);
    if (lane == 0)
      atomicAdd(&b.pushed[at.peer], rest < ALLTOALLV_TILE_BYTES ? rest : ALLTOALLV_TILE_BYTES);
  }
  __syncthreads(); /* all warps have pushed */
  /* The last block to come here sets the counter back. */
  uint32_t blocks = warps / (blockDim.x / 32);
  if (threadIdx.x == blockDim.x - 1 && atomicInc(&a.state->blocks_done, blocks - 1) == blocks - 1)
    *(volatile unsigned long long *)&a.state->taken = 0;
}

#endif
