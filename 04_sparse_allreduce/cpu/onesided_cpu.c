/* SPDX-License-Identifier: Apache-2.0 */
/* The operators of oktopk where ranks use each other's memory, and the flags by which they know
 * what is there (struct sparse_flags). */
#include "ops_cpu.h"

/* ---- flags ----------------------------------------------------------------------------------- */

/* Where this rank sees what lies at `mine` in its own memory in that of rank p. */
static void *at_peer(const struct sparse_memory *m, int p, const void *mine)
{
  return m->state->peers[p] + ((const char *)mine - m->lists);
}

static void write_flag(const struct sparse_memory *m, uint64_t *flag, uint32_t value)
{
  __atomic_store_n(flag, (uint64_t)m->state->epoch << 32 | value, __ATOMIC_RELEASE);
}

struct awaited {
  const uint64_t *flags;
  int count;
  uint32_t epoch, round;  /* of the step; the first flag has to say at least `round` */
  const uint64_t *stored; /* NULL, or it has to grow by the number of entries that a flag says, */
  uint64_t before;        /* from this */
};

static bool all_there(const void *arg)
{
  const struct awaited *a = arg;
  for (int i = 0; i < a->count; i++)
    if (__atomic_load_n(&a->flags[i], __ATOMIC_ACQUIRE) >> 32 != a->epoch) return false;
  if ((uint32_t)a->flags[0] < a->round) return false;
  return a->stored == NULL || __atomic_load_n(a->stored, __ATOMIC_ACQUIRE) - a->before ==
                                  (uint32_t)a->flags[SPARSE_FLAG_COUNT];
}

/* Waits for the flags of rank p in this step; false if they do not come in time. */
static bool await(const struct sparse_memory *m, int p, struct awaited a)
{
  struct sparse_state *s = m->state;
  const double seconds = m->config.timeout_seconds > 0 ? m->config.timeout_seconds : 1e9;
  a.epoch = s->epoch;
  if (!s->late && !cpu_wait(m->comm, all_there, &a, seconds)) s->late = (uint32_t)p + 1;
  return !s->late;
}

/* ---- lists to the owners of regions ---------------------------------------------------------- */

/* The first `count` offered entries. Owners drop what does not exceed `level`. Who has waited in
 * vain takes no part any more. */
static void send_parts(const struct sparse_memory *m, uint64_t count, sparse_level_t level)
{
  const struct sparse_state *s = m->state;
  if (s->late) return;
  cpu_partition(m, count);
  for (int p = 0; p < m->nranks; p++) {
    const uint64_t first = s->region_displs[p], part = s->region_counts[p];
    uint64_t *flags = at_peer(m, p, m->flags->lists[m->rank]);
    write_flag(m, &flags[SPARSE_FLAG_FIRST], (uint32_t)first);
    write_flag(m, &flags[SPARSE_FLAG_COUNT], (uint32_t)part);
    write_flag(m, &flags[SPARSE_FLAG_LEVEL], (uint32_t)level);
    if (p != m->rank) {
      memcpy(s->list_at[p] + first, m->offered + first, part * sizeof(*m->offered));
      __atomic_fetch_add((uint64_t *)at_peer(m, p, &m->flags->stored[m->rank]), part,
                         __ATOMIC_RELEASE);
    }
    cpu_notify(m->comm, p);
  }
}

static void run_send_parts(const void *call)
{
  const struct call *c = call;
  send_parts(&c->m, c->m.state->offered_count, -1);
}

ncclResult_t ops_send_parts(const struct sparse_memory *m, cudaStream_t stream)
{
  return enqueue(stream, run_send_parts, &(struct call){.m = *m});
}

/* All candidates go, above the lowest threshold; if it is raised, owners hear of the level. */
static void run_pass_and_send(const void *call)
{
  const struct call *c = call;
  struct sparse_state *s = c->m.state;
  cpu_local_pass(c);
  const uint64_t candidates = s->offered_count;
  const int raised = sparse_raised(&c->m, s->nlevels, s->level_counts);
  sparse_decide(SPARSE_OFFER_THRESHOLD, &c->m);
  if (!s->unsent) send_parts(&c->m, candidates, raised > 0 ? s->levels[raised] : -1);
}

ncclResult_t ops_pass_and_send(const struct sparse_memory *m, const void *gradient,
                               enum sparse_removal removal, cudaStream_t stream)
{
  const struct call c = {
      .m = *m, .gradient = gradient, .candidates = SPARSE_ABOVE_THRESHOLDS, .removal = removal};
  return enqueue(stream, run_pass_and_send, &c);
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* How many sums there are for all ranks, and how many of each rank's entries are in them. */
static void signal_sums(const struct sparse_memory *m, uint64_t sums)
{
  const struct sparse_state *s = m->state;
  for (int p = 0; p < m->nranks; p++) {
    uint64_t *flags = at_peer(m, p, m->flags->sums[m->rank]);
    write_flag(m, &flags[SPARSE_FLAG_SUMS], (uint32_t)sums);
    write_flag(m, &flags[SPARSE_FLAG_NONFINITE], sparse_says_nonfinite(m, s));
    write_flag(m, &flags[SPARSE_FLAG_TAKEN], (uint32_t)s->received_counts[p]);
    cpu_notify(m->comm, p);
  }
}

static void run_reduce_sent(const void *call)
{
  const struct call *c = call;
  const struct sparse_memory *m = &c->m;
  struct sparse_state *s = m->state;
  const struct sparse_list offered = {m->offered, &s->offered_count, 1};
  const struct sparse_pair *lists[SPARSE_MAX_RANKS];
  sparse_level_t levels[SPARSE_MAX_RANKS];
  uint64_t counts[SPARSE_MAX_RANKS];
  if (s->unsent) { /* too many candidates to send */
    const struct sparse_select select = {.from = offered,
                                         .to = offered,
                                         .search = &s->search_from,
                                         .keep = &s->keep_from,
                                         .selection = &s->selection,
                                         .found = SPARSE_OVERFLOW_FOUND};
    cpu_select(m, &select);
    send_parts(m, s->offered_count, -1);
    s->unsent = 0;
  }
  for (int p = 0; p < m->nranks; p++) {
    const uint64_t *flags = m->flags->lists[p];
    const struct awaited a = {.flags = flags,
                              .count = SPARSE_LIST_FLAGS,
                              .stored = p == m->rank ? NULL : &m->flags->stored[p],
                              .before = s->stored[p]};
    const bool there = await(m, p, a);
    lists[p] = m->received + s->list_displs[p] + (there ? (uint32_t)flags[SPARSE_FLAG_FIRST] : 0);
    counts[p] = there ? (uint32_t)flags[SPARSE_FLAG_COUNT] : 0;
    levels[p] = (sparse_level_t)(uint32_t)flags[SPARSE_FLAG_LEVEL];
    if (p != m->rank) s->stored[p] += counts[p];
  }
  const uint64_t sums = cpu_reduce(c, lists, counts, levels, s->received_counts, m->reduced);
  s->reduced_count = s->late ? 0 : sums;
  if (c->which == SPARSE_SUMS_NONZERO)
    sparse_decide(SPARSE_WANT_K_NEAR_THRESHOLD, m);
  else if (!s->late)
    signal_sums(m, sums);
}

ncclResult_t ops_reduce_sent(const struct sparse_memory *m, enum sparse_sums which,
                             cudaStream_t stream)
{
  const struct call c = {.m = *m,
                         .region = m->state->boundaries + m->rank,
                         .first = m->rank,
                         .stride = -1,
                         .which = which};
  return enqueue(stream, run_reduce_sent, &c);
}

/* ---- the largest sums ------------------------------------------------------------------------ */

/* Each rank has a place for each digit in the memory of every rank: two, in turns. */
static uint32_t *histogram(const struct sparse_memory *m, int p, int digit)
{
  return m->histograms[2 * p + digit % 2];
}

/* counts[b] becomes the sum over all ranks. False if one does not come in time. */
static bool add_histograms(const struct sparse_memory *m, uint64_t *counts, int digit)
{
  for (int p = 0; p < m->nranks; p++) {
    uint32_t *to = at_peer(m, p, histogram(m, m->rank, digit));
    for (int b = 0; b < SPARSE_BINS; b++) to[b] = (uint32_t)counts[b];
    write_flag(m, at_peer(m, p, &m->flags->histograms[m->rank]), (uint32_t)digit);
    cpu_notify(m->comm, p);
  }
  memset(counts, 0, SPARSE_BINS * sizeof(*counts));
  for (int p = 0; p < m->nranks; p++) {
    const struct awaited a = {
        .flags = &m->flags->histograms[p], .count = 1, .round = (uint32_t)digit};
    if (!await(m, p, a)) return false;
    for (int b = 0; b < SPARSE_BINS; b++) counts[b] += histogram(m, p, digit)[b];
  }
  return true;
}

/* Of the `take` sums equal to the smallest that is chosen, lower ranks take theirs first. */
static void take_own_share(const struct sparse_memory *m, struct sparse_selection *selection)
{
  const int bin = selection->above & 1023;
  const uint32_t own = histogram(m, m->rank, 2)[bin];
  for (int p = 0; p < m->rank; p++) {
    const uint32_t theirs = histogram(m, p, 2)[bin];
    selection->take -= theirs < selection->take ? theirs : selection->take;
  }
  if (selection->take > own) selection->take = own;
}

static void run_select_sums(const void *call)
{
  const struct sparse_memory *m = call;
  struct sparse_state *s = m->state;
  if (s->late) return;
  const struct sparse_list sums = {m->reduced, &s->reduced_count, 1};
  const struct input in = input_from(m, sums, SPARSE_FROM_LIST);
  cpu_search(m, &in, &s->global, add_histograms);
  if (s->global.take > 0) take_own_share(m, &s->global);
  sparse_decide(SPARSE_GLOBAL_THRESHOLD, m);
  if (s->late) return;
  for (int p = 0; p < m->nranks; p++)
    write_flag(m, at_peer(m, p, &m->flags->reduced[m->rank]), (uint32_t)s->reduced_count);
  const uint32_t all = SPARSE_FROM_LIST;
  const struct sparse_select chosen = {
      .from = sums, .to = {m->reduced, &s->chosen_count, 1}, .keep = &all, .selection = &s->global};
  cpu_keep(m, &chosen);
  signal_sums(m, s->chosen_count);
}

ncclResult_t ops_select_sums(const struct sparse_memory *m, cudaStream_t stream)
{
  return enqueue(stream, run_select_sums, &(struct call){.m = *m});
}

/* ---- the result ------------------------------------------------------------------------------ */

static void run_apply_sums(const void *call)
{
  const struct call *c = call;
  const struct sparse_memory *m = &c->m;
  struct sparse_state *s = m->state;
  uint64_t total = 0;
  for (int p = 0; p < m->nranks; p++) {
    const uint64_t *flags = m->flags->sums[p];
    const bool there = await(m, p, (struct awaited){.flags = flags, .count = SPARSE_SUM_FLAGS});
    s->gathered_displs[p] = total;
    s->gathered_counts[p] = there ? (uint32_t)flags[SPARSE_FLAG_SUMS] : 0;
    s->region_counts[p] = there ? (uint32_t)flags[SPARSE_FLAG_TAKEN] : 0;
    if (there && (uint32_t)flags[SPARSE_FLAG_NONFINITE])
      s->nonfinite = (uint32_t)flags[SPARSE_FLAG_NONFINITE];
    memcpy(m->gathered + total, at_peer(m, p, m->reduced),
           s->gathered_counts[p] * sizeof(*m->gathered));
    total += s->gathered_counts[p];
  }
  cpu_apply(m, (struct sparse_list){m->gathered, s->gathered_counts, m->nranks});
  sparse_decide(c->then, m);
}

ncclResult_t ops_apply_sums(const struct sparse_memory *m, enum sparse_decision adapt,
                            cudaStream_t stream)
{
  return enqueue(stream, run_apply_sums, &(struct call){.m = *m, .then = adapt});
}
