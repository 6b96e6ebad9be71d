/* SPDX-License-Identifier: Apache-2.0 */
/* The local pass: the gradient is added to the residual, and what is above a threshold is gathered,
 * in order, in one pass over memory (12 bytes per element: two reads and a write).
 *
 * Blocks stay and take tile after tile. A tile's few candidates wait in shared memory while the
 * next tile is done, until the loads of the one after that are on their way; only then does the
 * block look up how many candidates there are before them (ops_chain.cuh) and write them out. By
 * then all blocks have counted theirs, so the look-up waits for nobody, and its round trip through
 * the L2 cache is hidden behind the loads. */
#include "ops_chain.cuh"
#include "ops_gradient.cuh"

namespace
{

enum {
  THREADS = 512,
  WARPS = THREADS / 32,
  QUADS = OPS_DENSE_TILE / THREADS / 4, /* of a thread: 16-byte accesses */
  STAGED = 640,                         /* candidates of a tile that may wait */
  BLOCKS = 2,                           /* per multiprocessor */
};
static_assert(QUADS == 4, "the counts of a thread's quads are the bytes of a word");

/* ---- the kernel --------------------------------------------------------------------------------
 */

struct shared {
  float4 values[QUADS][THREADS]; /* of the tile: each thread's own, to be indexed by a variable */
  sparse_pair staged[2][STAGED]; /* of the tile and of the one before, by parity */
  double2 moments[2][WARPS];
  uint32_t counts[2][WARPS]; /* of candidates */
  uint32_t next[2];          /* tile */
  uint32_t partial[WARPS];
  sparse_level_t levels[SPARSE_MAX_LEVELS];
  uint32_t exceeded[SPARSE_MAX_LEVELS]; /* candidates whose highest exceeded level is that */
};

/* What a block knows during the whole pass. */
struct pass {
  const sparse_memory &m;
  shared &s;
  ops_chain chain;
  uint32_t tiles;
  int nlevels;
};

/* A tile whose candidates wait in shared memory. */
struct waiting {
  uint32_t tile, count;
  bool any;
};

/* Candidate number `at` (over the whole vector) goes to its place. */
__device__ inline void put(const pass &p, uint64_t at, sparse_pair candidate)
{
  if (at < sparse_room(&p.m)) *(uint2 *)&p.m.offered[at] = *(const uint2 *)&candidate;
  if (p.nlevels == 1) return;
  int level = 0;
  while (level + 1 < p.nlevels && sparse_magnitude(candidate.value) > p.s.levels[level + 1])
    level++;
  if (level > 0) atomicAdd(&p.s.exceeded[level], 1u);
}

__device__ inline void write_staged(pass &p, const waiting &w, const sparse_pair *staged)
{
  if (!w.any) return;
  const uint64_t first = ops_chain_before(p.chain, w.tile, p.s.partial);
  for (uint32_t i = threadIdx.x; i < w.count; i += THREADS) put(p, first + i, staged[i]);
  ops_chain_advance(p.chain, w.tile, p.tiles, w.count, 0);
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
  double2 *sums = (double2 *)p.s.values;
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
  state->offered_count = total < sparse_room(&m) ? total : sparse_room(&m);
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
  state->pending = sparse_leaves(&m);
  ops_decide(then, &m);
}

/* Which of a thread's elements are candidates: bit 4 * j + e. */
__device__ inline uint32_t choose(const float (&acc)[QUADS][4], sparse_level_t level,
                                  sparse_level_t limit)
{
  uint32_t chosen = 0;
  if (limit == SPARSE_INFINITY_LEVEL) { /* as floats: NaN is above nothing */
    const float threshold = level < 0 ? -1.0f : sparse_from_magnitude(level);
#pragma unroll
    for (int i = 0; i < 4 * QUADS; i++)
      chosen |= (uint32_t)(fabsf(acc[i / 4][i % 4]) > threshold) << i;
  } else { /* level < magnitude <= limit, in unsigned arithmetic */
    const uint32_t low = (uint32_t)level + 1u;
    const uint32_t range = limit > level ? (uint32_t)limit - (uint32_t)level : 0;
#pragma unroll
    for (int i = 0; i < 4 * QUADS; i++)
      chosen |= (uint32_t)((uint32_t)sparse_magnitude(acc[i / 4][i % 4]) - low < range) << i;
  }
  return chosen;
}

/* Adds the gradient. Whether all of it is finite takes one instruction per element to know: 0 times
 * anything else is NaN. Those elements become -0, which changes no number that it is added to. */
template <typename G>
__device__ inline bool add(float (&acc)[QUADS][4], const quad<G> (&g)[QUADS], bool finite_only)
{
  float x[QUADS][4], zero = 0;
#pragma unroll
  for (int i = 0; i < 4 * QUADS; i++) {
    x[i / 4][i % 4] = value(g[i / 4], i % 4);
    zero = __fmaf_rn(x[i / 4][i % 4], 0.0f, zero);
  }
  const bool nonfinite = finite_only && zero != 0;
  if (nonfinite) {
#pragma unroll
    for (int i = 0; i < 4 * QUADS; i++)
      if (sparse_magnitude(x[i / 4][i % 4]) >= SPARSE_INFINITY_LEVEL) x[i / 4][i % 4] = -0.0f;
  }
#pragma unroll
  for (int i = 0; i < 4 * QUADS; i++)
    acc[i / 4][i % 4] = __fadd_rn(acc[i / 4][i % 4], x[i / 4][i % 4]);
  return nonfinite;
}

template <typename G, bool MOMENTS>
__global__ void OPS_BOUNDS(THREADS, BLOCKS)
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
  if (threadIdx.x == 0) s.next[1] = ops_chain_draw(p.chain);
  for (int j = (int)threadIdx.x; j < p.nlevels; j += THREADS) {
    s.levels[j] = state->levels[j];
    s.exceeded[j] = 0;
  }
  const sparse_level_t level = state->levels[0], limit = state->limit;
  bool nonfinite = false;
  waiting older = {}, newer = {}; /* tiles whose candidates are in shared memory */
  uint32_t parity = 0;
  __syncthreads();

  for (uint32_t tile = s.next[1]; tile < p.tiles; parity ^= 1) {
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
#pragma unroll
      for (int j = 0; j < QUADS; j++) {
        g[j] = {};
#pragma unroll
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
      for (int i = 0; i < 4 * QUADS; i++) {
        const size_t element = at + i / 4 * 128 + i % 4;
        acc[i / 4][i % 4] = element < m.n ? m.residual[element] : 0;
        valid |= (uint32_t)(element < m.n) << i;
      }
    }
    uint32_t drawn = 0;
    if (threadIdx.x == 0) drawn = ops_chain_draw(p.chain);

    write_staged(p, older, s.staged[parity]); /* while the loads are on their way */
    older = newer;

    if (READS) {
      nonfinite |= add(acc, g, finite_only);
#pragma unroll
      for (int j = 0; j < QUADS; j++)
        if (full)
          __stcs((float4 *)(m.residual + at + j * 128),
                 make_float4(acc[j][0], acc[j][1], acc[j][2], acc[j][3]));
        else
          for (int e = 0; e < 4; e++)
            if (valid >> (4 * j + e) & 1) m.residual[at + j * 128 + e] = acc[j][e];
    }
#pragma unroll
    for (int j = 0; j < QUADS; j++)
      s.values[j][threadIdx.x] = make_float4(acc[j][0], acc[j][1], acc[j][2], acc[j][3]);
    const uint32_t chosen = choose(acc, level, limit) & valid;
    if (MOMENTS) moments_of_warp(acc, &s.moments[parity][warp]);

    /* How many candidates before mine: by row in the bytes of a word, then by warp. */
    uint32_t rows = 0;
#pragma unroll
    for (int j = 0; j < QUADS; j++) rows |= (uint32_t)__popc(chosen >> 4 * j & 15) << 8 * j;
    const uint32_t through = ops_warp_scan(rows);
    const uint32_t whole = __shfl_sync(OPS_ALL_LANES, through, 31);
    /* For each row, 16 bits: what the rows before have, and the threads before in this row. */
    uint64_t before = 0;
    uint32_t in_warp = 0;
#pragma unroll
    for (int j = 0; j < QUADS; j++) {
      before |= (uint64_t)(in_warp + (through - rows >> 8 * j & 255)) << 16 * j;
      in_warp += whole >> 8 * j & 255;
    }
    if (lane == 0) s.counts[parity][warp] = in_warp;
    if (threadIdx.x == 0) s.next[parity] = drawn;
    __syncthreads();
    uint32_t first;
    const uint32_t in_tile = ops_block_sum(s.counts[parity], WARPS, &first);
    if (threadIdx.x == 0) ops_chain_publish(p.chain, tile, in_tile, 0);
    if (MOMENTS && threadIdx.x == 32) {
      double2 sum = make_double2(0, 0);
      for (int w = 0; w < WARPS; w++)
        sum.x += s.moments[parity][w].x, sum.y += s.moments[parity][w].y;
      ops_tile_moments(m)[tile] = sum;
    }
    newer = {tile, in_tile, in_tile <= STAGED};
    uint64_t offset = 0;
    if (!newer.any) { /* too many to wait: their turn is now */
      write_staged(p, older, s.staged[parity ^ 1]);
      older.any = false;
      __syncthreads(); /* `partial` is used again */
      offset = ops_chain_before(p.chain, tile, s.partial);
      ops_chain_advance(p.chain, tile, p.tiles, in_tile, 0);
    }
    /* Few bits are set, so a loop over them is short. */
    for (uint32_t left = chosen; left != 0; left &= left - 1) {
      const uint32_t i = (uint32_t)__ffs((int)left) - 1, j = i / 4;
      const uint32_t in_row = (uint32_t)__popc(chosen & ((1u << i) - (1u << 4 * j)));
      const uint32_t to = first + (uint32_t)(before >> 16 * j & 0xffff) + in_row;
      const sparse_pair candidate = {(uint32_t)(at + j * 128 + i % 4),
                                     ((const float *)&s.values[j][threadIdx.x])[i % 4]};
      if (newer.any)
        s.staged[parity][to] = candidate;
      else
        put(p, offset + to, candidate);
    }
    tile = s.next[parity];
  }
  write_staged(p, older, s.staged[parity]);
  __syncthreads(); /* `partial` is used again */
  write_staged(p, newer, s.staged[parity ^ 1]);
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
  const ncclResult_t settled = ops_settle(m, stream);
  if (settled != ncclSuccess) return settled;
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
