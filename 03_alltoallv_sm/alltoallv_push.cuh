/* SPDX-License-Identifier: Apache-2.0 */
/* Direct push: large pairs go straight into the receive buffer of the peer, in tiles. */
#ifndef ALLTOALLV_PUSH_CUH
#define ALLTOALLV_PUSH_CUH

#include "alltoallv_copy.cuh"
#include "alltoallv_wait.cuh"

/* (8 TiB per exchange: 32 bits suffice, and divide faster) */
static __device__ uint32_t tiles_of(uint64_t bytes)
{
  return (uint32_t)((bytes + ALLTOALLV_TILE_BYTES - 1) / ALLTOALLV_TILE_BYTES);
}

/* Tiles are dealt in rounds, in each of which every warp takes about one. A round holds tiles of
 * all pairs in proportion to their bytes: so all pairs end together, every link is busy all the
 * time, one large pair is moved by all blocks, and neighbouring tiles are written at the same time.
 * (One pair after the other loses 5 to 10 %, one contiguous range per block as much.) To be called
 * by all threads; b.tiles is given. */
template <int N>
static __device__ void deal_tiles(const kernel_args<N> &a, block_state<N> &b, uint32_t warps)
{
  __syncthreads();
  if (threadIdx.x < a.n) {
    uint32_t all = 0, mine = b.tiles[threadIdx.x];
    for (int p = 0; p < a.n; p++) all += b.tiles[p];
    uint32_t per_round = warps > a.n ? warps - a.n : 1; /* n: every pair may round up */
    uint32_t rounds = (all + per_round - 1) / per_round;
    b.step[threadIdx.x] = (uint64_t)mine << 32;
    if (rounds > 1) b.step[threadIdx.x] /= rounds;
    if (threadIdx.x == 0) b.rounds = rounds, b.width = per_round + a.n;
    b.pushed[threadIdx.x] = 0;
  }
  __syncthreads();
}

/* The tile of `turn` in a round: which pair's, and which of its tiles? False: the round has fewer.
 */
template <int N>
static __device__ bool find_tile(const kernel_args<N> &a, const block_state<N> &b, uint32_t round,
                                 uint32_t turn, int *peer, uint32_t *tile)
{
  bool last = round + 1 == b.rounds;
  int p = a.rank;
  for (int i = 0; i < a.n; i++) { /* rank + 1 first, myself last */
    if (++p == a.n) p = 0;
    uint32_t begin = (uint32_t)(round * b.step[p] >> 32);
    uint32_t end = last ? b.tiles[p] : (uint32_t)((round + 1) * b.step[p] >> 32);
    if (turn < end - begin) {
      *peer = p;
      *tile = begin + turn;
      return true;
    }
    turn -= end - begin;
  }
  return false;
}

/* Fetches the warp's first tile into the second-level cache. */
template <int N>
static __device__ void prefetch_tile(const kernel_args<N> &a, const block_state<N> &b,
                                     uint32_t warp, int lane)
{
  int p;
  uint32_t tile;
  if (b.rounds == 0 || !find_tile(a, b, 0, warp, &p, &tile)) return;
  uint64_t at = (uint64_t)tile * ALLTOALLV_TILE_BYTES + lane * (ALLTOALLV_TILE_BYTES / 32);
  if (at < b.pairs[p].send_bytes)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(a.send + b.pairs[p].send_offset + at));
}

/* A warp takes its first tile by its own number and the next ones from a counter: multiprocessors
 * are not equally fast, and with equal shares the slow ones would leave the links idle at the end.
 * The number of the next tile is on its way while one is copied. To be called by all threads. */
template <int N>
static __device__ void push_tiles(const kernel_args<N> &a, block_state<N> &b, uint32_t warp,
                                  uint32_t warps, int lane)
{
  int p;
  uint32_t tile, turns = b.rounds * b.width;
  for (uint32_t turn = warp, next = 0; turn < turns; turn = __shfl_sync(~0u, next, 0)) {
    next = turn + warps;
    if (lane == 0 && turns > warps) next = warps + atomicAdd(&a.state->taken, 1);
    if (!find_tile(a, b, turn / b.width, turn % b.width, &p, &tile) || b.to[p] == NULL) continue;
    uint64_t bytes = b.pairs[p].send_bytes, rest = bytes - (uint64_t)tile * ALLTOALLV_TILE_BYTES;
    copy_tile(b.to[p], a.send + b.pairs[p].send_offset, bytes, tile, lane);
    if (lane == 0)
      atomicAdd(&b.pushed[p], rest < ALLTOALLV_TILE_BYTES ? rest : ALLTOALLV_TILE_BYTES);
  }
  __syncthreads(); /* all warps have pushed */
  /* The last block to come here sets the counter back. */
  uint32_t blocks = warps / (blockDim.x / 32);
  if (threadIdx.x == blockDim.x - 1 && atomicInc(&a.state->pushed, blocks - 1) == blocks - 1)
    *(volatile uint32_t *)&a.state->taken = 0;
}

#endif
