/* SPDX-License-Identifier: Apache-2.0 */
/* The small operators: decisions on their own, regions, what leaves the residual or returns to it,
 * the result added to a vector of the caller, dense vectors, lists with indices and values apart.
 * And what all operators need before their first launch: scratch memory, and being loaded. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "device/entries.cuh"
#include "onesided/partition.cuh"

namespace
{

/* Devices whose code was compiled for sm_90 or later. Each is set by the rank that uses it. */
enum { MAX_DEVICES = 256 };
bool waits[MAX_DEVICES];

/* ---- decisions and regions ----------------------------------------------------------------------
 */

enum { PARTITION_THREADS = 1024 };

__global__ void decide(const __grid_constant__ sparse_memory m, enum sparse_decision what)
{
  ops_begin();
  ops_decide(what, &m);
}

__global__ void OPS_BOUNDS(PARTITION_THREADS, 1) partition(const __grid_constant__ sparse_memory m)
{
  ops_begin();
  __shared__ uint32_t begins[SPARSE_MAX_RANKS + 1];
  ops_find_regions(m, begins);
  __syncthreads();
  ops_note_regions(m, begins, threadIdx.x, blockDim.x);
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

/* ---- the residual -------------------------------------------------------------------------------
 */

__global__ void OPS_BOUNDS(THREADS, BLOCKS) clear_pending(const __grid_constant__ sparse_memory m)
{
  ops_begin();
  const sparse_state *state = m.state;
  const uint64_t threads = (uint64_t)gridDim.x * THREADS;
  const uint64_t me = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
  if (state->pending == SPARSE_REMOVE_OFFERED)
    for (uint64_t i = me; i < m.n; i += threads)
      sparse_clear_element(state, m.residual, (uint32_t)i);
  else if (state->pending == SPARSE_REMOVE_IN_RESULT)
    for_each_entry(m.gathered, state->result_count, [&](sparse_pair entry) {
      if (entry.index < m.n) /* who has given up may not have fetched all */
        sparse_clear_element(state, m.residual, entry.index);
    });
  if (!ops_last_block((ops_scratch *)m.scratch)) return;
  if (threadIdx.x == 0) m.state->pending = SPARSE_REMOVE_NOTHING;
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

/* ---- a vector of the caller ---------------------------------------------------------------------
 * vector[i] += scale * result[i], by one fused multiply-add, so with one rounding. */

/* Each entry is in another row of memory. So all entries of a thread, and then all elements of the
 * vector that they change, are on their way at the same time. Indices of a list are unique. */
__global__ void OPS_BOUNDS(THREADS, BLOCKS)
    add_entries(const __grid_constant__ sparse_list list, uint64_t n, float nranks, float scale,
                float *vector)
{
  const uint64_t count = ops_list_count(list), threads = (uint64_t)gridDim.x * THREADS;
  for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += threads * AHEAD) {
    uint2 entry[AHEAD];
    float before[AHEAD];
#pragma unroll
    for (int a = 0; a < AHEAD; a++) entry[a] = entry_at(list.pairs, i + a * threads, count);
#pragma unroll
    for (int a = 0; a < AHEAD; a++)
      if (entry[a].x < n) before[a] = vector[entry[a].x]; /* else it marks no entry */
#pragma unroll
    for (int a = 0; a < AHEAD; a++)
      if (entry[a].x < n)
        vector[entry[a].x] =
            __fmaf_rn(scale, __fdiv_rn(__uint_as_float(entry[a].y), nranks), before[a]);
  }
}

__global__ void OPS_BOUNDS(THREADS, BLOCKS)
    add_dense(const float *result, uint64_t n, float scale, float *vector)
{
  const uint64_t threads = (uint64_t)gridDim.x * THREADS;
#pragma unroll 4
  for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += threads)
    vector[i] = __fmaf_rn(scale, result[i], vector[i]);
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

bool ops_waits(void)
{
  int device;
  return cudaGetDevice(&device) == cudaSuccess && device < MAX_DEVICES && waits[device];
}

extern "C" {

ncclResult_t ops_decide(const struct sparse_memory *m, enum sparse_decision what,
                        cudaStream_t stream)
{
  return ops_launch(decide, 1, 1, OPS_NEXT, stream, *m, what);
}

ncclResult_t ops_partition(const struct sparse_memory *m, cudaStream_t stream)
{
  return ops_launch(partition, 1, PARTITION_THREADS, OPS_NEXT, stream, *m);
}

ncclResult_t ops_propose(const struct sparse_memory *m, cudaStream_t stream)
{
  return ops_launch(propose, 1, SPARSE_MAX_RANKS, OPS_NEXT, stream, *m);
}

ncclResult_t ops_clear_pending(const struct sparse_memory *m, cudaStream_t stream)
{
  return ops_launch(clear_pending, list_blocks(m), THREADS, OPS_NEXT, stream, *m);
}

ncclResult_t ops_return(const struct sparse_memory *m, struct sparse_list list,
                        struct sparse_list among, cudaStream_t stream)
{
  return ops_launch(give_back, list_blocks(m), THREADS, OPS_NEXT, stream, *m, list, among);
}

/* FIRST: the caller's kernels may be in between. */
ncclResult_t ops_add_entries(const struct sparse_memory *m, struct sparse_list list, float scale,
                             float *vector, cudaStream_t stream)
{
  return ops_launch(add_entries, list_blocks(m), THREADS, OPS_FIRST, stream, list, (uint64_t)m->n,
                    (float)m->nranks, scale, vector);
}

ncclResult_t ops_add_dense(const struct sparse_memory *m, float scale, float *vector,
                           cudaStream_t stream)
{
  return ops_launch(add_dense, ops_blocks(m->n, THREADS * 4, BLOCKS), THREADS, OPS_FIRST, stream,
                    (const float *)m->dense, (uint64_t)m->n, scale, vector);
}

ncclResult_t ops_scatter(const struct sparse_memory *m, struct sparse_list list,
                         cudaStream_t stream)
{
  return ops_launch(scatter, list_blocks(m), THREADS, OPS_NEXT, stream, *m, list);
}

ncclResult_t ops_average(const struct sparse_memory *m, cudaStream_t stream)
{
  const size_t sectors = (m->n + SPARSE_SECTOR - 1) / SPARSE_SECTOR; /* a byte of bits for each */
  if (m->scratch != NULL &&
      cudaMemsetAsync(ops_result_bits(*m), 0xff, sectors, stream) != cudaSuccess)
    return ncclUnhandledCudaError;
  return ops_launch(average, ops_blocks(m->n, THREADS * 4, BLOCKS), THREADS, OPS_NEXT, stream,
                    m->dense, m->n, (float)m->nranks);
}

ncclResult_t ops_convert(const struct sparse_memory *m, const void *gradient, cudaStream_t stream)
{
  const unsigned blocks = ops_blocks(m->n, THREADS * 8, BLOCKS);
  switch (m->config.gradient_type) {
  case ncclHalf:
    return ops_launch(convert<__half>, blocks, THREADS, OPS_FIRST, stream, m->dense,
                      (const __half *)gradient, m->n);
  case ncclBfloat16:
    return ops_launch(convert<__nv_bfloat16>, blocks, THREADS, OPS_FIRST, stream, m->dense,
                      (const __nv_bfloat16 *)gradient, m->n);
  default:
    return ops_launch(convert<float>, blocks, THREADS, OPS_FIRST, stream, m->dense,
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

size_t ops_scratch_bytes(size_t n, int nranks, size_t capacity)
{
  sparse_memory m = {};
  m.n = n;
  m.nranks = nranks;
  m.capacity = capacity;
  return (size_t)((char *)(ops_result_bits(m) + ops_result_words(n)) - (char *)m.scratch);
}

ncclResult_t ops_load(void)
{
  cudaFuncAttributes attributes;
  int device, driver;
  if (cudaGetDevice(&device) != cudaSuccess || cudaDriverGetVersion(&driver) != cudaSuccess ||
      cudaFuncGetAttributes(&attributes, (const void *)scatter) != cudaSuccess)
    return ncclUnhandledCudaError;
  /* graphs take such launches from drivers for CUDA 12.3 on */
  if (device < MAX_DEVICES) waits[device] = attributes.ptxVersion >= 90 && driver >= 12030;
  const ncclResult_t results[] = {ops_load_local_pass(), ops_load_select(),   ops_load_reduce(),
                                  ops_load_apply(),      ops_load_onesided(), ops_load_small()};
  for (const ncclResult_t result : results)
    if (result != ncclSuccess) return result;
  return ncclSuccess;
}

} // extern "C"

ncclResult_t ops_load_small(void)
{
  return ops_load_kernels(decide, partition, propose, clear_pending, give_back, add_entries,
                          add_dense, scatter, average, convert<float>, convert<__half>,
                          convert<__nv_bfloat16>, unzip, zip);
}
