/* SPDX-License-Identifier: Apache-2.0 */
/* Dense vectors, lists of indices and values apart; what operators need before the first step. */
#include "kernels/ops_cpu.h"

#ifdef CPU_STANDIN

size_t ops_scratch_bytes(size_t n, int nranks, size_t capacity)
{
  (void)nranks, (void)capacity;
  return n; /* is element i an entry of the result? */
}

ncclResult_t ops_load(void)
{
  return ncclSuccess;
}

static void run_scatter(const void *args)
{
  const struct lists *x = args;
  const uint64_t count = list_count(x->a);
  for (uint64_t i = 0; i < count; i++)
    if (is_entry(x->a.pairs[i])) x->m.dense[x->a.pairs[i].index] = x->a.pairs[i].value;
}

ncclResult_t ops_scatter(const struct sparse_memory *m, struct sparse_list list,
                         cudaStream_t stream)
{
  const struct lists x = {.m = *m, .a = list};
  return twin_launch(stream, run_scatter, &x, sizeof(x));
}

static void run_average(const void *args)
{
  const struct control *a = args;
  for (size_t i = 0; i < a->m.n; i++) a->m.dense[i] = one_nan(a->m.dense[i] / (float)a->m.nranks);
}

ncclResult_t ops_average(const struct sparse_memory *m, cudaStream_t stream)
{
  const struct control a = {*m, SPARSE_THEN_NOTHING};
  return twin_launch(stream, run_average, &a, sizeof(a));
}

struct convert {
  struct sparse_memory m;
  const void *gradient;
};

static void run_convert(const void *args)
{
  const struct convert *a = args;
  for (size_t i = 0; i < a->m.n; i++)
    a->m.dense[i] = gradient_value(a->gradient, a->m.config.gradient_type, i);
}

ncclResult_t ops_convert(const struct sparse_memory *m, const void *gradient, cudaStream_t stream)
{
  const struct convert a = {*m, gradient};
  return twin_launch(stream, run_convert, &a, sizeof(a));
}

struct zip {
  struct sparse_list list;
  uint32_t *indices;
  float *values;
};

static void run_unzip(const void *args)
{
  const struct zip *a = args;
  const uint64_t count = list_count(a->list);
  for (uint64_t i = 0; i < count; i++) {
    a->indices[i] = a->list.pairs[i].index;
    a->values[i] = a->list.pairs[i].value;
  }
}

ncclResult_t ops_unzip(const struct sparse_memory *m, struct sparse_list list, uint32_t *indices,
                       float *values, cudaStream_t stream)
{
  const struct zip a = {list, indices, values};
  (void)m;
  return twin_launch(stream, run_unzip, &a, sizeof(a));
}

struct unzipped {
  struct sparse_list to;
  const uint32_t *indices;
  const float *values;
};

static void run_zip(const void *args)
{
  const struct unzipped *a = args;
  const uint64_t count = list_count(a->to);
  for (uint64_t i = 0; i < count; i++)
    a->to.pairs[i] = (struct sparse_pair){a->indices[i], a->values[i]};
}

ncclResult_t ops_zip(const struct sparse_memory *m, const uint32_t *indices, const float *values,
                     struct sparse_list to, cudaStream_t stream)
{
  const struct unzipped a = {to, indices, values};
  (void)m;
  return twin_launch(stream, run_zip, &a, sizeof(a));
}

#endif
