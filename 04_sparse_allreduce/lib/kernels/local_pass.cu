/* SPDX-License-Identifier: Apache-2.0 */
/* The local pass: the gradient is added to the residual, and what is above a threshold is gathered,
 * in order, in one pass over memory (12 bytes per element: two reads and a write).
 *
 * Memory must never wait for the rest. Blocks stay and take tile after tile. With a tile, a block
 *
 *   - asks for the counts of the tiles before the one that it has done two rounds ago, and for the
 *     number of its next tile: first, or the answers would come after those to what follows
 *   - loads its elements, 32 for each thread: the residual into registers, the gradient, for which
 *     there are not enough of them, into shared memory
 *   - meets at the round's only barrier, with all loads on their way, and prefetches its next tile
 *   - writes out the candidates of two rounds ago, whose places are known now
 *   - adds, stores, chooses candidates, and copies them to shared memory, each warp on its own; the
 *     last warp publishes how many the tile has, for the other blocks (device/chain.cuh).
 *
 * Two rounds later all blocks have done so, and none waits. After one round they would: blocks that
 * wait for one another soon fall into step, and memory idles while all of them compute.
 *
 * A candidate that another rank is to add up goes there at the same time as to the own list. The
 * last block writes to them how many there are and, if the threshold was raised, above which level
 * they count; if there are too many, reduce_sent() chooses first.
 *
 * What is done for every element has to be short: two instructions make a bit of it that says
 * whether it is a candidate (the sign of threshold - |x|). A thread has four neighboring elements
 * of each of eight rows; a few shuffles turn the warp's 1024 bits so that a lane has those of 32
 * neighbors, and then one number per lane has to be scanned. */
#include "device/chain.cuh"
#include "device/gradient.cuh"
#include "onesided/flags.cuh"

namespace
{

enum {
  THREADS = 256,
  WARPS = THREADS / 32,
  ROWS = 8,              /* of 128 elements in a warp's part of a tile: 4 of each for a lane */
  ELEMENTS = 128 * ROWS, /* of a warp */
  STAGED = 64,           /* candidates of a warp that wait in shared memory */
};
static_assert(WARPS * ELEMENTS == OPS_DENSE_TILE, "a tile is a block's");

/* The caller has added the gradient to the residual. */
struct no_gradient {
};
template <typename G>
constexpr bool READS = !std::is_same<G, no_gradient>::value; /* a gradient */

/* Blocks per multiprocessor, as many as keep memory busy; with more they fall into step. */
template <typename G>
constexpr int BLOCKS = READS<G> ? 2 : 3;

struct shared {
  union {
    float4 elements[WARPS][ROWS][32];      /* of a lane: of the gradient, then of the sum */
    double2 sums[THREADS];                 /* in the end, of the last block: of tiles, */
    uint32_t begins[SPARSE_MAX_RANKS + 1]; /* or where regions begin in the list */
  };
  sparse_pair staged[2][WARPS][STAGED]; /* here and below: by parity of the round */
  double2 moments[2][WARPS];
  uint32_t counts[2][WARPS]; /* of candidates */
  uint32_t counted[2];       /* their sum, and in the upper half how many warps are in it */
  uint32_t partial[2][WARPS];
  uint32_t next[2]; /* tile */
  uint32_t total;   /* in the end, of the last block: candidates */
  uint32_t pending; /* of the step before, */
  sparse_selection selection;
  int nlevels; /* and of this one */
  sparse_level_t levels[SPARSE_MAX_LEVELS], limit;
  uint32_t exceeding[SPARSE_MAX_LEVELS];    /* candidates above each level but the first */
  uint64_t level_counts[SPARSE_MAX_LEVELS]; /* of all blocks; for the last one */
  uint32_t ends[SPARSE_MAX_RANKS];          /* of regions, to choose an owner by, */
  sparse_pair *list_at[SPARSE_MAX_RANKS];   /* and where the owners expect this rank's list */
  uint2 lists[SPARSE_MAX_RANKS]; /* that this rank had in the step before: begin, count */
};

/* Words: of several bytes in one word each would have a register of its own. */
struct pass_options {
  uint32_t aligned;    /* the gradient, to four elements */
  uint32_t passes;     /* it goes through the cache, and is evicted first */
  uint32_t prefetches; /* tiles */
  uint32_t offers;     /* candidates to the owners of regions */
  enum sparse_removal removal;
  enum sparse_candidates candidates;
};

/* What a block knows during the whole pass. */
struct pass {
  const sparse_memory &m;
  shared &s;
  ops_chain chain;
  uint32_t tiles;
  uint64_t room; /* for candidates */
  bool offers;   /* them to the owners of regions */
  int nlevels;
};

/* The candidates of a warp in a tile, and what other warps of the block have. */
struct candidates {
  bool any; /* else of no tile */
  uint32_t tile;
  uint32_t chosen;         /* bit i: element 32 * lane + i of the warp's */
  uint32_t before, count;  /* in the lanes before this one, in the warp */
  uint32_t first, in_tile; /* in the warps before this one, in the block */
};

/* Counts the lanes' candidates by the levels that they exceed, five levels at a time, 6 bits of a
 * sum over the warp for each. All exceed level 0. */
__device__ inline void count_levels(const pass &p, sparse_level_t magnitude)
{
  const int lane = (int)(threadIdx.x % 32);
  for (int base = 1; base < p.nlevels; base += 5) {
    uint32_t exceeds = 0;
#pragma unroll
    for (int j = 0; j < 5; j++)
      if (base + j < p.nlevels) exceeds |= (uint32_t)(magnitude > p.s.levels[base + j]) << 6 * j;
    const uint32_t sums = ops_warp_sum(exceeds);
    if (sums == 0) return;
    const uint32_t mine = lane < 5 ? sums >> 6 * lane & 63 : 0;
    if (mine > 0) atomicAdd(&p.s.exceeding[base + lane], mine);
  }
}

/* A warp's first element in the vector. */
__device__ inline size_t begin_of(uint32_t tile)
{
  return (size_t)tile * OPS_DENSE_TILE + threadIdx.x / 32 * ELEMENTS;
}

/* The warp's candidates from number `from` on to shared memory, as many as there is room for. */
__device__ inline void stage(const candidates &c, uint32_t from, const float *values,
                             sparse_pair *staged)
{
  const uint32_t mine = threadIdx.x % 32 * 32;
  uint32_t to = c.before - from; /* huge if it is before */
  for (uint32_t left = c.chosen; left != 0; left &= left - 1, to++) {
    const uint32_t i = mine + (uint32_t)__ffs((int)left) - 1;
    if (to < STAGED) staged[to] = {(uint32_t)begin_of(c.tile) + i, values[i]};
  }
  __syncwarp();
}

/* Stores a candidate where its owner expects entry `at` of this rank's list, if it is to. */
__device__ inline void offer(const pass &p, sparse_pair candidate, uint64_t at)
{
  int owner = 0, last = p.m.nranks - 1;
  while (owner < last) { /* the first region that ends after it */
    const int middle = (owner + last) / 2;
    if (candidate.index < p.s.ends[middle])
      last = middle;
    else
      owner = middle + 1;
  }
  if (owner != p.m.rank && at < p.m.capacity)
    *(uint2 *)&p.s.list_at[owner][at] = *(const uint2 *)&candidate;
}

/* The candidates that are staged, and then the others, whose values are in the residual. */
__device__ inline void write_out(const pass &p, const candidates &c, uint64_t first,
                                 sparse_pair *staged)
{
  for (uint32_t from = 0; from < c.count; from += STAGED) {
    if (p.nlevels == 1 && first + from >= p.room) return; /* not needed */
    if (from > 0) stage(c, from, p.m.residual + begin_of(c.tile), staged);
    const uint32_t count = c.count - from < STAGED ? c.count - from : STAGED;
    for (uint32_t begin = 0; begin < count; begin += 32) {
      const uint32_t i = begin + threadIdx.x % 32;
      const sparse_pair candidate = i < count ? staged[i] : sparse_pair{SPARSE_NO_INDEX, 0};
      if (i < count && first + from + i < p.room) {
        *(uint2 *)&p.m.offered[first + from + i] = *(const uint2 *)&candidate;
        if (p.offers) offer(p, candidate, first + from + i);
      }
      count_levels(p, i < count ? sparse_magnitude(candidate.value) : -1);
    }
    __syncwarp();
  }
}

/* Notes where regions begin in the list that begin among the warp's elements; its candidates are
 * number `first` of the list and on. */
__device__ inline void record_regions(const pass &p, const candidates &c, uint32_t first)
{
  const uint32_t lane = threadIdx.x % 32, begin = (uint32_t)begin_of(c.tile);
  for (int base = 1; base < p.m.nranks; base += 32) {
    const int j = base + (int)lane; /* region j begins where the one before it ends */
    const uint32_t at = j < p.m.nranks ? p.s.ends[j - 1] - begin : ELEMENTS;
    uint32_t lanes = __ballot_sync(OPS_ALL_LANES, at < ELEMENTS);
    for (; lanes != 0; lanes &= lanes - 1) {
      const int one = __ffs((int)lanes) - 1;
      const uint32_t element = __shfl_sync(OPS_ALL_LANES, at, one);
      const uint32_t below = c.before + (uint32_t)__popc(c.chosen & ((1u << element % 32) - 1));
      if (lane == element / 32) p.chain.scratch->region_begins[base + one] = first + below;
    }
  }
}

/* Sums of the values and squares of a tile: each thread's in order, then along a tree. */
__device__ inline void moments_of_warp(const float (&acc)[ROWS][4], double2 *to)
{
  double sum = 0, squares = 0;
#pragma unroll
  for (int j = 0; j < ROWS; j++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      sum += (double)acc[j][e];
      squares += (double)acc[j][e] * (double)acc[j][e]; /* the product is exact */
    }
  sum = ops_warp_sum(sum);
  squares = ops_warp_sum(squares);
  if (threadIdx.x % 32 == 0) *to = make_double2(sum, squares);
}

/* What reduce is going to read has been driven out of the cache by the vectors: the state, and the
 * lists, which are about where they were in the step before. (28M elements: 2 us of 170.) */
__device__ inline void prefetch_for_reduce(const pass &p)
{
  const sparse_memory &m = p.m;
  ops_prefetch(m.state, sizeof(*m.state));
  ops_prefetch(p.chain.scratch, sizeof(*p.chain.scratch));
  for (int q = 0; q < m.nranks; q++) {
    const uint2 list = p.s.lists[q];
    if (list.x > m.capacity || list.y > m.capacity - list.x) continue; /* of two steps */
    ops_prefetch(m.received + sparse_list_place(&m, m.rank, q) + list.x,
                 list.y * sizeof(sparse_pair));
  }
}

/* Those of the last block's threads that signal other ranks: not the first warp, which collects
 * numbers, and not the last one, which decides. */
constexpr uint32_t SIGNALLERS = THREADS - 64;

/* The owners of regions have got the candidates: signals where, and what to leave out. By the
 * signallers, of which this is number `me`; they have been through ops_fence_system() since the
 * last block was known to be the last. `peer` is the first one that it signals; `begins` is shared
 * memory: of all regions, at most the number of entries. */
__device__ inline void signal_owners(const sparse_memory &m, uint32_t me, ops_peer peer,
                                     uint32_t offered, sparse_level_t level, uint32_t *begins)
{
  for (uint32_t j = me; j <= (uint32_t)m.nranks; j += SIGNALLERS)
    if (begins[j] > offered) begins[j] = offered;
  asm volatile("bar.sync 1, %0;" ::"n"(SIGNALLERS) : "memory");
  for (int j = (int)me; j < m.nranks; j += SIGNALLERS) {
    if (j != (int)me) peer = ops_peer_of(m, j);
    if (j != m.rank)
      ops_count_stored(m, peer, begins[j + 1] - begins[j]);
    else
      ops_fence(); /* for the own reduce(), what this kernel has done */
    ops_signal_owner(m, peer, begins, j, level);
  }
  ops_note_regions(m, begins, me, SIGNALLERS); /* no rank waits for that */
}

/* Not inlined, as ops_decide(). */
__device__ __noinline__ void choose_by_threshold(const sparse_memory &m, int raised)
{
  sparse_threshold_choose(&m, raised, SPARSE_SENT_BY_PASS);
}

/* The candidates, and what leaves the residual next. */
__device__ inline void note_total(pass &p, enum sparse_removal removal)
{
  const sparse_memory &m = p.m;
  const size_t words = ops_words(m.n, m.nranks, m.capacity);
  const uint32_t total = (uint32_t)ops_chain_end(p.chain, p.tiles, words);
  p.s.total = total;
  m.state->offered_count = total < p.room ? total : p.room;
  m.state->level_counts[0] = p.s.level_counts[0] = total;
  m.state->pending = removal;
}

__device__ inline void note_level(const pass &p, int level)
{
  uint32_t *all = &p.chain.scratch->levels[level];
  p.m.state->level_counts[level] = p.s.level_counts[level] = __ldcg(all);
  *all = 0;
}

__device__ inline void note_nonfinite(const pass &p)
{
  const uint32_t nonfinite = __ldcg(&p.chain.scratch->nonfinite);
  if (nonfinite) p.m.state->nonfinite = 0u - nonfinite;
  p.chain.scratch->nonfinite = 0;
}

/* Mean and deviation from the sums of tiles, by all threads. */
__device__ inline void note_moments(const pass &p)
{
  const double2 *tiles = ops_tile_moments(p.m);
  double2 *sums = p.s.sums, sum = make_double2(0, 0);
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
  if (threadIdx.x != 0) return;
  const double n = (double)p.m.n;
  double squares = sums[0].y - sums[0].x * sums[0].x / n;
  if (squares < 0) squares = 0; /* by rounding only */
  p.m.state->mean = sums[0].x / n;
  p.m.state->deviation = sqrt(squares / (n - 1));
}

/* The last block: what the pass has found, from the scratch memory to the state. All wait for it,
 * so different threads do different things at the same time. */
template <bool MOMENTS>
__device__ void finish(pass &p, enum sparse_removal removal)
{
  const sparse_memory &m = p.m;
  const uint32_t signaller = threadIdx.x - 32; /* if it is less than SIGNALLERS */
  ops_peer peer = {};
  if (threadIdx.x == 0) {
    note_total(p, removal);
  } else if ((int)threadIdx.x < p.nlevels) {
    note_level(p, (int)threadIdx.x);
  } else if (threadIdx.x == THREADS - 1) {
    note_nonfinite(p);
  } else if (p.offers && signaller < SIGNALLERS && (int)signaller < m.nranks) {
    peer = ops_peer_of(m, (int)signaller);
    ops_fence_system(); /* the entries: takes as long as the rest of this */
  }
  for (int j = (int)threadIdx.x; p.offers && j <= m.nranks; j += THREADS)
    p.s.begins[j] = j == 0                  ? 0
                    : p.s.ends[j - 1] < m.n ? __ldcg(&p.chain.scratch->region_begins[j])
                                            : UINT32_MAX;
  if (MOMENTS) note_moments(p);
  __syncthreads();
  if (!p.offers) return;
  const int raised = sparse_raised(&m, p.nlevels, p.s.level_counts);
  if (threadIdx.x == THREADS - 1) choose_by_threshold(m, raised);
  if (p.s.total > sparse_most(&m, p.s.levels[0])) { /* the whole grid of reduce() has to choose */
    if (threadIdx.x == 0)
      ops_write_flag(m, ops_peer_of(m, m.rank), &m.flags->lists[m.rank][SPARSE_FLAG_COUNT],
                     SPARSE_TOO_MANY);
    return;
  }
  if (signaller < SIGNALLERS)
    signal_owners(m, signaller, peer, p.s.total, raised > 0 ? p.s.levels[raised] : OPS_ALL_LEVELS,
                  p.s.begins);
}

/* Which of a thread's elements exceed the level, but not the limit: bit 4 * row + e. */
__device__ inline uint32_t choose(const float (&acc)[ROWS][4], sparse_level_t level,
                                  sparse_level_t limit)
{
  uint32_t chosen = 0;
  if (limit == SPARSE_INFINITY_LEVEL) { /* as floats; NaN comes out positive */
    const float threshold = level < 0 ? -1.0f : sparse_from_magnitude(level);
#pragma unroll
    for (int i = 4 * ROWS - 1; i >= 0; i--)
      chosen = __funnelshift_l(__float_as_uint(__fsub_rn(threshold, fabsf(acc[i / 4][i % 4]))),
                               chosen, 1);
  } else {
#pragma unroll
    for (int i = 4 * ROWS - 1; i >= 0; i--) {
      const sparse_level_t magnitude = sparse_magnitude(acc[i / 4][i % 4]);
      chosen = __funnelshift_l((uint32_t)((level - magnitude) & ~(limit - magnitude)), chosen, 1);
    }
  }
  return chosen;
}

/* From 4 bits of each row to those of the warp's elements 32 * lane, 32 * lane + 1, ...: groups of
 * 8 lanes transpose their 8 x 8 groups of 4 bits, and lane 8 * g + row has quarter g of a row. */
__device__ inline uint32_t neighbors(uint32_t chosen)
{
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (uint32_t step = 4; step > 0; step /= 2) {
    const uint32_t low = step == 4 ? 0x0000ffffu : step == 2 ? 0x00ff00ffu : 0x0f0f0f0fu;
    const uint32_t stays = lane & step ? ~low : low, by = lane & step ? 32 - 4 * step : 4 * step;
    const uint32_t other = __shfl_xor_sync(OPS_ALL_LANES, chosen, step);
    chosen = (chosen & stays) | (__funnelshift_l(other, other, by) & ~stays);
  }
  return __shfl_sync(OPS_ALL_LANES, chosen, lane % 4 * 8 + lane / 4);
}

/* ---- what is pending ------------------------------------------------------------------------- */

/* Which of the warp's elements 32 * lane, 32 * lane + 1, ... may leave the residual. */
__device__ inline uint32_t load_listed(const pass &p, uint32_t tile)
{
  if (p.s.pending != SPARSE_REMOVE_IN_RESULT) return 0xffffffffu;
  return ops_result_bits(p.m)[(size_t)tile * (OPS_DENSE_TILE / 32) + threadIdx.x];
}

/* The same of a thread's own elements: bit 4 * row + e. */
__device__ inline uint32_t listed_of_thread(uint32_t listed)
{
  const uint32_t lane = threadIdx.x % 32;
  uint32_t mine = 0;
#pragma unroll
  for (int j = ROWS - 1; j >= 0; j--) {
    const uint32_t word = __shfl_sync(OPS_ALL_LANES, listed, (int)(4 * j + lane / 8));
    mine = mine << 4 | (word >> lane % 8 * 4 & 15);
  }
  return mine;
}

/* A thread's elements that are pending become zero. WRITES: in the residual, too. Of those that
 * equal the threshold some tiles have all, others none, and one has those up to an index. */
template <bool WRITES>
__device__ inline void clear_pending(const pass &p, uint32_t listed, uint32_t tile, size_t at,
                                     float (&acc)[ROWS][4])
{
  if (p.s.pending == SPARSE_REMOVE_NOTHING) return;
  const sparse_selection &old = p.s.selection;
  const int64_t first = (int64_t)tile * OPS_DENSE_TILE;
  const uint32_t mine = listed_of_thread(listed);
  uint32_t leaves = 0;
  if (old.tie < first || old.tie >= first + OPS_DENSE_TILE - 1) {
    leaves = mine & choose(acc, old.above - (old.tie >= first), old.limit);
  } else {
#pragma unroll
    for (int i = 0; i < 4 * ROWS; i++)
      leaves |= (uint32_t)sparse_chosen(&old, sparse_magnitude(acc[i / 4][i % 4]),
                                        (uint32_t)at + i / 4 * 128 + i % 4)
                << i;
    leaves &= mine;
  }
#pragma unroll
  for (int i = 0; i < 4 * ROWS; i++)
    if (leaves >> i & 1) acc[i / 4][i % 4] = 0;
  for (; WRITES && leaves != 0; leaves &= leaves - 1) {
    const uint32_t i = (uint32_t)__ffs((int)leaves) - 1;
    if (at + i / 4 * 128 + i % 4 < p.m.n) p.m.residual[at + i / 4 * 128 + i % 4] = 0;
  }
}

/* By one block: the levels, and sparse_begin(), in the state. (As a decision that took 15 us, since
 * its code is in no cache and memory is busy.) This is not read before the end of the pass: the
 * levels of a block are its own. */
__device__ inline void write_begin(const pass &p, uint32_t epoch)
{
  sparse_state *state = p.m.state;
  for (int j = (int)threadIdx.x; j < p.nlevels; j += THREADS) state->levels[j] = p.s.levels[j];
  if (threadIdx.x != 0) return;
  state->nlevels = p.nlevels;
  state->limit = p.s.limit;
  sparse_begin(state, epoch);
}

/* ---- the pass -------------------------------------------------------------------------------- */

/* Adds the gradient. Whether all of it is finite takes one instruction per element to know: 0 times
 * anything else is NaN. Those elements become -0, which changes no number that it is added to, and
 * the first of them is noted. `at` is the thread's first element. */
template <typename G>
__device__ inline void add(float (&acc)[ROWS][4], const quad<G> *g, size_t at, uint32_t *noted)
{
  float x[ROWS][4], zero = 0;
#pragma unroll
  for (int j = 0; j < ROWS; j++) {
    const quad<G> four = g[j * 32];
#pragma unroll
    for (int e = 0; e < 4; e++) {
      x[j][e] = value(four, e);
      zero = __fmaf_rn(x[j][e], 0.0f, zero);
    }
  }
  if (zero != 0) {
    uint32_t first = 0;
#pragma unroll
    for (int i = 4 * ROWS - 1; i >= 0; i--)
      if (sparse_magnitude(x[i / 4][i % 4]) >= SPARSE_INFINITY_LEVEL) {
        x[i / 4][i % 4] = -0.0f;
        first = i / 4 * 128 + i % 4;
      }
    atomicMax(noted, ~((uint32_t)at + first));
  }
#pragma unroll
  for (int i = 0; i < 4 * ROWS; i++)
    acc[i / 4][i % 4] = __fadd_rn(acc[i / 4][i % 4], x[i / 4][i % 4]);
}

/* A thread's elements, 4 of each row: the residual to registers, the gradient to shared memory.
 * None of both is there yet when this returns. Elements after the end of the vector are 0. */
template <typename G>
__device__ inline void load_elements(const sparse_memory &m, const G *gradient,
                                     const pass_options &options, size_t at, bool full,
                                     float (&acc)[ROWS][4], quad<G> *to)
{
  if (full && (options.aligned || !READS<G>)) {
    if constexpr (READS<G>) {
      if (options.passes)
#pragma unroll
        for (int j = 0; j < ROWS; j++) load_async<true>(to + j * 32, gradient + at + j * 128);
      else
#pragma unroll
        for (int j = 0; j < ROWS; j++) load_async<false>(to + j * 32, gradient + at + j * 128);
    }
#pragma unroll
    for (int j = 0; j < ROWS; j++) {
      const float4 r = __ldcg((const float4 *)(m.residual + at + j * 128));
      acc[j][0] = r.x, acc[j][1] = r.y, acc[j][2] = r.z, acc[j][3] = r.w;
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < ROWS; j++) {
    quad<G> g = {};
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const size_t i = at + j * 128 + e;
      acc[j][e] = i < m.n ? m.residual[i] : 0;
      if constexpr (READS<G>)
        if (i < m.n) set(g, e, gradient[i]);
    }
    if (READS<G>) to[j * 32] = g;
  }
}

/* Brings a tile to the L2 cache, 32 elements for each thread of the block. So the next tile is on
 * its way while registers and shared memory still hold this one. (28M elements: 1.1 us of 94.) */
template <typename G>
__device__ inline void prefetch(const sparse_memory &m, const G *gradient, uint32_t tile)
{
  static_assert(THREADS * 32 == OPS_DENSE_TILE, "a line of 128 bytes is 32 floats");
  const size_t at = (size_t)tile * OPS_DENSE_TILE + threadIdx.x * 32;
  if (at >= m.n) return;
  asm volatile("prefetch.global.L2 [%0];" ::"l"(m.residual + at));
  if (READS<G>) asm volatile("prefetch.global.L2 [%0];" ::"l"(gradient + at));
}

template <typename G, bool MOMENTS>
__global__ void OPS_BOUNDS(THREADS, BLOCKS<G>)
    local_pass(const __grid_constant__ sparse_memory m, const G *gradient,
               const __grid_constant__ pass_options options)
{
  ops_begin();
  __shared__ shared s;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const sparse_state *state = m.state;
  const ops_chain chain = ops_chain_begin(m);
  uint32_t drawn = 0, epoch = 0;
  if (threadIdx.x == 0) {
    s.next[1] = drawn = ops_chain_draw(chain);
    epoch = state->progress.epoch;
    s.pending = state->pending;
    s.selection = state->selection;
    s.nlevels = sparse_first_levels(&m, options.candidates, s.levels, &s.limit);
  }
  if (threadIdx.x < 2) s.counted[threadIdx.x] = 0;
  for (int j = (int)threadIdx.x; j < SPARSE_MAX_LEVELS; j += THREADS) s.exceeding[j] = 0;
  if (options.offers)
    for (int j = (int)threadIdx.x; j < m.nranks; j += THREADS) {
      s.ends[j] = (uint32_t)state->kept.boundaries[j + 1];
      s.list_at[j] = state->fixed.list_at[j];
      s.lists[j] = make_uint2((uint32_t)m.flags->lists[j][SPARSE_FLAG_FIRST],
                              (uint32_t)m.flags->lists[j][SPARSE_FLAG_COUNT]);
    }
  __syncthreads();
  const bool offering = options.offers && !ops_late(m);
  const uint32_t tiles = (uint32_t)ops_dense_tiles(m.n);
  pass p = {m, s, chain, tiles, m.room, offering, s.nlevels};
  if (blockIdx.x == gridDim.x - 1) write_begin(p, epoch + 1);
  const sparse_level_t level = s.levels[0], limit = s.limit;
  volatile uint32_t after_stores = 0;
  candidates older = {}, newer = {}; /* of two rounds ago and of the last one */

  uint32_t tile = s.next[1];
  for (uint32_t parity = 0; tile < p.tiles || older.any || newer.any; parity ^= 1) {
    const bool work = tile < p.tiles; /* else this round is for the candidates of earlier ones */
    const bool full = ((size_t)tile + 1) * OPS_DENSE_TILE <= m.n;
    const size_t at = begin_of(tile) + lane * 4;
    float acc[ROWS][4];
    quad<G> *g = (quad<G> *)s.elements[warp] + lane;
    if (threadIdx.x == 0 && work) drawn = ops_chain_draw(p.chain); /* else there is none left */
    const ops_chain_asked asked = ops_chain_ask(p.chain, older.any ? older.tile : 0);
    const uint32_t listed = work ? load_listed(p, tile) : 0;
    if (work) load_elements(m, gradient, options, at, full, acc, g);

    const uint32_t sum =
        ops_warp_sum(ops_chain_sum<uint32_t>(p.chain, older.any ? older.tile : 0, asked));
    if (lane == 0) s.partial[parity][warp] = sum;
    if (threadIdx.x == 0) s.next[parity] = drawn;
    __syncthreads();
    if (options.prefetches && s.next[parity] < p.tiles) prefetch(m, gradient, s.next[parity]);
    if (newer.any) {
      newer.in_tile = ops_block_sum(s.counts[parity ^ 1], WARPS, &newer.first);
      if (MOMENTS && threadIdx.x == 32) {
        double2 moments = make_double2(0, 0);
        for (int w = 0; w < WARPS; w++) {
          moments.x += s.moments[parity ^ 1][w].x;
          moments.y += s.moments[parity ^ 1][w].y;
        }
        ops_tile_moments(m)[newer.tile] = moments;
      }
    }
    if (older.any) {
      const uint64_t before = ops_chain_sum(p.chain, older.tile, s.partial[parity]);
      write_out(p, older, before + older.first, s.staged[parity][warp]);
      if (p.offers) record_regions(p, older, (uint32_t)before + older.first);
      ops_chain_advance(p.chain, older.tile, p.tiles, older.in_tile, 0);
    }
    if (threadIdx.x == 0) s.counted[parity ^ 1] = 0;
    older = newer;
    newer.any = false;

    if (work) {
      uint32_t valid = 0xffffffffu;
      if (!full) {
        valid = 0;
        for (uint32_t i = 0; i < 4 * ROWS; i++)
          valid |= (uint32_t)(at + i / 4 * 128 + i % 4 < m.n) << i;
      }
      clear_pending<!READS<G>>(p, listed, tile, at, acc);
      if constexpr (READS<G>) {
        ops_await_copies();
        add(acc, g, at, &p.chain.scratch->nonfinite);
#pragma unroll
        for (int j = 0; j < ROWS; j++)
          if (full)
            __stcs((float4 *)(m.residual + at + j * 128),
                   make_float4(acc[j][0], acc[j][1], acc[j][2], acc[j][3]));
          else
            for (int e = 0; e < 4; e++)
              if (valid >> (4 * j + e) & 1) m.residual[at + j * 128 + e] = acc[j][e];
      }
      __syncwarp(); /* 16-bit elements of other lanes are in the way */
#pragma unroll
      for (int j = 0; j < ROWS; j++)
        s.elements[warp][j][lane] = make_float4(acc[j][0], acc[j][1], acc[j][2], acc[j][3]);
      if (MOMENTS) moments_of_warp(acc, &s.moments[parity][warp]);
      const uint32_t chosen = neighbors(choose(acc, level, limit) & valid);
      const uint32_t mine = (uint32_t)__popc(chosen), through = ops_warp_scan(mine);
      const uint32_t count = __shfl_sync(OPS_ALL_LANES, through, 31);
      if (lane == 0) {
        s.counts[parity][warp] = count;
        const uint32_t counted =
            atomicAdd(&s.counted[parity], 1u << 16 | count) + (1u << 16 | count);
        if (counted >> 16 == WARPS) ops_chain_publish(p.chain, tile, counted & 0xffff, 0);
      }
      newer = {true, tile, chosen, through - mine, count, 0, 0};
      __syncwarp();
      stage(newer, 0, (const float *)s.elements[warp], s.staged[parity][warp]);
    }
    /* This load waits in one queue with the stores, and the loads of the next round for it. If
     * loads overtake stores, memory changes its direction more often: 6 % of the time of 133M
     * elements. */
    tile = s.next[parity] + after_stores;
  }
  if (p.offers) prefetch_for_reduce(p);
  __syncthreads();
  for (int j = (int)threadIdx.x; j < p.nlevels; j += THREADS)
    if (s.exceeding[j] > 0) atomicAdd(&p.chain.scratch->levels[j], s.exceeding[j]);
  const bool last = ops_last_block(p.chain.scratch, p.offers);
  ops_let_next_begin();
  if (last) finish<MOMENTS>(p, options.removal);
}

ncclResult_t launch(const sparse_memory *m, const void *gradient, bool offers,
                    enum sparse_candidates candidates, enum sparse_removal removal,
                    cudaStream_t stream)
{
  const auto launch_of = [=](auto *of_type) {
    using G = std::remove_const_t<std::remove_pointer_t<decltype(of_type)>>;
    const size_t cache = (size_t)ops_device_attribute(cudaDevAttrL2CacheSize, 0);
    const size_t element = sizeof(float) + sizeof(G);
    const unsigned grid = ops_blocks(m->n, OPS_DENSE_TILE, BLOCKS<G>);
    pass_options options = {false, false, false, offers, removal, candidates};
    options.aligned = (uintptr_t)of_type % (4 * sizeof(G)) == 0;
    /* Should the gradient leave its place in the cache to lists and code, which the kernels after
     * it need? They take 3 us less then. But of vectors that are much larger than the cache nothing
     * is left there anyway, and to evict in any other order than that of the accesses costs time
     * (H200: 5M elements -4 %, 15M -2.5 %, 20M -0.8 %, 28M +1 %, 134M +6 %). */
    options.passes = m->n * element < 3 * cache;
    /* Should blocks prefetch? Not a gradient that is to be evicted first: it would stay. Nor tiles
     * that a small cache would evict before they are used. */
    options.prefetches = !options.passes && grid * OPS_DENSE_TILE * element <= cache / 2;
    return ops_launch(candidates == SPARSE_GAUSSIAN_GUESS ? local_pass<G, true>
                                                          : local_pass<G, false>,
                      grid, THREADS, OPS_FIRST, stream, *m, of_type, options);
  };
  if (gradient == NULL) return launch_of((const no_gradient *)NULL);
  return ops_with_type(m->config.gradient_type, gradient, launch_of);
}

} // namespace

extern "C" {

ncclResult_t ops_local_pass(const struct sparse_memory *m, const void *gradient,
                            enum sparse_candidates candidates, enum sparse_removal removal,
                            cudaStream_t stream)
{
  return launch(m, gradient, false, candidates, removal, stream);
}

} // extern "C"

ncclResult_t ops_pass_and_send(const sparse_memory *m, const void *gradient, cudaStream_t stream)
{
  return launch(m, gradient, true, SPARSE_ABOVE_THRESHOLDS, SPARSE_REMOVE_IN_RESULT, stream);
}

static const ops_load_kernels load(local_pass<float, false>, local_pass<float, true>,
                                   local_pass<__half, false>, local_pass<__half, true>,
                                   local_pass<__nv_bfloat16, false>,
                                   local_pass<__nv_bfloat16, true>, local_pass<no_gradient, false>,
                                   local_pass<no_gradient, true>);
