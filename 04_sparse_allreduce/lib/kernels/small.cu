/* SPDX-License-Identifier: Apache-2.0 */
/* The small operators: decisions on their own, regions, what leaves the residual or returns to it,
 * the result added to a vector of the caller, dense vectors.
 * And what all operators need before their first launch: scratch memory, and being loaded. */
#include "device/gradient.cuh"
#include "onesided/flags.cuh"

namespace
{

enum {
  THREADS = 256,
  BLOCKS = 8, /* per multiprocessor */
};

/* Devices whose code was compiled for sm_90 or later. Each is set by the rank that uses it. */
enum { MAX_DEVICES = 256 };
bool waits[MAX_DEVICES];

/* The threads of a grid take elements, or entries, in turn: f(i) for all i below `count`. */
template <int UNROLL = 4, typename F>
__device__ inline void for_each(uint64_t count, F f)
{
  const uint64_t threads = (uint64_t)gridDim.x * THREADS;
#pragma unroll UNROLL
  for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += threads) f(i);
}

/* ---- decisions and regions ------------------------------------------------------------------- */

enum { PARTITION_THREADS = 1024 };

template <void (*DECISION)(const sparse_memory *)>
__global__ void decide(const __grid_constant__ sparse_memory m)
{
  ops_begin();
  DECISION(&m);
}

__global__ void OPS_BOUNDS(PARTITION_THREADS, 1) partition(const __grid_constant__ sparse_memory m)
{
  ops_begin();
  __shared__ uint32_t begins[SPARSE_MAX_RANKS + 1];
  ops_find_regions(m, begins);
  __syncthreads();
  ops_note_regions(m, begins, threadIdx.x, blockDim.x);
}

/* ---- the residual and other vectors ---------------------------------------------------------- */

__global__ void OPS_BOUNDS(THREADS, BLOCKS) clear_pending(const __grid_constant__ sparse_memory m)
{
  ops_begin();
  const uint32_t pending = m.state->pending, *bits = ops_result_bits(m);
  for_each(pending != SPARSE_REMOVE_NOTHING ? m.n : 0, [&](uint64_t i) {
    if (pending == SPARSE_REMOVE_OFFERED || (bits[i / 32] >> i % 32 & 1))
      sparse_clear_element(m.state, m.residual, (uint32_t)i);
  });
  if (!ops_last_block((ops_scratch *)m.scratch)) return;
  if (threadIdx.x == 0) m.state->pending = SPARSE_REMOVE_NOTHING;
}

__global__ void OPS_BOUNDS(THREADS, BLOCKS)
    give_back(const __grid_constant__ sparse_memory m, const __grid_constant__ sparse_list list,
              const sparse_selection *discards_by)
{
  ops_begin();
  const sparse_selection selection = *discards_by;
  const uint32_t *bits = ops_result_bits(m);
  for_each(ops_list_count(list), [&](uint64_t i) {
    const sparse_pair entry = list.pairs[i];
    if (!sparse_chosen(&selection, sparse_magnitude(entry.value), entry.index) &&
        (bits[entry.index / 32] >> entry.index % 32 & 1))
      m.residual[entry.index] = __fadd_rn(m.residual[entry.index], entry.value);
  });
}

/* vector[i] += scale * result[i], by one fused multiply-add, so with one rounding. Each entry is in
 * another row of memory. So all entries of a thread, and then all elements of the vector that they
 * change, are on their way at the same time. Indices of a list are unique. */
__global__ void OPS_BOUNDS(THREADS, BLOCKS)
    add_entries(const __grid_constant__ sparse_list list, uint64_t n, float nranks, float scale,
                float *vector)
{
  enum { AHEAD = 4 };
  const uint64_t count = ops_list_count(list), threads = (uint64_t)gridDim.x * THREADS;
  for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += threads * AHEAD) {
    uint2 entry[AHEAD];
    float before[AHEAD];
#pragma unroll
    for (int a = 0; a < AHEAD; a++) entry[a] = ops_entry_at(list.pairs, i + a * threads, count);
#pragma unroll
    for (int a = 0; a < AHEAD; a++)
      if (entry[a].x < n) before[a] = vector[entry[a].x]; /* else there is none */
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
  for_each(n, [&](uint64_t i) { vector[i] = __fmaf_rn(scale, result[i], vector[i]); });
}

__global__ void OPS_BOUNDS(THREADS, BLOCKS)
    scatter(const __grid_constant__ sparse_list list, float *dense)
{
  ops_begin();
  for_each(ops_list_count(list),
           [&](uint64_t i) { dense[list.pairs[i].index] = list.pairs[i].value; });
}

/* The vector has room for whole quads. */
__global__ void OPS_BOUNDS(THREADS, BLOCKS) average(float4 *dense, size_t quads, float nranks)
{
  ops_begin();
  for_each(quads, [&](uint64_t i) {
    const float4 x = dense[i];
    dense[i] = make_float4(__fdiv_rn(x.x, nranks), __fdiv_rn(x.y, nranks), __fdiv_rn(x.z, nranks),
                           __fdiv_rn(x.w, nranks));
  });
}

template <typename Gradient>
__global__ void OPS_BOUNDS(THREADS, BLOCKS)
    convert(float *__restrict__ dense, Gradient __restrict__ gradient, size_t n)
{
  ops_begin();
  for_each<8>(n, [&](uint64_t i) { dense[i] = (float)gradient[i]; });
}

unsigned blocks_for(size_t elements)
{
  return ops_blocks(elements, THREADS * 4, BLOCKS);
}

} // namespace

std::vector<const void *> &ops_kernels(void)
{
  static std::vector<const void *> all;
  return all;
}

bool ops_waits(void)
{
  int device;
  return cudaGetDevice(&device) == cudaSuccess && device < MAX_DEVICES && waits[device];
}

extern "C" {

#define DEFINE_DECISION(name)                                                 \
  ncclResult_t ops_##name(const struct sparse_memory *m, cudaStream_t stream) \
  {                                                                           \
    return ops_launch(decide<sparse_##name>, 1, 1, OPS_NEXT, stream, *m);     \
  }                                                                           \
  static const ops_load_kernels load_##name(decide<sparse_##name>);
OPS_DECISIONS(DEFINE_DECISION)

ncclResult_t ops_partition(const struct sparse_memory *m, cudaStream_t stream)
{
  return ops_launch(partition, 1, PARTITION_THREADS, OPS_NEXT, stream, *m);
}

ncclResult_t ops_clear_pending(const struct sparse_memory *m, cudaStream_t stream)
{
  return ops_launch(clear_pending, blocks_for(m->n), THREADS, OPS_NEXT, stream, *m);
}

/* The bits say what is in the result. */
ncclResult_t ops_return(const struct sparse_memory *m, struct sparse_list list,
                        const struct sparse_selection *selection, cudaStream_t stream)
{
  return ops_launch(give_back, blocks_for(4 * m->k), THREADS, OPS_NEXT, stream, *m, list,
                    selection);
}

/* FIRST: the caller's kernels may be in between. */
ncclResult_t ops_add(const struct sparse_memory *m, struct sparse_list list, float scale,
                     float *vector, cudaStream_t stream)
{
  return ops_launch(add_entries, blocks_for(4 * m->k), THREADS, OPS_FIRST, stream, list, m->n,
                    m->nranks, scale, vector);
}

ncclResult_t ops_add_dense(const struct sparse_memory *m, float scale, float *vector,
                           cudaStream_t stream)
{
  return ops_launch(add_dense, blocks_for(m->n), THREADS, OPS_FIRST, stream, m->dense, m->n, scale,
                    vector);
}

ncclResult_t ops_scatter(const struct sparse_memory *m, struct sparse_list list,
                         cudaStream_t stream)
{
  return ops_launch(scatter, blocks_for(4 * m->k), THREADS, OPS_NEXT, stream, list, m->dense);
}

ncclResult_t ops_average(const struct sparse_memory *m, cudaStream_t stream)
{
  const size_t sectors = (m->n + SPARSE_SECTOR - 1) / SPARSE_SECTOR; /* a byte of bits for each */
  if (m->scratch != NULL &&
      cudaMemsetAsync(ops_result_bits(*m), 0xff, sectors, stream) != cudaSuccess)
    return ncclUnhandledCudaError;
  return ops_launch(average, blocks_for(m->n), THREADS, OPS_NEXT, stream, (float4 *)m->dense,
                    (m->n + 3) / 4, m->nranks);
}

ncclResult_t ops_convert(const struct sparse_memory *m, const void *gradient, cudaStream_t stream)
{
  return ops_with_type(m->config.gradient_type, gradient, [=](auto of_type) {
    return ops_launch(convert<decltype(of_type)>, blocks_for(m->n), THREADS, OPS_FIRST, stream,
                      m->dense, of_type, m->n);
  });
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
  if (cudaGetDevice(&device) != cudaSuccess || cudaDriverGetVersion(&driver) != cudaSuccess)
    return ncclUnhandledCudaError;
  for (const void *kernel : ops_kernels())
    if (cudaFuncGetAttributes(&attributes, kernel) != cudaSuccess) return ncclUnhandledCudaError;
  /* graphs accept these launches with drivers for CUDA 12.3 or later */
  if (device < MAX_DEVICES) waits[device] = attributes.ptxVersion >= 90 && driver >= 12030;
  return ncclSuccess;
}

} // extern "C"

static const ops_load_kernels load(partition, clear_pending, give_back, add_entries, add_dense,
                                   scatter, average, convert<const float *>,
                                   convert<const __half *>, convert<const __nv_bfloat16 *>);
