/* SPDX-License-Identifier: Apache-2.0 */
/* Decisions on their own, and the parts of the offered list that lie in regions. */
#include "kernels/ops_cpu.h"

#ifdef CPU_STANDIN

static void run_control(const void *args)
{
  const struct control *a = args;
  sparse_decide(a->what, &a->m);
}

ncclResult_t ops_decide(const struct sparse_memory *m, enum sparse_decision what,
                        cudaStream_t stream)
{
  const struct control a = {*m, what};
  return twin_launch(stream, run_control, &a, sizeof(a));
}

/* Which part of the offered list lies in which region. */
static void partition(const struct sparse_memory *m)
{
  struct sparse_state *s = m->state;
  for (int p = 0; p < m->nranks; p++) {
    const uint64_t first = lower_bound(m->offered, s->offered_count, s->boundaries[p]);
    s->region_displs[p] = first;
    s->region_counts[p] = lower_bound(m->offered, s->offered_count, s->boundaries[p + 1]) - first;
  }
}

/* And the owners get it. Who has waited in vain takes no part any more. */
void twin_send_parts(const struct sparse_memory *m)
{
  if (m->state->late) return;
  partition(m);
  twin_tell_owners(m);
  twin_store_parts(m);
}

static void run_partition(const void *args)
{
  const struct control *a = args;
  partition(&a->m);
}

ncclResult_t ops_partition(const struct sparse_memory *m, cudaStream_t stream)
{
  const struct control a = {*m, SPARSE_THEN_NOTHING};
  return twin_launch(stream, run_partition, &a, sizeof(a));
}

static void run_send_parts(const void *args)
{
  twin_send_parts(&((const struct control *)args)->m);
}

ncclResult_t ops_send_parts(const struct sparse_memory *m, cudaStream_t stream)
{
  const struct control a = {*m, SPARSE_THEN_NOTHING};
  return twin_launch(stream, run_send_parts, &a, sizeof(a));
}

static void run_propose(const void *args)
{
  const struct control *a = args;
  struct sparse_state *s = a->m.state;
  const uint64_t chunk = s->offered_count / (uint64_t)a->m.nranks;
  s->proposal[0] = chunk == 0;
  for (int j = 1; j < a->m.nranks; j++)
    s->proposal[j] = chunk == 0 ? 0 : a->m.offered[chunk * (uint64_t)j].index;
}

ncclResult_t ops_propose(const struct sparse_memory *m, cudaStream_t stream)
{
  const struct control a = {*m, SPARSE_THEN_NOTHING};
  return twin_launch(stream, run_propose, &a, sizeof(a));
}

#endif
