/* SPDX-License-Identifier: Apache-2.0 */
/* The dense result: averages of the entries, and 0 elsewhere. */
#include "kernels/ops_cpu.h"

#ifdef CPU_STANDIN

static void apply(const struct sparse_memory *m, struct sparse_list list)
{
  const uint64_t count = list_count(list);
  bool *in_result = m->scratch;
  /* and nothing is noted: the local pass looks into the list of the result itself */
  if (m->config.result == SPARSE_RESULT_ENTRIES) return;
  for (size_t i = 0; i < m->n; i++) {
    if (in_result[i]) m->dense[i] = 0;
    in_result[i] = false;
  }
  for (uint64_t i = 0; i < count; i++) {
    const struct sparse_pair pair = list.pairs[i];
    if (!is_entry(pair)) continue;
    m->dense[pair.index] = one_nan(pair.value / (float)m->nranks);
    in_result[pair.index] = true;
  }
}

static void run_apply(const void *args)
{
  const struct lists *x = args;
  apply(&x->m, x->a);
  sparse_decide(x->then, &x->m);
}

ncclResult_t ops_apply(const struct sparse_memory *m, struct sparse_list list, cudaStream_t stream)
{
  const struct lists x = {.m = *m, .a = list};
  return twin_launch(stream, run_apply, &x, sizeof(x));
}

static struct sparse_list gathered(const struct sparse_memory *m)
{
  return (struct sparse_list){m->gathered, m->state->gathered_counts, m->nranks};
}

ncclResult_t ops_apply_gathered(const struct sparse_memory *m, cudaStream_t stream)
{
  const struct lists x = {.m = *m, .a = gathered(m), .then = SPARSE_COLLECT_GATHERED};
  return twin_launch(stream, run_apply, &x, sizeof(x));
}

static void run_apply_sums(const void *args)
{
  const struct control *a = args;
  twin_fetch_sums(&a->m);
  apply(&a->m, gathered(&a->m));
  sparse_decide(a->what, &a->m);
}

ncclResult_t ops_apply_sums(const struct sparse_memory *m, enum sparse_decision adapt,
                            cudaStream_t stream)
{
  const struct control a = {*m, adapt};
  return twin_launch(stream, run_apply_sums, &a, sizeof(a));
}

static void run_clear(const void *args)
{
  const struct sparse_memory *m = args;
  memset(m->dense, 0, m->n * sizeof(*m->dense));
  memset(m->scratch, 0, m->n);
}

ncclResult_t ops_clear(const struct sparse_memory *m, cudaStream_t stream)
{
  return twin_launch(stream, run_clear, m, sizeof(*m));
}

#endif
