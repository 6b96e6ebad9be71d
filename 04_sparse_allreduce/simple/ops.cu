/* SPDX-License-Identifier: Apache-2.0 */
/* The operators on the GPU: a short kernel each, and CUB, which comes with CUDA, for sorting
 * and for selecting in order. */
#include <cub/cub.cuh>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include "check.h"
#include "simple.h"

static const int THREADS = 256;

template <class F>
static __global__ void run(size_t count, F f)
{
  const size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x;
  if (i < count) f(i);
}

/* f(i) for all i < count, a thread each. */
template <class F>
static void for_each(struct simple *s, size_t count, F f)
{
  if (count == 0) return; /* a launch of no blocks is an error */
  run<<<(unsigned)((count + THREADS - 1) / THREADS), THREADS, 0, s->stream>>>(count, f);
  CUDACHECK(cudaGetLastError());
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

static void add_gradient(struct simple *s, float *vector, const float *gradient)
{
  for_each(s, s->n, [=] __device__(size_t i) {
    if (isfinite(gradient[i])) vector[i] = gradient[i] + vector[i];
  });
}

/* No index occurs twice in a list, so no two threads change one element. */
static void entries(struct simple *s, enum simple_change change, float *vector,
                    const struct sparse_pair *list, size_t count, const float *where)
{
  for_each(s, count, [=] __device__(size_t e) {
    float *x = &vector[list[e].index];
    if (!where || where[list[e].index] != 0)
      *x = change == SIMPLE_ADD ? *x + list[e].value : (float)change;
  });
}

static void divide(struct simple *s, float *to, const float *from, int divisor)
{
  for_each(s, s->n, [=] __device__(size_t i) { to[i] = from[i] / (float)divisor; });
}

/* ---- choosing -------------------------------------------------------------------------------- */

/* The bits of |x| are ordered like |x|. Below them is ~index: lower indices are larger. */
static struct simple_rule largest(struct simple *s, const float *vector, size_t k)
{
  uint64_t *keys = (uint64_t *)s->work, *sorted = keys + s->n, *rest = sorted + s->n, key;
  size_t bytes = s->work_bytes - 16 * s->n; /* CUB fails if this is not enough, here and below */
  for_each(s, s->n, [=] __device__(size_t i) {
    keys[i] = (uint64_t)__float_as_uint(fabsf(vector[i])) << 32 | (uint32_t)~i;
  });
  CUDACHECK(cub::DeviceRadixSort::SortKeysDescending(rest, bytes, keys, sorted, (int64_t)s->n, 0,
                                                     63, s->stream));
  simple_copy(s, &key, sorted + k - 1, sizeof key);
  return simple_rule{(uint32_t)(key >> 32), SIMPLE_NAN, (int64_t)(uint32_t)~key};
}

struct entry_at {
  const float *vector;
  __device__ sparse_pair operator()(uint32_t i) const { return sparse_pair{i, vector[i]}; }
};

static size_t choose(struct simple *s, const float *vector, struct simple_rule rule,
                     struct sparse_pair *list)
{
  const thrust::counting_iterator<uint32_t> indices(0);
  const auto source = thrust::make_transform_iterator(indices, entry_at{vector});
  uint64_t *chosen = (uint64_t *)s->work, *unread = chosen + 1, *rest = unread + s->n, count;
  size_t bytes = s->work_bytes - 8 * (s->n + 1);
  if (!list) list = (sparse_pair *)unread;
  const auto is_chosen = [=] __device__(const sparse_pair &e) {
    const uint32_t of_value = __float_as_uint(fabsf(e.value));
    return of_value <= rule.most &&
           (of_value > rule.above || (of_value == rule.above && (int64_t)e.index <= rule.tie));
  };
  CUDACHECK(cub::DeviceSelect::If(rest, bytes, source, list, chosen, (int64_t)s->n, is_chosen,
                                  s->stream));
  simple_copy(s, &count, chosen, sizeof count);
  return count;
}

const struct simple_operators simple_on_device = {add_gradient, largest, choose, entries, divide};
