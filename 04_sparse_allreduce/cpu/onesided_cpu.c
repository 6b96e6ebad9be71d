/* SPDX-License-Identifier: Apache-2.0 */
/* The operators of oktopk where ranks use each other's memory, and the flags by which they know
 * what is there (struct sparse_flags). What a flag speaks of is stored before it. So nobody needs
 * to count what has been stored, as the kernels do, whose threads store all at the same time. */
#include "ops_cpu.h"

/* ---- flags ----------------------------------------------------------------------------------- */

/* Where this rank sees what lies at `mine` in its own memory in that of rank p. */
static void *at_peer(const struct sparse_memory *m, int p, const void *mine)
{
  return m->state->peers[p] + ((const char *)mine - m->lists);
}

/* Writes flags[0 .. count) of this step to the memory of rank p. */
static void publish(const struct sparse_memory *m, int p, const uint64_t *flags, int count,
                    const uint32_t *values)
{
  uint64_t *there = at_peer(m, p, flags);
  for (int i = 0; i < count; i++)
    __atomic_store_n(&there[i], (uint64_t)m->state->epoch << 32 | values[i], __ATOMIC_RELEASE);
  cpu_notify(m->comm, p);
}

struct awaited {
  const uint64_t *flags;
  int count;
  uint32_t epoch;
};

static bool all_there(const void *arg)
{
  const struct awaited *a = arg;
  for (int i = 0; i < a->count; i++)
    if (__atomic_load_n(&a->flags[i], __ATOMIC_ACQUIRE) >> 32 != a->epoch) return false;
  return true;
}

/* Waits for flags that rank p writes here in this step. If they do not come in time, all values are
 * 0, and nobody is waited for any more. */
static void await(const struct sparse_memory *m, int p, const uint64_t *flags, int count,
                  uint32_t *values)
{
  struct sparse_state *s = m->state;
  const struct awaited a = {flags, count, s->epoch};
  const double seconds = m->config.timeout_seconds > 0 ? m->config.timeout_seconds : 1e9;
  if (!s->late && !cpu_wait(m->comm, all_there, &a, seconds)) s->late = (uint32_t)p + 1;
  for (int i = 0; i < count; i++) values[i] = s->late ? 0 : (uint32_t)flags[i];
}

/* ---- lists to the owners of regions ---------------------------------------------------------- */

/* The first `count` offered entries. Owners drop what does not exceed `level`. Who has waited in
 * vain takes no part any more. */
static void send_parts(const struct sparse_memory *m, uint64_t count, sparse_level_t level)
{
  struct sparse_state *s = m->state;
  if (s->late) return;
  cpu_partition(m, m->offered, count, s->region_displs, s->region_counts);
  for (int p = 0; p < m->nranks; p++) {
    const uint64_t first = s->region_displs[p], part = s->region_counts[p];
    if (p != m->rank) memcpy(s->list_at[p] + first, m->offered + first, part * sizeof(*m->offered));
    publish(m, p, m->flags->lists[m->rank], SPARSE_LIST_FLAGS,
            (uint32_t[]){[SPARSE_FLAG_FIRST] = (uint32_t)first,
                         [SPARSE_FLAG_COUNT] = (uint32_t)part,
                         [SPARSE_FLAG_LEVEL] = (uint32_t)level});
  }
}

static void send_offered(const struct call *c)
{
  send_parts(&c->m, c->m.state->offered_count, -1);
}

ncclResult_t ops_send_parts(const struct sparse_memory *m, cudaStream_t stream)
{
  return enqueue(m, stream, (struct call){.run = send_offered});
}

/* All candidates go, above the lowest threshold; if it is raised, owners leave out what it does not
 * choose. If there were too many, only what is chosen of them (the kernels do that in reduce). */
static void send_candidates(const struct call *c)
{
  const struct sparse_state *s = c->m.state;
  if (s->unsent)
    send_parts(&c->m, s->offered_count, -1);
  else
    send_parts(&c->m, s->level_counts[0], s->selection.above);
}

ncclResult_t ops_pass_and_send(const struct sparse_memory *m, const void *gradient,
                               enum sparse_removal removal, cudaStream_t stream)
{
  SPARSE_TRY(ops_local_pass(m, gradient, SPARSE_ABOVE_THRESHOLDS, removal, stream));
  SPARSE_TRY(ops_decide(m, SPARSE_OFFER_THRESHOLD, stream));
  SPARSE_TRY(ops_select(m, sparse_offered(m), sparse_offered(m), &m->state->selection,
                        SPARSE_OVERFLOW_FOUND, stream));
  return enqueue(m, stream, (struct call){.run = send_candidates});
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* The lists for this owner, and of each list what exceeds its level. */
static void await_lists(const struct call *c)
{
  const struct sparse_memory *m = &c->m;
  struct sparse_state *s = m->state;
  for (int p = 0; p < m->nranks; p++) {
    uint32_t flags[SPARSE_LIST_FLAGS];
    await(m, p, m->flags->lists[p], SPARSE_LIST_FLAGS, flags);
    struct sparse_pair *list = m->received + s->list_displs[p];
    const struct sparse_pair *from = list + flags[SPARSE_FLAG_FIRST];
    s->received_counts[p] = 0;
    for (uint32_t i = 0; i < flags[SPARSE_FLAG_COUNT]; i++)
      if (sparse_magnitude(from[i].value) > (sparse_level_t)flags[SPARSE_FLAG_LEVEL])
        list[s->received_counts[p]++] = from[i];
  }
}

/* How many sums there are, and how many of each rank's entries are in them. */
static void publish_sums(const struct call *c)
{
  const struct sparse_memory *m = &c->m;
  const struct sparse_state *s = m->state;
  for (int p = 0; p < m->nranks && !s->late; p++)
    publish(m, p, m->flags->sums[m->rank], SPARSE_SUM_FLAGS,
            (uint32_t[]){[SPARSE_FLAG_SUMS] = (uint32_t)s->reduced_count,
                         [SPARSE_FLAG_NONFINITE] = sparse_says_nonfinite(m, s),
                         [SPARSE_FLAG_TAKEN] = (uint32_t)s->received_counts[p]});
}

ncclResult_t ops_reduce_sent(const struct sparse_memory *m, enum sparse_sums which,
                             cudaStream_t stream)
{
  SPARSE_TRY(enqueue(m, stream, (struct call){.run = await_lists}));
  SPARSE_TRY(ops_reduce(m, m->received, true, which, sparse_reduced(m), stream));
  if (which == SPARSE_SUMS_NONZERO) SPARSE_TRY(ops_decide(m, SPARSE_WANT_K_NEAR_THRESHOLD, stream));
  return enqueue(m, stream, (struct call){.run = publish_sums});
}

/* ---- the result ------------------------------------------------------------------------------ */

/* All ranks' sums to `gathered`. */
static void fetch_sums(const struct call *c)
{
  const struct sparse_memory *m = &c->m;
  struct sparse_state *s = m->state;
  struct sparse_pair *to = m->gathered;
  for (int p = 0; p < m->nranks; p++) {
    uint32_t flags[SPARSE_SUM_FLAGS];
    await(m, p, m->flags->sums[p], SPARSE_SUM_FLAGS, flags);
    const uint32_t count = flags[SPARSE_FLAG_SUMS];
    memcpy(to, at_peer(m, p, m->reduced), count * sizeof(*to));
    to += count;
    s->gathered_counts[p] = m->flags->reduced[p] = count;
    s->region_counts[p] = flags[SPARSE_FLAG_TAKEN];
    if (flags[SPARSE_FLAG_NONFINITE] != 0) s->nonfinite = flags[SPARSE_FLAG_NONFINITE];
  }
}

/* How many of the sums that were chosen are in which region. */
static void count_chosen(const struct call *c)
{
  struct sparse_state *s = c->m.state;
  cpu_partition(&c->m, c->m.gathered, s->result_count, s->gathered_displs, s->gathered_counts);
}

/* Of all sums, fetched: the kernels tell each other histograms instead, and find the same. */
ncclResult_t ops_select_sums(const struct sparse_memory *m, cudaStream_t stream)
{
  SPARSE_TRY(enqueue(m, stream, (struct call){.run = fetch_sums}));
  SPARSE_TRY(ops_select(m, sparse_gathered(m), sparse_result(m), &m->state->global,
                        SPARSE_GLOBAL_THRESHOLD, stream));
  return enqueue(m, stream, (struct call){.run = count_chosen});
}

ncclResult_t ops_apply_sums(const struct sparse_memory *m, enum sparse_decision then,
                            cudaStream_t stream)
{
  if (then == SPARSE_COUNT_AND_ADAPT) /* else ops_select_sums() has fetched them, and chosen */
    SPARSE_TRY(enqueue(m, stream, (struct call){.run = fetch_sums}));
  return ops_apply(m, sparse_gathered(m), then, stream);
}
