/* SPDX-License-Identifier: Apache-2.0 */
/* The dense result: averages of the entries, and 0 elsewhere. */
#include "ops_cpu.h"

void cpu_apply(const struct sparse_memory *m, struct sparse_list list)
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
    m->dense[pair.index] = one_nan(pair.value / (float)m->nranks);
    in_result[pair.index] = true;
  }
}

static void run_apply(const void *call)
{
  const struct call *c = call;
  cpu_apply(&c->m, c->a);
  sparse_decide(c->then, &c->m);
}

ncclResult_t ops_apply(const struct sparse_memory *m, struct sparse_list list,
                       enum sparse_decision then, cudaStream_t stream)
{
  return enqueue(stream, run_apply, &(struct call){.m = *m, .a = list, .then = then});
}
