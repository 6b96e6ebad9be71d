/* SPDX-License-Identifier: Apache-2.0 */
/* The local pass: the gradient is added to the residual, and what is above a threshold is gathered,
 * in order, in one pass over memory (12 bytes per element: two reads and a write).
 *
 * Blocks stay and take tile after tile. A tile's few candidates wait in shared memory until the
 * loads of the next tile are on their way; only then does the block look up how many candidates
 * there are before them (ops_device.cuh) and write them out. So that look-up, which is a round trip
 * through the L2 cache, costs no time. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops_device.cuh"

namespace
{

enum {
  THREADS = 512,
  WARPS = THREADS / 32,
  QUADS = OPS_DENSE_TILE / THREADS / 4, /* of a thread: 16-byte accesses */
  STAGED = 1024,                        /* candidates of a tile that may wait */
#ifndef OPS_LOCAL_BLOCKS
#define OPS_LOCAL_BLOCKS 2
#endif
  BLOCKS = OPS_LOCAL_BLOCKS, /* per multiprocessor */
};
static_assert(QUADS == 4, "the counts of a thread's quads are the bytes of a word");

/* The caller has added the gradient to the residual. */
struct no_gradient {
};

/* ---- gradients: four elements at a time, read once ------------------------------------------- */

template <typename G>
struct quad {
  uint2 raw; /* 16-bit elements */
};
template <>
struct quad<float> {
  float4 raw;
};
template <>
struct quad<no_gradient> {
};

__device__ inline void load(quad<float> &q, const float *at)
{
  q.raw = __ldcs((const float4 *)at);
}
template <typename G>
__device__ inline void load(quad<G> &q, const G *at)
{
  q.raw = __ldcs((const uint2 *)at);
}
__device__ inline void load(quad<no_gradient> &, const no_gradient *) {}

__device__ inline float value(const quad<float> &q, int e)
{
  return e == 0 ? q.raw.x : e == 1 ? q.raw.y : e == 2 ? q.raw.z : q.raw.w;
}
__device__ inline uint16_t bits(const uint2 &raw, int e)
{
  return (uint16_t)((e < 2 ? raw.x : raw.y) >> 16 * (e % 2));
}
__device__ inline float value(const quad<__half> &q, int e)
{
  return __half2float(__ushort_as_half(bits(q.raw, e)));
}
__device__ inline float value(const quad<__nv_bfloat16> &q, int e)
{
  return __bfloat162float(__ushort_as_bfloat16(bits(q.raw, e)));
}
__device__ inline float value(const quad<no_gradient> &, int)
{
  return 0;
}

/* One element at a time, for tails and gradients that are not aligned. */
__device__ inline void set(quad<float> &q, int e, float x)
{
  (e == 0 ? q.raw.x : e == 1 ? q.raw.y : e == 2 ? q.raw.z : q.raw.w) = x;
}
template <typename G>
__device__ inline void set(quad<G> &q, int e, G x)
{
  const uint32_t shifted = (uint32_t) * (const uint16_t *)&x << 16 * (e % 2);
  (e < 2 ? q.raw.x : q.raw.y) |= shifted;
}
__device__ inline void set(quad<no_gradient> &, int, no_gradient) {}

/* ---- the kernel --------------------------------------------------------------------------------
 */

struct shared {
  alignas(16) sparse_pair staged[STAGED];
  double2 moments[WARPS];
  uint64_t partial[WARPS];
  uint4 counts[WARPS / 4]; /* of candidates, by warp */
  sparse_level_t levels[SPARSE_MAX_LEVELS];
  uint32_t exceeded[SPARSE_MAX_LEVELS]; /* candidates whose highest exceeded level is that */
  uint32_t first, next;                 /* tiles */
};

/* What a block knows during the whole pass. */
struct pass {
  const sparse_memory &m;
  shared &s;
  ops_chain chain;
  uint32_t tiles;
  int nlevels;
};

/* Candidate number `at` (over the whole vector) goes to its place. */
__device__ inline void put(const pass &p, uint64_t at, sparse_pair candidate)
{
  if (at < p.m.capacity) *(uint2 *)&p.m.offered[at] = *(const uint2 *)&candidate;
  if (p.nlevels == 1) return;
  int level = 0;
  while (level + 1 < p.nlevels && sparse_magnitude(candidate.value) > p.s.levels[level + 1])
    level++;
  if (level > 0) atomicAdd(&p.s.exceeded[level], 1u);
}

__device__ inline void write_staged(pass &p, uint32_t tile, uint32_t count)
{
  const uint64_t first = ops_chain_before(p.chain, tile, p.s.partial); /* a barrier: all staged */
  for (uint32_t i = threadIdx.x; i < count; i += THREADS) put(p, first + i, p.s.staged[i]);
  ops_chain_advance(p.chain, tile, p.tiles, count, 0);
}

/* Sums of the values and squares of a tile: each thread's in order, then along a tree. */
__device__ inline void moments_of_warp(const float (&acc)[QUADS][4], double2 *to)
{
  double sum = 0, squares = 0;
#pragma unroll
  for (int j = 0; j < QUADS; j++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      sum += (double)acc[j][e];
      squares += (double)acc[j][e] * (double)acc[j][e]; /* the product is exact */
    }
  sum = ops_warp_sum(sum);
  squares = ops_warp_sum(squares);
  if (threadIdx.x % 32 == 0) *to = make_double2(sum, squares);
}

/* The last block: what the pass has found, from the scratch memory to the state. */
template <bool MOMENTS>
__device__ void finish(pass &p, enum sparse_control then)
{
  double2 *sums = (double2 *)p.s.staged;
  static_assert(sizeof(p.s.staged) >= sizeof(*sums) * THREADS, "");
  const sparse_memory &m = p.m;
  sparse_state *state = m.state;
  if ((int)threadIdx.x < p.nlevels) {
    uint32_t *count = &p.chain.scratch->levels[threadIdx.x];
    p.s.exceeded[threadIdx.x] = __ldcg(count);
    *count = 0;
  }
  if (MOMENTS) {
    const double2 *tiles = ops_tile_moments(m);
    double2 sum = make_double2(0, 0);
    for (uint32_t t = threadIdx.x; t < p.tiles; t += THREADS) {
      const double2 tile = __ldcg(&tiles[t]);
      sum.x += tile.x;
      sum.y += tile.y;
    }
    sums[threadIdx.x] = sum;
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
      __syncthreads();
      if (threadIdx.x >= half) continue;
      sums[threadIdx.x].x += sums[threadIdx.x + half].x;
      sums[threadIdx.x].y += sums[threadIdx.x + half].y;
    }
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  const uint64_t total =
      ops_chain_end(p.chain, p.tiles, ops_words(m.n, m.nranks, m.capacity)) & 0xffffffffu;
  state->offered_count = total < m.capacity ? total : m.capacity;
  uint64_t above = 0;
  for (int j = p.nlevels - 1; j > 0; j--) state->level_counts[j] = above += p.s.exceeded[j];
  state->level_counts[0] = total;
  if (MOMENTS) {
    const double n = (double)m.n;
    double squares = sums[0].y - sums[0].x * sums[0].x / n;
    if (squares < 0) squares = 0; /* by rounding only */
    state->mean = sums[0].x / n;
    state->deviation = sqrt(squares / (n - 1));
  }
  ops_decide(then, &m);
}

template <typename G, bool MOMENTS>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    local_pass(const __grid_constant__ sparse_memory m, const G *gradient, bool aligned,
               enum sparse_control then)
{
  constexpr bool READS = sizeof(quad<G>) > 1; /* a gradient */
  __shared__ shared s;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const bool finite_only = m.config.nonfinite != SPARSE_NONFINITE_PROPAGATE;
  sparse_state *state = m.state;
  pass p = {m, s, ops_chain_begin(m), (uint32_t)((m.n + OPS_DENSE_TILE - 1) / OPS_DENSE_TILE),
            state->nlevels};
  if (threadIdx.x == 0) s.first = ops_chain_draw(p.chain);
  for (int j = (int)threadIdx.x; j < p.nlevels; j += THREADS) {
    s.levels[j] = state->levels[j];
    s.exceeded[j] = 0;
  }
  /* Candidates: low <= magnitude < low + range, in unsigned arithmetic. */
  const sparse_level_t threshold = state->levels[0], limit = state->limit;
  const uint32_t low = (uint32_t)threshold + 1u;
  const uint32_t range = limit > threshold ? (uint32_t)limit - (uint32_t)threshold : 0;
  bool nonfinite = false;
  uint32_t staged_tile = 0, staged = 0;
  bool waiting = false; /* candidates in shared memory */
  __syncthreads();

  for (uint32_t tile = s.first; tile < p.tiles;) {
    /* A warp's elements lie together: 4 rows of 128, 4 of each row for a thread. */
    const size_t at = (size_t)tile * OPS_DENSE_TILE + warp * (QUADS * 128) + lane * 4;
    const bool full = ((size_t)tile + 1) * OPS_DENSE_TILE <= m.n;
    quad<G> g[QUADS];
    float acc[QUADS][4];
    uint32_t valid = 0xffffu;
    if (full && aligned) {
#pragma unroll
      for (int j = 0; j < QUADS; j++) load(g[j], gradient + at + j * 128);
    } else if (READS) {
      for (int j = 0; j < QUADS; j++) {
        g[j] = {};
        for (int e = 0; e < 4; e++)
          if (at + j * 128 + e < m.n) set(g[j], e, gradient[at + j * 128 + e]);
      }
    }
    if (full) {
#pragma unroll
      for (int j = 0; j < QUADS; j++) {
        const float4 r = __ldcs((const float4 *)(m.residual + at + j * 128));
        acc[j][0] = r.x, acc[j][1] = r.y, acc[j][2] = r.z, acc[j][3] = r.w;
      }
    } else {
      valid = 0;
#pragma unroll
      for (int j = 0; j < QUADS; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const bool inside = at + j * 128 + e < m.n;
          acc[j][e] = inside ? m.residual[at + j * 128 + e] : 0;
          valid |= (uint32_t)inside << (4 * j + e);
        }
    }
    uint32_t drawn = 0;
    if (threadIdx.x == 0) drawn = ops_chain_draw(p.chain);

    if (waiting) write_staged(p, staged_tile, staged);

    uint32_t chosen = 0;
#pragma unroll
    for (int j = 0; j < QUADS; j++) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
        if (READS) {
          const float x = value(g[j], e);
          const bool skip = finite_only && sparse_magnitude(x) > 0x7f7fffff;
          nonfinite |= skip;
          acc[j][e] = skip ? acc[j][e] : __fadd_rn(acc[j][e], x);
        }
        if ((uint32_t)sparse_magnitude(acc[j][e]) - low < range) chosen |= 1u << (4 * j + e);
      }
      if (READS && full)
        __stcs((float4 *)(m.residual + at + j * 128),
               make_float4(acc[j][0], acc[j][1], acc[j][2], acc[j][3]));
    }
    if (READS && !full) {
#pragma unroll
      for (int j = 0; j < QUADS; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
          if (valid >> (4 * j + e) & 1) m.residual[at + j * 128 + e] = acc[j][e];
    }
    chosen &= valid;
    if (MOMENTS) moments_of_warp(acc, &s.moments[warp]);

    /* How many candidates before mine: by row in the bytes of a word, then by warp. */
    uint32_t rows = 0;
#pragma unroll
    for (int j = 0; j < QUADS; j++) rows |= (uint32_t)__popc(chosen >> 4 * j & 15) << 8 * j;
    const uint32_t through = ops_warp_scan(rows);
    const uint32_t whole = __shfl_sync(OPS_ALL_LANES, through, 31);
    uint32_t before[QUADS], in_warp = 0;
#pragma unroll
    for (int j = 0; j < QUADS; j++) {
      before[j] = in_warp + (through - rows >> 8 * j & 255);
      in_warp += whole >> 8 * j & 255;
    }
    if (lane == 0) ((uint32_t *)s.counts)[warp] = in_warp;
    if (threadIdx.x == 0) s.next = drawn;
    __syncthreads(); /* also: what was staged has been written */
    const uint32_t next = s.next;
    uint32_t in_tile = 0, first = 0;
#pragma unroll
    for (uint32_t w = 0; w < WARPS; w++) {
      if (w == warp) first = in_tile;
      in_tile += ((const uint32_t *)s.counts)[w];
    }
    if (threadIdx.x == 0) ops_chain_publish(p.chain, tile, in_tile, 0);
    if (MOMENTS && threadIdx.x == 32) {
      double2 sum = make_double2(0, 0);
      for (int w = 0; w < WARPS; w++) sum.x += s.moments[w].x, sum.y += s.moments[w].y;
      ops_tile_moments(m)[tile] = sum;
    }
    waiting = in_tile <= STAGED;
    const uint64_t offset = waiting ? 0 : ops_chain_before(p.chain, tile, s.partial);
#pragma unroll
    for (int j = 0; j < QUADS; j++) {
      uint32_t to = first + before[j];
#pragma unroll
      for (int e = 0; e < 4; e++) {
        if (!(chosen >> (4 * j + e) & 1)) continue;
        const sparse_pair candidate = {(uint32_t)(at + j * 128 + e), acc[j][e]};
        if (waiting)
          s.staged[to++] = candidate;
        else
          put(p, offset + to++, candidate);
      }
    }
    if (waiting)
      staged_tile = tile, staged = in_tile;
    else
      ops_chain_advance(p.chain, tile, p.tiles, in_tile, 0);
    tile = next;
  }
  if (waiting) write_staged(p, staged_tile, staged);
  if (nonfinite) state->nonfinite = 1;
  __syncthreads();
  for (int j = (int)threadIdx.x; j < p.nlevels; j += THREADS)
    if (s.exceeded[j] > 0) atomicAdd(&p.chain.scratch->levels[j], s.exceeded[j]);
  if (ops_last_block(p.chain.scratch)) finish<MOMENTS>(p, then);
}

template <typename G>
ncclResult_t launch(const sparse_memory *m, const void *gradient, bool moments,
                    enum sparse_control then, cudaStream_t stream)
{
  const bool aligned = (uintptr_t)gradient % (4 * sizeof(G)) == 0;
  const unsigned blocks = ops_blocks(m->n, OPS_DENSE_TILE, BLOCKS);
  return ops_launch(moments ? local_pass<G, true> : local_pass<G, false>, blocks, THREADS, false,
                    stream, *m, (const G *)gradient, aligned, then);
}

} // namespace

extern "C" ncclResult_t ops_local_pass(const struct sparse_memory *m, const void *gradient,
                                       bool moments, enum sparse_control then, cudaStream_t stream)
{
  if (gradient == NULL) return launch<no_gradient>(m, gradient, moments, then, stream);
  switch (m->config.gradient_type) {
  case ncclHalf:
    return launch<__half>(m, gradient, moments, then, stream);
  case ncclBfloat16:
    return launch<__nv_bfloat16>(m, gradient, moments, then, stream);
  default:
    return launch<float>(m, gradient, moments, then, stream);
  }
}

ncclResult_t ops_load_local_pass(void)
{
  return ops_load_kernels(local_pass<float, false>, local_pass<float, true>,
                          local_pass<__half, false>, local_pass<__half, true>,
                          local_pass<__nv_bfloat16, false>, local_pass<__nv_bfloat16, true>,
                          local_pass<no_gradient, false>, local_pass<no_gradient, true>);
}
