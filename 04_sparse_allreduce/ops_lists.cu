/* SPDX-License-Identifier: Apache-2.0 */
/* The operators that touch an entry, or an element, at a time: results, regions, decisions. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops_notes.cuh"

namespace
{

enum {
  THREADS = 256,
  BLOCKS = 8,       /* per multiprocessor ... */
  APPLY_BLOCKS = 5, /* ... of apply */
  AHEAD = 4,        /* entries of a thread that are on their way at the same time */
  PARTITION_THREADS = 1024,
};

__device__ inline uint2 entry_at(const sparse_pair *pairs, uint64_t i, uint64_t count)
{
  return i < count ? *(const uint2 *)&pairs[i] : make_uint2(SPARSE_NO_INDEX, 0);
}

/* f(entry) for the first `count` entries that have an index. */
template <typename F>
__device__ inline void for_each_entry(const sparse_pair *pairs, uint64_t count, F f)
{
  const uint64_t threads = (uint64_t)gridDim.x * THREADS;
  for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += threads * AHEAD) {
    uint2 raw[AHEAD];
#pragma unroll
    for (int a = 0; a < AHEAD; a++) raw[a] = entry_at(pairs, i + a * threads, count);
#pragma unroll
    for (int a = 0; a < AHEAD; a++)
      if (raw[a].x != SPARSE_NO_INDEX) f(sparse_pair{raw[a].x, __uint_as_float(raw[a].y)});
  }
}

/* For operators on lists of about k entries. */
unsigned list_blocks(const struct sparse_memory *m)
{
  return ops_blocks(2 * m->k, THREADS * 2, BLOCKS);
}

__device__ inline void then_decide(const sparse_memory &m, enum sparse_control then)
{
  if (then == SPARSE_THEN_NOTHING || !ops_last_block((ops_scratch *)m.scratch)) return;
  if (threadIdx.x == 0) ops_decide(then, &m);
}

/* ---- decisions and regions --------------------------------------------------------------------
 */

__global__ void control(const __grid_constant__ sparse_memory m, enum sparse_control what)
{
  ops_begin();
  ops_decide(what, &m);
}

/* Where the regions begin in the offered list: a warp looks for each. Direct: blocks copy pieces of
 * the list to the owners' memory, so each of them looks; without, there is one block. */
__global__ void OPS_BOUNDS(PARTITION_THREADS, 1)
    partition(const __grid_constant__ sparse_memory m, enum sparse_control then)
{
  ops_begin();
  __shared__ uint32_t begin[SPARSE_MAX_RANKS + 1];
  sparse_state *state = m.state;
  if (m.direct && ops_late(m)) return;
  const uint32_t count = (uint32_t)state->offered_count;
  for (int j = (int)threadIdx.x / 32; j <= m.nranks; j += PARTITION_THREADS / 32) {
    const uint32_t at = ops_lower_bound(m.offered, 0, count, state->boundaries[j]);
    if (threadIdx.x % 32 == 0) begin[j] = at;
  }
  __syncthreads();
  if (m.direct) {
    for (int step = 1; step < m.nranks; step++) { /* not all to the same one */
      const int p = (m.rank + step) % m.nranks;
      sparse_pair *to = state->slots[p];
      const uint64_t threads = gridDim.x * PARTITION_THREADS;
      const uint64_t me = blockIdx.x * PARTITION_THREADS + threadIdx.x;
#pragma unroll 4
      for (uint64_t i = begin[p] + me; i < begin[p + 1]; i += threads)
        *(uint2 *)&to[i] = *(const uint2 *)&m.offered[i];
    }
    __threadfence_system();
    if (!ops_last_block((ops_scratch *)m.scratch)) return;
  }
  for (int j = (int)threadIdx.x; j < m.nranks; j += PARTITION_THREADS) {
    state->region_displs[j] = begin[j];
    state->region_counts[j] = begin[j + 1] - begin[j];
  }
  __syncthreads();
  if (m.direct) ops_tell_owners(m);
  if (threadIdx.x == 0) ops_decide(then, &m);
}

__global__ void __launch_bounds__(SPARSE_MAX_RANKS) propose(const __grid_constant__ sparse_memory m)
{
  ops_begin();
  sparse_state *state = m.state;
  const uint64_t chunk = state->offered_count / (uint64_t)m.nranks, j = threadIdx.x;
  if (j == 0)
    state->proposal[0] = chunk == 0;
  else if (j < (uint64_t)m.nranks)
    state->proposal[j] = chunk == 0 ? 0 : m.offered[chunk * j].index;
}

/* ---- results ----------------------------------------------------------------------------------
 */

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

/* Entry i, which is also put where it belongs in `gathered`. */
__device__ inline uint2 fetch_entry(const sparse_memory &m, const sums &s, uint64_t i)
{
  const uint2 entry = entry_of(m, s, i);
  if (i < s.displs[m.nranks]) *(uint2 *)&m.gathered[i] = entry;
  return entry;
}

/* By the last block. */
__device__ inline void fetched(const sparse_memory &m, const sums &s)
{
  for (int p = (int)threadIdx.x; p < m.nranks; p += THREADS) {
    m.state->gathered_counts[p] = s.displs[p + 1] - s.displs[p];
    m.state->gathered_displs[p] = s.displs[p];
  }
  __syncthreads();
}

__global__ void OPS_BOUNDS(THREADS, BLOCKS)
    fetch(const __grid_constant__ sparse_memory m, enum sparse_control then)
{
  ops_begin();
  __shared__ sums s;
  await_sums(m, s);
  const uint64_t threads = (uint64_t)gridDim.x * THREADS;
  for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < s.displs[m.nranks];
       i += threads)
    fetch_entry(m, s, i);
  if (!ops_last_block((ops_scratch *)m.scratch)) return;
  fetched(m, s);
  if (threadIdx.x == 0) ops_decide(then, &m);
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
  const uint32_t tiles = (uint32_t)((m.n + OPS_DENSE_TILE - 1) / OPS_DENSE_TILE);
  const uint32_t tile = i < count ? index / OPS_DENSE_TILE : 0;
  const uint32_t from = i == 0 ? 0 : left / OPS_DENSE_TILE + 1;
  uint32_t *begins = ops_tile_begins(m);
  fill_begins(begins, from, i < count ? tile + 1 : from, (uint32_t)i);
  fill_begins(begins, i + 1 == count ? tile + 1 : tiles + 1, tiles + 1, (uint32_t)count);
}

template <bool DIRECT>
__global__ void OPS_BOUNDS(THREADS, APPLY_BLOCKS)
    apply(const __grid_constant__ sparse_memory m, const __grid_constant__ sparse_list list,
          enum sparse_control then)
{
  ops_begin_early();
  __shared__ sums s;
  if (DIRECT) await_sums(m, s);
  const float nranks = (float)m.nranks;
  const uint64_t count = DIRECT ? s.displs[m.nranks] : ops_list_count(list);
  const uint64_t threads = (uint64_t)gridDim.x * THREADS, lane = threadIdx.x % 32;
  const uint64_t me = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
  for (uint64_t i = me; i - lane < count; i += threads * AHEAD) {
    uint2 entry[AHEAD];
#pragma unroll
    for (int a = 0; a < AHEAD; a++)
      entry[a] = DIRECT ? fetch_entry(m, s, i + a * threads)
                        : entry_at(list.pairs, i + a * threads, count);
#pragma unroll
    for (int a = 0; a < AHEAD; a++)
      store_entries(m.dense, m.n, entry[a].x, __fdiv_rn(__uint_as_float(entry[a].y), nranks));
    if (!m.direct) continue;
#pragma unroll
    for (int a = 0; a < AHEAD; a++) {
      const uint64_t at = i + a * threads;
      uint32_t left = __shfl_up_sync(OPS_ALL_LANES, entry[a].x, 1);
      if (lane == 0 && at > 0 && at < count)
        left = (DIRECT ? entry_of(m, s, at - 1) : entry_at(list.pairs, at - 1, count)).x;
      note_begins(m, at, count, entry[a].x, left);
    }
  }
  if (m.direct && count == 0)
    fill_begins(ops_tile_begins(m), me == 0 ? 0 : 1,
                me == 0 ? (uint32_t)((m.n + OPS_DENSE_TILE - 1) / OPS_DENSE_TILE) + 1 : 1, 0);
  if (DIRECT) {
    if (!ops_last_block((ops_scratch *)m.scratch)) return;
    fetched(m, s);
    if (threadIdx.x == 0) ops_decide(then, &m);
  } else {
    then_decide(m, then);
  }
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

/* ---- dense vectors ------------------------------------------------------------------------------
 */

__global__ void OPS_BOUNDS(THREADS, BLOCKS)
    scatter(const __grid_constant__ sparse_memory m, const __grid_constant__ sparse_list list)
{
  ops_begin();
  for_each_entry(list.pairs, ops_list_count(list),
                 [&](sparse_pair entry) { m.dense[entry.index] = entry.value; });
}

__global__ void OPS_BOUNDS(THREADS, BLOCKS) average(float *dense, size_t n, float nranks)
{
  ops_begin();
  const size_t threads = (size_t)gridDim.x * THREADS, quads = n / 4;
  const size_t me = (size_t)blockIdx.x * THREADS + threadIdx.x;
  for (size_t i = me; i < quads; i += threads) {
    float4 x = ((const float4 *)dense)[i];
    x.x = __fdiv_rn(x.x, nranks), x.y = __fdiv_rn(x.y, nranks);
    x.z = __fdiv_rn(x.z, nranks), x.w = __fdiv_rn(x.w, nranks);
    ((float4 *)dense)[i] = x;
  }
  if (me < n % 4) dense[quads * 4 + me] = __fdiv_rn(dense[quads * 4 + me], nranks);
}

template <typename G>
__global__ void OPS_BOUNDS(THREADS, BLOCKS)
    convert(float *__restrict__ dense, const G *__restrict__ gradient, size_t n)
{
  ops_begin();
  const size_t threads = (size_t)gridDim.x * THREADS;
#pragma unroll 8
  for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += threads)
    dense[i] = (float)gradient[i];
}

/* ---- indices and values apart -------------------------------------------------------------------
 */

__global__ void OPS_BOUNDS(THREADS, BLOCKS)
    unzip(const __grid_constant__ sparse_list list, uint32_t *indices, float *values)
{
  ops_begin();
  const uint64_t count = ops_list_count(list), threads = (uint64_t)gridDim.x * THREADS;
#pragma unroll 4
  for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += threads) {
    const uint2 raw = *(const uint2 *)&list.pairs[i];
    indices[i] = raw.x;
    values[i] = __uint_as_float(raw.y);
  }
}

__global__ void OPS_BOUNDS(THREADS, BLOCKS)
    zip(const __grid_constant__ sparse_list to, const uint32_t *indices, const float *values)
{
  ops_begin();
  const uint64_t count = ops_list_count(to), threads = (uint64_t)gridDim.x * THREADS;
#pragma unroll 4
  for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += threads)
    *(uint2 *)&to.pairs[i] = make_uint2(indices[i], __float_as_uint(values[i]));
}

} // namespace

extern "C" {

size_t ops_scratch_bytes(size_t n, int nranks, size_t capacity)
{
  sparse_memory m = {};
  m.n = n;
  m.nranks = nranks;
  m.capacity = capacity;
  const size_t tiles = (n + OPS_DENSE_TILE - 1) / OPS_DENSE_TILE;
  return (size_t)((char *)(ops_tile_begins(m) + tiles + 1) - (char *)m.scratch);
}

ncclResult_t ops_control(const struct sparse_memory *m, enum sparse_control what,
                         cudaStream_t stream)
{
  return ops_launch(control, 1, 1, OPS_NEXT, stream, *m, what);
}

ncclResult_t ops_partition(const struct sparse_memory *m, enum sparse_control then,
                           cudaStream_t stream)
{
  const unsigned blocks = m->direct ? ops_blocks(m->k, 2 * PARTITION_THREADS, 1) : 1;
  return ops_launch(partition, blocks, PARTITION_THREADS, OPS_NEXT, stream, *m, then);
}

ncclResult_t ops_propose(const struct sparse_memory *m, cudaStream_t stream)
{
  return ops_launch(propose, 1, SPARSE_MAX_RANKS, OPS_NEXT, stream, *m);
}

ncclResult_t ops_apply(const struct sparse_memory *m, struct sparse_list list,
                       enum sparse_control then, cudaStream_t stream)
{
  return ops_launch(list.pairs == NULL ? apply<true> : apply<false>,
                    ops_blocks(2 * m->k, THREADS * 2, APPLY_BLOCKS), THREADS, OPS_NEXT, stream, *m,
                    list, then);
}

ncclResult_t ops_fetch(const struct sparse_memory *m, enum sparse_control then, cudaStream_t stream)
{
  return ops_launch(fetch, list_blocks(m), THREADS, OPS_NEXT, stream, *m, then);
}

ncclResult_t ops_undo(const struct sparse_memory *m, cudaStream_t stream)
{
  /* Two blocks on each multiprocessor leave room for the exchange that it runs beside. */
  return ops_launch(undo, ops_blocks(2 * m->k, THREADS * 2, 2), THREADS, OPS_BESIDE, stream, *m);
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

ncclResult_t ops_scatter(const struct sparse_memory *m, struct sparse_list list,
                         cudaStream_t stream)
{
  return ops_launch(scatter, list_blocks(m), THREADS, OPS_NEXT, stream, *m, list);
}

ncclResult_t ops_average(const struct sparse_memory *m, cudaStream_t stream)
{
  return ops_launch(average, ops_blocks(m->n, THREADS * 4, BLOCKS), THREADS, OPS_NEXT, stream,
                    m->dense, m->n, (float)m->nranks);
}

ncclResult_t ops_convert(const struct sparse_memory *m, const void *gradient, cudaStream_t stream)
{
  const unsigned blocks = ops_blocks(m->n, THREADS * 8, BLOCKS);
  switch (m->config.gradient_type) {
  case ncclHalf:
    return ops_launch(convert<__half>, blocks, THREADS, OPS_NEXT, stream, m->dense,
                      (const __half *)gradient, m->n);
  case ncclBfloat16:
    return ops_launch(convert<__nv_bfloat16>, blocks, THREADS, OPS_NEXT, stream, m->dense,
                      (const __nv_bfloat16 *)gradient, m->n);
  default:
    return ops_launch(convert<float>, blocks, THREADS, OPS_NEXT, stream, m->dense,
                      (const float *)gradient, m->n);
  }
}

ncclResult_t ops_unzip(const struct sparse_memory *m, struct sparse_list list, uint32_t *indices,
                       float *values, cudaStream_t stream)
{
  return ops_launch(unzip, list_blocks(m), THREADS, OPS_NEXT, stream, list, indices, values);
}

ncclResult_t ops_zip(const struct sparse_memory *m, const uint32_t *indices, const float *values,
                     struct sparse_list to, cudaStream_t stream)
{
  return ops_launch(zip, list_blocks(m), THREADS, OPS_NEXT, stream, to, indices, values);
}

ncclResult_t ops_load(void)
{
  const ncclResult_t results[] = {ops_load_local_pass(), ops_load_search(), ops_load_keep(),
                                  ops_load_reduce(),     ops_load_merge(),  ops_load_lists()};
  for (const ncclResult_t result : results)
    if (result != ncclSuccess) return result;
  return ncclSuccess;
}

} // extern "C"

ncclResult_t ops_load_lists(void)
{
  return ops_load_kernels(control, partition, propose, fetch, apply<false>, apply<true>, undo,
                          settle, clear_offered, give_back, scatter, average, convert<float>,
                          convert<__half>, convert<__nv_bfloat16>, unzip, zip);
}
