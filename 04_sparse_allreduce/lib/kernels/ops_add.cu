/* SPDX-License-Identifier: Apache-2.0 */
/* What the caller does with the result: adds it to a vector of his. vector[i] += scale * result[i],
 * by one fused multiply-add, so with one rounding. */
#include "device/ops_entries.cuh"

namespace
{

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

} // namespace

extern "C" {

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

} // extern "C"

ncclResult_t ops_load_add(void)
{
  return ops_load_kernels(add_entries, add_dense);
}
