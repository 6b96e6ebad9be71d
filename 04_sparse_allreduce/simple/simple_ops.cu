/* SPDX-License-Identifier: Apache-2.0 */
/* The operators on the GPU: a short kernel each, and CUB, which comes with CUDA, for sorting and
 * for selecting in order. */
#include <cub/cub.cuh>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include "check.h"
#include "simple.h"

/* ---- vectors and lists ----------------------------------------------------------------------- */

static const int THREADS = 256;

static __device__ size_t my_index(void)
{
  return blockIdx.x * (size_t)THREADS + threadIdx.x;
}

/* A thread for each of `count` elements. A launch of no blocks is an error. */
#define LAUNCH(kernel, count, stream, ...)                                 \
  do {                                                                     \
    const unsigned blocks = (unsigned)(((count) + THREADS - 1) / THREADS); \
    if (blocks > 0) kernel<<<blocks, THREADS, 0, stream>>>(__VA_ARGS__);   \
    CUDACHECK(cudaGetLastError());                                         \
  } while (0)

static __global__ void add_vector(float *vector, const float *gradient, size_t n)
{
  const size_t i = my_index();
  if (i < n) vector[i] = gradient[i] + vector[i];
}

void simple_add_vector(struct simple *s, float *vector, const float *gradient, cudaStream_t stream)
{
  LAUNCH(add_vector, s->n, stream, vector, gradient, s->n);
}

/* No index occurs twice in a list, so no two threads add to one element. */
static __global__ void add_entries(float *vector, const sparse_pair *list, size_t count)
{
  const size_t e = my_index();
  if (e < count) vector[list[e].index] += list[e].value;
}

void simple_add_entries(float *vector, const struct sparse_pair *list, size_t count,
                        cudaStream_t stream)
{
  LAUNCH(add_entries, count, stream, vector, list, count);
}

static __global__ void clear_entries(float *vector, const sparse_pair *list, size_t count,
                                     const float *where)
{
  const size_t e = my_index();
  if (e < count && (where == NULL || where[list[e].index] != 0)) vector[list[e].index] = 0;
}

void simple_clear_entries(float *vector, const struct sparse_pair *list, size_t count,
                          const float *where, cudaStream_t stream)
{
  LAUNCH(clear_entries, count, stream, vector, list, count, where);
}

static __global__ void divide(float *to, const float *from, float divisor, size_t n)
{
  const size_t i = my_index();
  if (i < n) to[i] = from[i] / divisor;
}

void simple_divide(struct simple *s, float *to, const float *from, int divisor, cudaStream_t stream)
{
  LAUNCH(divide, s->n, stream, to, from, (float)divisor, s->n);
}

/* ---- sorting and selecting ------------------------------------------------------------------- */

/* The bits of |x| order as |x| does. Below them stands the index, the lowest being the largest. */
static __global__ void make_keys(uint64_t *keys, const float *vector, size_t n)
{
  const size_t i = my_index();
  if (i < n) keys[i] = (uint64_t)__float_as_uint(fabsf(vector[i])) << 32 | (uint32_t)~i;
}

struct simple_rule simple_largest(struct simple *s, const float *vector, size_t k,
                                  cudaStream_t stream)
{
  uint64_t *keys = (uint64_t *)s->work, *sorted = keys + s->n, key;
  size_t bytes =
      s->work_bytes - 2 * s->n * sizeof *keys; /* for CUB, which says if it is not enough */
  LAUNCH(make_keys, s->n, stream, keys, vector, s->n);
  CUDACHECK(cub::DeviceRadixSort::SortKeysDescending(sorted + s->n, bytes, keys, sorted,
                                                     (int64_t)s->n, 0, 63, stream));
  CUDACHECK(cudaMemcpyAsync(&key, sorted + k - 1, sizeof key, cudaMemcpyDeviceToHost, stream));
  CUDACHECK(cudaStreamSynchronize(stream));
  const uint32_t magnitude = (uint32_t)(key >> 32);
  simple_rule rule = {0, (int64_t)(uint32_t)~key};
  memcpy(&rule.above, &magnitude, sizeof magnitude);
  return rule;
}

struct entry_at {
  const float *vector;
  __device__ sparse_pair operator()(uint32_t i) const { return sparse_pair{i, vector[i]}; }
};

struct is_chosen {
  simple_rule rule;
  __device__ bool operator()(const sparse_pair &e) const
  {
    const float x = fabsf(e.value);
    return x > rule.above || (x == rule.above && (int64_t)e.index <= rule.tie);
  }
};

size_t simple_select(struct simple *s, const float *vector, size_t first, size_t last,
                     struct simple_rule rule, struct sparse_pair *list, cudaStream_t stream)
{
  const thrust::counting_iterator<uint32_t> indices((uint32_t)first);
  const auto entries = thrust::make_transform_iterator(indices, entry_at{vector});
  uint64_t *selected = (uint64_t *)s->work, count = 0;
  size_t bytes = s->work_bytes - sizeof *selected;
  if (first == last) return 0;
  CUDACHECK(cub::DeviceSelect::If(selected + 1, bytes, entries, list, selected,
                                  (int64_t)(last - first), is_chosen{rule}, stream));
  CUDACHECK(cudaMemcpyAsync(&count, selected, sizeof count, cudaMemcpyDeviceToHost, stream));
  CUDACHECK(cudaStreamSynchronize(stream));
  return count;
}
