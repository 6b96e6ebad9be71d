/* SPDX-License-Identifier: Apache-2.0 */
/* The operators on the GPU: CUB, which comes with CUDA, for sorting and for selecting in order, and
 * a short kernel for each of the others. */
#include <cub/cub.cuh>
#include <stdlib.h>
#include <thrust/iterator/counting_iterator.h>

#include "check.h"
#include "simple.h"

/* Work space: magnitudes and indices before and after sorting, numbers, and what CUB asks for. */
struct simple_ops {
  uint32_t *magnitudes[2], *indices[2];
  uint64_t *count; /* how many were selected */
  void *cub;
  size_t cub_bytes;
};

/* ---- kernels --------------------------------------------------------------------------------- */

static const int THREADS = 256;

static int blocks(size_t n)
{
  return (int)((n + THREADS - 1) / THREADS);
}

static __device__ size_t my_index(void)
{
  return blockIdx.x * (size_t)THREADS + threadIdx.x;
}

static __global__ void add_vector(float *vector, const float *gradient, size_t n)
{
  const size_t i = my_index();
  if (i < n) vector[i] = gradient[i] + vector[i];
}

static __global__ void divide(float *to, const float *from, float divisor, size_t n)
{
  const size_t i = my_index();
  if (i < n) to[i] = from[i] / divisor;
}

/* The bits of |x| order as |x| does, if x is a number. */
static __global__ void split(const float *vector, uint32_t *magnitudes, uint32_t *indices, size_t n)
{
  const size_t i = my_index();
  if (i >= n) return;
  magnitudes[i] = __float_as_uint(fabsf(vector[i]));
  indices[i] = (uint32_t)i;
}

static __global__ void gather(sparse_pair *list, const float *vector, const uint32_t *indices,
                              size_t count)
{
  const size_t e = my_index();
  if (e < count) list[e] = sparse_pair{indices[e], vector[indices[e]]};
}

/* No index occurs twice in a list, so no two threads add to one element. */
static __global__ void add_entries(float *vector, const sparse_pair *list, size_t count)
{
  const size_t e = my_index();
  if (e < count) vector[list[e].index] += list[e].value;
}

static __global__ void clear_entries(float *vector, const sparse_pair *list, size_t count,
                                     const float *where)
{
  const size_t e = my_index();
  if (e < count && (where == NULL || where[list[e].index] != 0)) vector[list[e].index] = 0;
}

struct is_above {
  const float *vector;
  float threshold;
  __device__ bool operator()(uint32_t i) const { return fabsf(vector[i]) > threshold; }
};

/* A launch of no blocks is an error. */
#define LAUNCH(kernel, count, stream, ...)                                       \
  do {                                                                           \
    if ((count) > 0) kernel<<<blocks(count), THREADS, 0, stream>>>(__VA_ARGS__); \
    CUDACHECK(cudaGetLastError());                                               \
  } while (0)

/* ---- CUB ------------------------------------------------------------------------------------- */

/* Each returns by `bytes` what it needs if `space` is NULL, and does nothing else then. */

/* A radix sort keeps the order of equals: among those the lower index stays first. */
static cudaError_t sort_magnitudes(simple_ops *ops, void *space, size_t *bytes, size_t n,
                                   cudaStream_t stream)
{
  return cub::DeviceRadixSort::SortPairsDescending(space, *bytes, ops->magnitudes[0],
                                                   ops->magnitudes[1], ops->indices[0],
                                                   ops->indices[1], (int64_t)n, 0, 31, stream);
}

static cudaError_t sort_indices(simple_ops *ops, void *space, size_t *bytes, size_t k,
                                cudaStream_t stream)
{
  return cub::DeviceRadixSort::SortKeys(space, *bytes, ops->indices[1], ops->indices[0], (int64_t)k,
                                        0, 32, stream);
}

static cudaError_t select_indices(simple_ops *ops, void *space, size_t *bytes, size_t first,
                                  size_t count, is_above condition, cudaStream_t stream)
{
  return cub::DeviceSelect::If(space, *bytes, thrust::counting_iterator<uint32_t>((uint32_t)first),
                               ops->indices[0], ops->count, (int64_t)count, condition, stream);
}

/* ---- the operators --------------------------------------------------------------------------- */

struct simple_ops *simple_ops_create(const struct simple *s)
{
  const size_t n = s->n;
  simple_ops *ops = (simple_ops *)calloc(1, sizeof *ops);
  if (!ops) launcher_fail(__FILE__, __LINE__, "calloc", "out of memory", NULL);
  for (int i = 0; i < 2; i++) {
    CUDACHECK(cudaMalloc((void **)&ops->magnitudes[i], n * sizeof(uint32_t)));
    CUDACHECK(cudaMalloc((void **)&ops->indices[i], n * sizeof(uint32_t)));
  }
  CUDACHECK(cudaMalloc((void **)&ops->count, sizeof *ops->count));
  size_t bytes[3] = {0, 0, 0};
  CUDACHECK(sort_magnitudes(ops, NULL, &bytes[0], n, NULL));
  CUDACHECK(sort_indices(ops, NULL, &bytes[1], n, NULL));
  CUDACHECK(select_indices(ops, NULL, &bytes[2], 0, n, is_above{NULL, 0}, NULL));
  for (size_t need : bytes)
    if (need > ops->cub_bytes) ops->cub_bytes = need;
  CUDACHECK(cudaMalloc(&ops->cub, ops->cub_bytes));
  return ops;
}

void simple_ops_destroy(struct simple_ops *ops)
{
  for (int i = 0; i < 2; i++) {
    CUDACHECK(cudaFree(ops->magnitudes[i]));
    CUDACHECK(cudaFree(ops->indices[i]));
  }
  CUDACHECK(cudaFree(ops->count));
  CUDACHECK(cudaFree(ops->cub));
  free(ops);
}

void simple_add_vector(struct simple *s, float *vector, const float *gradient, cudaStream_t stream)
{
  LAUNCH(add_vector, s->n, stream, vector, gradient, s->n);
}

struct simple_kth simple_largest(struct simple *s, const float *vector, size_t k,
                                 struct sparse_pair *list, cudaStream_t stream)
{
  simple_ops *ops = s->ops;
  simple_kth kth;
  LAUNCH(split, s->n, stream, vector, ops->magnitudes[0], ops->indices[0], s->n);
  CUDACHECK(sort_magnitudes(ops, ops->cub, &ops->cub_bytes, s->n, stream));
  CUDACHECK(cudaMemcpyAsync(&kth.magnitude, ops->magnitudes[1] + k - 1, sizeof kth.magnitude,
                            cudaMemcpyDeviceToHost, stream));
  CUDACHECK(cudaMemcpyAsync(&kth.index, ops->indices[1] + k - 1, sizeof kth.index,
                            cudaMemcpyDeviceToHost, stream));
  CUDACHECK(sort_indices(ops, ops->cub, &ops->cub_bytes, k, stream));
  LAUNCH(gather, k, stream, list, vector, ops->indices[0], k);
  CUDACHECK(cudaStreamSynchronize(stream));
  return kth;
}

size_t simple_above(struct simple *s, const float *vector, size_t first, size_t last,
                    double threshold, struct sparse_pair *list, size_t room, cudaStream_t stream)
{
  simple_ops *ops = s->ops;
  uint64_t count = 0;
  if (first == last) return 0;
  CUDACHECK(select_indices(ops, ops->cub, &ops->cub_bytes, first, last - first,
                           is_above{vector, (float)threshold}, stream));
  CUDACHECK(cudaMemcpyAsync(&count, ops->count, sizeof count, cudaMemcpyDeviceToHost, stream));
  CUDACHECK(cudaStreamSynchronize(stream));
  if (count <= room) LAUNCH(gather, count, stream, list, vector, ops->indices[0], count);
  return count;
}

void simple_add_entries(struct simple *s, float *vector, const struct sparse_pair *list,
                        size_t count, cudaStream_t stream)
{
  (void)s;
  LAUNCH(add_entries, count, stream, vector, list, count);
}

void simple_clear_entries(struct simple *s, float *vector, const struct sparse_pair *list,
                          size_t count, const float *where, cudaStream_t stream)
{
  (void)s;
  LAUNCH(clear_entries, count, stream, vector, list, count, where);
}

void simple_divide(struct simple *s, float *to, const float *from, int divisor, cudaStream_t stream)
{
  LAUNCH(divide, s->n, stream, to, from, (float)divisor, s->n);
}
