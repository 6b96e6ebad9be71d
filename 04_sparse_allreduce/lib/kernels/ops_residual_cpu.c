/* SPDX-License-Identifier: Apache-2.0 */
/* What leaves the residual, or returns to it. */
#include "kernels/ops_cpu.h"

#ifdef CPU_STANDIN

void twin_settle(const struct sparse_memory *m)
{
  struct sparse_state *s = m->state;
  for (size_t i = 0; s->pending == SPARSE_REMOVE_OFFERED && i < m->n; i++)
    sparse_settle_element(s, m->residual, (uint32_t)i);
  for (uint64_t i = 0; s->pending == SPARSE_REMOVE_IN_RESULT && i < s->result_count; i++)
    if (is_entry(m->gathered[i])) sparse_settle_element(s, m->residual, m->gathered[i].index);
  s->pending = SPARSE_REMOVE_NOTHING;
}

static void run_settle(const void *args)
{
  twin_settle(&((const struct control *)args)->m);
}

ncclResult_t ops_settle(const struct sparse_memory *m, cudaStream_t stream)
{
  const struct control a = {*m, SPARSE_THEN_NOTHING};
  return twin_launch(stream, run_settle, &a, sizeof(a));
}

static void run_return(const void *args)
{
  const struct lists *x = args;
  const uint64_t count = list_count(x->a), among = list_count(x->b);
  for (uint64_t i = 0; i < count; i++) {
    const struct sparse_pair pair = x->a.pairs[i];
    if (!is_entry(pair)) continue;
    const uint64_t at = lower_bound(x->b.pairs, among, pair.index);
    if (at < among && x->b.pairs[at].index == pair.index)
      x->m.residual[pair.index] = one_nan(x->m.residual[pair.index] + pair.value);
  }
}

ncclResult_t ops_return(const struct sparse_memory *m, struct sparse_list list,
                        struct sparse_list among, cudaStream_t stream)
{
  const struct lists x = {.m = *m, .a = list, .b = among};
  return twin_launch(stream, run_return, &x, sizeof(x));
}

#endif
