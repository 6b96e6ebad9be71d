/* SPDX-License-Identifier: Apache-2.0 */
/* Operators on dense vectors, and lists with indices and values apart. And what all operators need
 * before their first launch: scratch memory, and being loaded. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "device/ops_entries.cuh"

namespace
{

/* Devices whose code was compiled for sm_90 or later. Each is set by the rank that uses it. */
enum { MAX_DEVICES = 256 };
bool waits[MAX_DEVICES];

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
  const ncclResult_t results[] = {ops_load_local_pass(), ops_load_select(),  ops_load_reduce(),
                                  ops_load_merge(),      ops_load_regions(), ops_load_apply(),
                                  ops_load_mark(),       ops_load_add(),     ops_load_residual(),
                                  ops_load_lists()};
  for (const ncclResult_t result : results)
    if (result != ncclSuccess) return result;
  return ncclSuccess;
}

} // extern "C"

ncclResult_t ops_load_lists(void)
{
  return ops_load_kernels(scatter, average, convert<float>, convert<__half>, convert<__nv_bfloat16>,
                          unzip, zip);
}
