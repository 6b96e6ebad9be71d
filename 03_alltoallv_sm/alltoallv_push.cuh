/* SPDX-License-Identifier: Apache-2.0 */
/* Direct push: large pairs go straight into the receive buffer of the peer, in tiles. */
#ifndef ALLTOALLV_PUSH_CUH
#define ALLTOALLV_PUSH_CUH

#include "alltoallv_copy.cuh"
#include "alltoallv_wait.cuh"

static __device__ uint64_t tiles_of(uint64_t bytes)
{
  return (bytes + ALLTOALLV_TILE_BYTES - 1) / ALLTOALLV_TILE_BYTES;
}

/* Tiles are dealt in rounds, in each of which every warp takes about one. A round holds tiles of
 * all pairs in proportion to their bytes: so all pairs end together, every link is busy all the
 * time, one large pair is moved by all blocks, and neighbouring tiles are written at the same time.
 * (One pair after the other loses 5 to 10 %, one contiguous range per block as much.) To be called
 * by all threads; b.tiles and b.first are given. */
template <int N>
static __device__ void deal_tiles(const kernel_args<N> &a, block_state<N> &b, uint32_t warps)
{
  __syncthreads();
  if (threadIdx.x < a.n) {
    uint64_t all = 0;
    for (int p = 0; p < a.n; p++) all += b.tiles[p];
    uint64_t per_round = warps > a.n ? warps - a.n : 1; /* n: every pair may round up */
    uint64_t rounds = (all + per_round - 1) / per_round;
    if (rounds > 0) b.step[threadIdx.x] = (b.tiles[threadIdx.x] << 32) / rounds;
    if (threadIdx.x == 0) b.rounds = rounds;
    b.pushed[threadIdx.x] = 0;
  }
  __syncthreads();
}

/* The tile of `turn` in a round: which pair's, and which of its tiles? */
template <int N>
static __device__ bool find_tile(const kernel_args<N> &a, const block_state<N> &b, uint64_t round,
                                 uint64_t turn, int *peer, uint64_t *tile)
{
  bool last = round + 1 == b.rounds;
  int p = a.rank;
  for (int i = 0; i < a.n; i++) { /* rank + 1 first, myself last */
    if (++p == a.n) p = 0;
    uint64_t begin = round * b.step[p] >> 32;
    uint64_t end = last ? b.tiles[p] : (round + 1) * b.step[p] >> 32;
    if (turn < end - begin) {
      *peer = p;
      *tile = b.first[p] + begin + turn;
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
  uint64_t tile;
  if (b.rounds == 0 || !find_tile(a, b, 0, warp, &p, &tile)) return;
  uint64_t at = tile * ALLTOALLV_TILE_BYTES + (uint64_t)lane * (ALLTOALLV_TILE_BYTES / 32);
  if (at < b.pairs[p].send_bytes)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(a.send + b.pairs[p].send_offset + at));
}

template <int N>
static __device__ void push_tiles(const kernel_args<N> &a, block_state<N> &b, uint32_t warp,
                                  uint32_t warps, int lane)
{
  int p;
  uint64_t tile;
  for (uint64_t round = 0; round < b.rounds; round++)
    for (uint64_t turn = warp; find_tile(a, b, round, turn, &p, &tile); turn += warps) {
      if (b.to[p] == NULL) continue;
      uint64_t bytes = b.pairs[p].send_bytes, rest = bytes - tile * ALLTOALLV_TILE_BYTES;
      copy_tile(b.to[p], a.send + b.pairs[p].send_offset, bytes, tile, lane);
      if (lane == 0)
        atomicAdd(&b.pushed[p], rest < ALLTOALLV_TILE_BYTES ? rest : ALLTOALLV_TILE_BYTES);
    }
}

#endif
