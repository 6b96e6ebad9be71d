/* SPDX-License-Identifier: Apache-2.0 */
/* The result: fetching its entries, writing them into the dense vector, and taking them out of the
 * residual and of the next step's result. */
#include "ops_entries.cuh"
#include "ops_notes.cuh"

namespace
{

enum { APPLY_BLOCKS = 5 /* per multiprocessor */ };

/* The sums of all ranks, still in their memory, as one list. */
struct sums {
  ops_lists lists;
  uint64_t displs[SPARSE_MAX_RANKS + 1];
};

/* If they do not come, there are none. */
__device__ inline void await_sums(const sparse_memory &m, sums &s)
{
  const bool there = ops_await_sums(m, s.lists);
  if (threadIdx.x == 0) {
    s.displs[0] = 0;
    for (int p = 0; p < m.nranks; p++)
      s.displs[p + 1] = s.displs[p] + (there ? s.lists.counts[p] : 0);
  }
  __syncthreads();
}

__device__ inline uint2 entry_of(const sparse_memory &m, const sums &s, uint64_t i)
{
  int p = 0;
  if (i >= s.displs[m.nranks]) return make_uint2(SPARSE_NO_INDEX, 0);
  while (i >= s.displs[p + 1]) p++;
  return *(const uint2 *)&s.lists.pairs[p][i - s.displs[p]];
}

/* By the first block. No other one reads that, so it need not wait for them. */
__device__ inline void note_counts(const sparse_memory &m, const sums &s)
{
  for (int p = (int)threadIdx.x; p < m.nranks; p += THREADS) {
    m.state->gathered_counts[p] = s.displs[p + 1] - s.displs[p];
    m.state->gathered_displs[p] = s.displs[p];
  }
  __syncthreads();
}

__global__ void OPS_BOUNDS(THREADS, BLOCKS) fetch(const __grid_constant__ sparse_memory m)
{
  ops_begin();
  __shared__ sums s;
  await_sums(m, s);
  const uint64_t threads = (uint64_t)gridDim.x * THREADS;
  for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < s.displs[m.nranks];
       i += threads)
    *(uint2 *)&m.gathered[i] = entry_of(m, s, i);
  if (blockIdx.x == 0) note_counts(m, s);
}

/* Random access takes as long as memory needs to open a row for each sector of 32 bytes. A store of
 * less than a sector opens it twice, because the rest of the sector has to be read first. What else
 * is in a sector of the dense result is zero; so undo and apply store whole sectors, two lanes of a
 * warp half of each. The stores pass through the cache (.cs): nobody reads this soon. */
enum { SECTOR = 32 / sizeof(float), HALF = SECTOR / 2 };

struct alignas(16) half_sector {
  float x[HALF];
};

__device__ inline void store_half(float *vector, uint64_t n, uint64_t at, half_sector half)
{
  if (at + HALF <= n) {
    __stcs((float4 *)(vector + at), *(const float4 *)half.x);
  } else {
#pragma unroll
    for (uint32_t c = 0; c < HALF; c++)
      if (at + c < n) vector[at + c] = half.x[c];
  }
}

/* Stores the values of a warp's entries, one of each lane, ascending. Sectors whose entries may go
 * on in another warp (those at both ends, and beside lanes without an entry) by element. */
__device__ inline void store_entries(float *dense, uint64_t n, uint32_t index, float value)
{
  const uint32_t lane = threadIdx.x % 32, through = (2u << lane) - 1; /* lanes up to this */
  const uint32_t left = __shfl_up_sync(OPS_ALL_LANES, index, 1);
  const bool valid = index != SPARSE_NO_INDEX;
  const uint32_t valids = __ballot_sync(OPS_ALL_LANES, valid);
  const uint32_t starts = __ballot_sync(OPS_ALL_LANES, lane == 0 || left == SPARSE_NO_INDEX ||
                                                           left / SECTOR != index / SECTOR);
  const uint32_t start = 31 - (uint32_t)__clz((int)(starts & through)); /* of this sector's lanes */
  const uint32_t end =
      (starts & ~through) != 0 ? (uint32_t)__ffs((int)(starts & ~through)) - 1 : 32;
  const bool whole =
      valid && start > 0 && end < 32 && (valids >> (start - 1) & 1) && (valids >> end & 1);
  const uint32_t wholes = __ballot_sync(OPS_ALL_LANES, whole && start == lane);
  if (valid && !whole) dense[index] = value;
#pragma unroll
  for (uint32_t r = 0; r < 2; r++) {
    const uint32_t from = r * 16 + lane / 2; /* lane of the sector's first entry */
    const uint32_t first = __shfl_sync(OPS_ALL_LANES, index, (int)from);
    const uint32_t last = __shfl_sync(OPS_ALL_LANES, end, (int)from);
    const uint32_t at = first / SECTOR * SECTOR + lane % 2 * HALF;
    const bool mine = wholes >> from & 1;
    half_sector half = {};
    for (uint32_t k = from; __any_sync(OPS_ALL_LANES, mine && k < last); k++) {
      const uint32_t i = __shfl_sync(OPS_ALL_LANES, index, (int)k);
      const float x = __shfl_sync(OPS_ALL_LANES, value, (int)k);
#pragma unroll
      for (uint32_t c = 0; c < HALF; c++)
        if (k < last && i == at + c) half.x[c] = x;
    }
    if (mine) store_half(dense, n, at, half);
  }
}

/* begins[from] to begins[to - 1] become `at`, for all lanes that have some. By whole warps. */
__device__ inline void fill_begins(uint32_t *begins, uint32_t from, uint32_t to, uint32_t at)
{
  const uint32_t lane = threadIdx.x % 32;
  uint32_t lanes = __ballot_sync(OPS_ALL_LANES, from < to);
  for (; lanes != 0; lanes &= lanes - 1) {
    const int of = __ffs((int)lanes) - 1;
    const uint32_t first = __shfl_sync(OPS_ALL_LANES, from, of);
    const uint32_t last = __shfl_sync(OPS_ALL_LANES, to, of);
    const uint32_t what = __shfl_sync(OPS_ALL_LANES, at, of);
    for (uint32_t t = first + lane; t < last; t += 32) begins[t] = what;
  }
}

/* Where in the list the entries of each dense tile begin, for the next step's local pass. Entry i
 * of `count` has this index, the one before it has `left`. Such a list has entries only. */
__device__ inline void note_begins(const sparse_memory &m, uint64_t i, uint64_t count,
                                   uint32_t index, uint32_t left)
{
  const uint32_t tiles = (uint32_t)ops_dense_tiles(m.n);
  const uint32_t tile = i < count ? index / OPS_DENSE_TILE : 0;
  const uint32_t from = i == 0 ? 0 : left / OPS_DENSE_TILE + 1;
  uint32_t *begins = ops_tile_begins(m);
  fill_begins(begins, from, i < count ? tile + 1 : from, (uint32_t)i);
  if (i - threadIdx.x % 32 + 32 >= count)
    fill_begins(begins, i + 1 == count ? tile + 1 : tiles + 1, tiles + 1, (uint32_t)count);
}

/* A warp takes up to AHEAD x 32 neighbouring entries at a time, and the one before them. */
template <bool DIRECT>
__global__ void OPS_BOUNDS(THREADS, APPLY_BLOCKS)
    apply(const __grid_constant__ sparse_memory m, const __grid_constant__ sparse_list list,
          enum sparse_control then)
{
  ops_begin(); /* the next kernel may be anybody's */
  __shared__ sums s;
  if (DIRECT) await_sums(m, s);
  const float nranks = (float)m.nranks;
  const uint64_t count = DIRECT ? s.displs[m.nranks] : ops_list_count(list);
  const uint64_t warps = (uint64_t)gridDim.x * (THREADS / 32), lane = threadIdx.x % 32;
  const uint64_t warp = ((uint64_t)blockIdx.x * THREADS + threadIdx.x) / 32;
  const uint64_t share = (count + warps * 32 - 1) / (warps * 32),
                 rows = share < AHEAD ? share : AHEAD;
  auto load = [&](uint64_t i) {
    return DIRECT ? entry_of(m, s, i) : entry_at(list.pairs, i, count);
  };
  for (uint64_t first = warp * rows * 32; first < count; first += warps * rows * 32) {
    uint2 entry[AHEAD];
    uint32_t left = lane == 0 && first > 0 ? load(first - 1).x : SPARSE_NO_INDEX;
#pragma unroll
    for (int a = 0; a < AHEAD; a++)
      if (a < rows) entry[a] = load(first + a * 32 + lane);
#pragma unroll
    for (int a = 0; a < AHEAD; a++) {
      const uint64_t i = first + a * 32 + lane;
      if (a >= rows) break;
      if (DIRECT && i < count) *(uint2 *)&m.gathered[i] = entry[a];
      store_entries(m.dense, m.n, entry[a].x, __fdiv_rn(__uint_as_float(entry[a].y), nranks));
      if (!m.direct) continue;
      const uint32_t above = __shfl_up_sync(OPS_ALL_LANES, entry[a].x, 1);
      note_begins(m, i, count, entry[a].x, lane == 0 ? left : above);
      left = __shfl_sync(OPS_ALL_LANES, entry[a].x, 31);
    }
  }
  if (m.direct && count == 0 && warp == 0)
    fill_begins(ops_tile_begins(m), 0, lane == 0 ? (uint32_t)ops_dense_tiles(m.n) + 1 : 0, 0);
  if (blockIdx.x > 0) return;
  if (DIRECT) note_counts(m, s);
  if (threadIdx.x == 0) ops_decide(then, &m); /* of counts: no other block is needed for that */
}

__global__ void OPS_BOUNDS(THREADS, BLOCKS) undo(const __grid_constant__ sparse_memory m)
{
  const uint64_t count = m.state->result_count;
  const uint64_t pairs_of_threads = (uint64_t)gridDim.x * THREADS / 2;
  uint64_t i = ((uint64_t)blockIdx.x * THREADS + threadIdx.x) / 2;
  for (; i < count; i += pairs_of_threads * AHEAD) {
    uint32_t index[AHEAD];
#pragma unroll
    for (int a = 0; a < AHEAD; a++)
      index[a] = entry_at(m.gathered, i + a * pairs_of_threads, count).x;
#pragma unroll
    for (int a = 0; a < AHEAD; a++)
      if (index[a] != SPARSE_NO_INDEX)
        store_half(m.dense, m.n, index[a] / SECTOR * SECTOR + threadIdx.x % 2 * HALF, {});
  }
}

__global__ void OPS_BOUNDS(THREADS, BLOCKS) settle(const __grid_constant__ sparse_memory m)
{
  ops_begin();
  const sparse_state *state = m.state;
  const uint64_t threads = (uint64_t)gridDim.x * THREADS;
  const uint64_t me = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
  if (state->pending == SPARSE_PENDING_ALL)
    for (uint64_t i = me; i < m.n; i += threads)
      sparse_settle_element(state, m.residual, (uint32_t)i);
  else if (state->pending == SPARSE_PENDING_RESULT)
    for_each_entry(m.gathered, state->result_count, [&](sparse_pair entry) {
      if (entry.index < m.n) /* who has given up may not have fetched all */
        sparse_settle_element(state, m.residual, entry.index);
    });
  if (!ops_last_block((ops_scratch *)m.scratch)) return;
  if (threadIdx.x == 0) m.state->pending = SPARSE_PENDING_NOTHING;
}

__global__ void OPS_BOUNDS(THREADS, BLOCKS) clear_offered(const __grid_constant__ sparse_memory m)
{
  ops_begin();
  for_each_entry(m.offered, m.state->offered_count,
                 [&](sparse_pair entry) { m.residual[entry.index] = 0; });
  if (blockIdx.x == 0 && threadIdx.x == 0) m.state->pending = SPARSE_PENDING_NOTHING;
}

__global__ void OPS_BOUNDS(THREADS, BLOCKS)
    give_back(const __grid_constant__ sparse_memory m, const __grid_constant__ sparse_list list,
              const __grid_constant__ sparse_list among)
{
  ops_begin();
  const uint64_t count = ops_list_count(among);
  for_each_entry(list.pairs, ops_list_count(list), [&](sparse_pair entry) {
    const uint64_t at = ops_binary_search(among.pairs, count, entry.index);
    if (at < count && among.pairs[at].index == entry.index)
      m.residual[entry.index] = __fadd_rn(m.residual[entry.index], entry.value);
  });
}

} // namespace

extern "C" {

ncclResult_t ops_fetch(const struct sparse_memory *m, cudaStream_t stream)
{
  return ops_launch(fetch, list_blocks(m), THREADS, OPS_NEXT, stream, *m);
}

ncclResult_t ops_apply(const struct sparse_memory *m, struct sparse_list list,
                       enum sparse_control then, cudaStream_t stream)
{
  return ops_launch(list.pairs == NULL ? apply<true> : apply<false>, list_blocks(m, APPLY_BLOCKS),
                    THREADS, OPS_NEXT, stream, *m, list, then);
}

ncclResult_t ops_undo(const struct sparse_memory *m, cudaStream_t stream)
{
  /* One block on each multiprocessor leaves room, and memory, to the exchange that it runs beside.
   */
  return ops_launch(undo, list_blocks(m, 1), THREADS, OPS_FIRST, stream, *m);
}

ncclResult_t ops_settle(const struct sparse_memory *m, cudaStream_t stream)
{
  return ops_launch(settle, list_blocks(m), THREADS, OPS_NEXT, stream, *m);
}

ncclResult_t ops_clear_offered(const struct sparse_memory *m, cudaStream_t stream)
{
  return ops_launch(clear_offered, list_blocks(m), THREADS, OPS_NEXT, stream, *m);
}

ncclResult_t ops_return(const struct sparse_memory *m, struct sparse_list list,
                        struct sparse_list among, cudaStream_t stream)
{
  return ops_launch(give_back, list_blocks(m), THREADS, OPS_NEXT, stream, *m, list, among);
}

} // extern "C"

ncclResult_t ops_load_result(void)
{
  return ops_load_kernels(fetch, apply<false>, apply<true>, undo, settle, clear_offered, give_back);
}
