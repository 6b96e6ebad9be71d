/* SPDX-License-Identifier: Apache-2.0 */
/* The operators on the GPU: a short kernel each, and CUB, which comes with CUDA, for sorting, for
 * sums and for selecting in order. */
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

static void *allocate(size_t bytes)
{
  void *memory;
  CUDACHECK(cudaMalloc(&memory, bytes));
  CUDACHECK(cudaMemset(memory, 0, bytes));
  CUDACHECK(cudaDeviceSynchronize());
  return memory;
}

static void release(void *memory)
{
  CUDACHECK(cudaFree(memory));
}

static void copy(struct simple *s, void *to, const void *from, size_t bytes)
{
  CUDACHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, s->stream));
  CUDACHECK(cudaStreamSynchronize(s->stream));
}

static void zero(struct simple *s, float *vector)
{
  CUDACHECK(cudaMemsetAsync(vector, 0, s->n * sizeof *vector, s->stream));
}

/* A number that a kernel adds up. */
static uint64_t *counter(struct simple *s)
{
  CUDACHECK(cudaMemsetAsync(s->work, 0, sizeof(uint64_t), s->stream));
  return (uint64_t *)s->work;
}

static size_t counted(struct simple *s)
{
  uint64_t count;
  copy(s, &count, s->work, sizeof count);
  return count;
}

/* Adds the number of threads of this block for which it is true. */
static __device__ void count_threads(uint64_t *counter, bool yes)
{
  const int count = __syncthreads_count(yes);
  if (threadIdx.x == 0 && count > 0) atomicAdd((unsigned long long *)counter, count);
}

static __global__ void add_vector(float *vector, const float *gradient, size_t n,
                                  uint64_t *nonfinite)
{
  const size_t i = my_index();
  const bool finite = i >= n || isfinite(gradient[i]);
  if (i < n && finite) vector[i] = gradient[i] + vector[i];
  count_threads(nonfinite, !finite);
}

static size_t add_gradient(struct simple *s, float *vector, const float *gradient)
{
  LAUNCH(add_vector, s->n, s->stream, vector, gradient, s->n, counter(s));
  return counted(s);
}

/* No index occurs twice in a list, so no two threads add to one element. */
static __global__ void add_list(float *vector, const sparse_pair *list, size_t count)
{
  const size_t e = my_index();
  if (e < count) vector[list[e].index] += list[e].value;
}

static void add_entries(struct simple *s, float *vector, const struct sparse_pair *list,
                        size_t count)
{
  LAUNCH(add_list, count, s->stream, vector, list, count);
}

static __global__ void clear_list(float *vector, const sparse_pair *list, size_t count,
                                  const float *where)
{
  const size_t e = my_index();
  if (e < count && (where == NULL || where[list[e].index] != 0)) vector[list[e].index] = 0;
}

static void clear_entries(struct simple *s, float *vector, const struct sparse_pair *list,
                          size_t count, const float *where)
{
  LAUNCH(clear_list, count, s->stream, vector, list, count, where);
}

static __global__ void divide_vector(float *to, const float *from, float divisor, size_t n)
{
  const size_t i = my_index();
  if (i < n) to[i] = from[i] / divisor;
}

static void divide(struct simple *s, float *to, const float *from, int divisor)
{
  LAUNCH(divide_vector, s->n, s->stream, to, from, (float)divisor, s->n);
}

struct deviation {
  double center;
  int squared;
  __device__ double operator()(float value) const
  {
    const double x = value - center;
    return squared ? x * x : x;
  }
};

static double moment(struct simple *s, const float *vector, double center, int squared)
{
  const auto values = thrust::make_transform_iterator(vector, deviation{center, squared});
  double *sum = (double *)s->work, result;
  size_t bytes = s->work_bytes - sizeof *sum; /* for CUB, which says if it is not enough */
  CUDACHECK(cub::DeviceReduce::Sum(sum + 1, bytes, values, sum, (int64_t)s->n, s->stream));
  copy(s, &result, sum, sizeof result);
  return result;
}

/* ---- sorting and selecting ------------------------------------------------------------------- */

/* The bits of |x| order as |x| does. Below them stands the index, the lowest being the largest. */
static __global__ void make_keys(uint64_t *keys, const float *vector, size_t n)
{
  const size_t i = my_index();
  if (i < n) keys[i] = (uint64_t)__float_as_uint(fabsf(vector[i])) << 32 | (uint32_t)~i;
}

static struct simple_rule largest(struct simple *s, const float *vector, size_t k)
{
  uint64_t *keys = (uint64_t *)s->work, *sorted = keys + s->n, key;
  size_t bytes = s->work_bytes - 2 * s->n * sizeof *keys;
  LAUNCH(make_keys, s->n, s->stream, keys, vector, s->n);
  CUDACHECK(cub::DeviceRadixSort::SortKeysDescending(sorted + s->n, bytes, keys, sorted,
                                                     (int64_t)s->n, 0, 63, s->stream));
  copy(s, &key, sorted + k - 1, sizeof key);
  return simple_rule{(uint32_t)(key >> 32), SIMPLE_NAN, (int64_t)(uint32_t)~key};
}

struct is_chosen {
  simple_rule rule;
  __device__ bool operator()(const sparse_pair &e) const
  {
    const uint32_t bits = __float_as_uint(fabsf(e.value));
    return bits <= rule.most &&
           (bits > rule.above || (bits == rule.above && (int64_t)e.index <= rule.tie));
  }
};

static __global__ void count_chosen(const float *vector, size_t first, size_t last,
                                    is_chosen chosen, uint64_t *count)
{
  const size_t i = first + my_index();
  count_threads(count, i < last && chosen(sparse_pair{(uint32_t)i, vector[i]}));
}

static size_t count(struct simple *s, const float *vector, size_t first, size_t last,
                    struct simple_rule rule)
{
  LAUNCH(count_chosen, last - first, s->stream, vector, first, last, is_chosen{rule}, counter(s));
  return counted(s);
}

struct entry_at {
  const float *vector;
  __device__ sparse_pair operator()(uint32_t i) const { return sparse_pair{i, vector[i]}; }
};

static size_t select_entries(struct simple *s, const float *vector, size_t first, size_t last,
                             struct simple_rule rule, struct sparse_pair *list)
{
  const thrust::counting_iterator<uint32_t> indices((uint32_t)first);
  const auto entries = thrust::make_transform_iterator(indices, entry_at{vector});
  uint64_t *selected = counter(s);
  size_t bytes = s->work_bytes - sizeof *selected;
  if (first < last)
    CUDACHECK(cub::DeviceSelect::If(selected + 1, bytes, entries, list, selected,
                                    (int64_t)(last - first), is_chosen{rule}, s->stream));
  return counted(s);
}

/* Keys before and after sorting, and CUB's own. */
const struct simple_operators simple_on_device = {
    allocate, release,        32,          copy,          zero,   add_gradient, largest,
    count,    select_entries, add_entries, clear_entries, divide, moment};
