/* SPDX-License-Identifier: Apache-2.0 */
/* The result added to a vector of the caller. */
#include "kernels/ops_cpu.h"

#ifdef CPU_STANDIN

struct add {
  struct sparse_memory m;
  struct sparse_list list;
  float scale, *vector;
};

static void add_to(const struct add *a, size_t i, float result)
{
  a->vector[i] = one_nan(fmaf(a->scale, result, a->vector[i]));
}

static void run_add_entries(const void *args)
{
  const struct add *a = args;
  const uint64_t count = list_count(a->list);
  for (uint64_t i = 0; i < count; i++) {
    const struct sparse_pair pair = a->list.pairs[i];
    if (pair.index < a->m.n) add_to(a, pair.index, pair.value / (float)a->m.nranks);
  }
}

ncclResult_t ops_add_entries(const struct sparse_memory *m, struct sparse_list list, float scale,
                             float *vector, cudaStream_t stream)
{
  const struct add a = {*m, list, scale, vector};
  return twin_launch(stream, run_add_entries, &a, sizeof(a));
}

static void run_add_dense(const void *args)
{
  const struct add *a = args;
  for (size_t i = 0; i < a->m.n; i++) add_to(a, i, a->m.dense[i]);
}

ncclResult_t ops_add_dense(const struct sparse_memory *m, float scale, float *vector,
                           cudaStream_t stream)
{
  const struct add a = {.m = *m, .scale = scale, .vector = vector};
  return twin_launch(stream, run_add_dense, &a, sizeof(a));
}

#endif
