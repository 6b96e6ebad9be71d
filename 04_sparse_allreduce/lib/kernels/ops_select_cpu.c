/* SPDX-License-Identifier: Apache-2.0 */
/* Selection: a search for the largest entries, and a filter. */
#include "kernels/ops_cpu.h"

#ifdef CPU_STANDIN

struct select {
  struct sparse_memory m;
  struct sparse_select what;
};

/* Three digits of a magnitude, highest first: a histogram of those that agree in the digits before
 * says in which digit the wanted one lies, and how many of the same digits are still wanted.
 * all_ranks: of the entries of all of them together, lower ranks taking theirs first. */
static void search(const struct sparse_memory *m, const struct input *in, bool all_ranks,
                   struct sparse_selection *selection)
{
  static const int shifts[] = {20, 10, 0};
  struct sparse_state *s = m->state;
  uint64_t wanted = s->wanted;
  uint32_t prefix = 0;
  *selection = (struct sparse_selection){SPARSE_NAN_LEVEL, SPARSE_NAN_LEVEL, -1, 0};
  for (int digit = 0; digit < 3; digit++) {
    const int bins = digit == 0 ? 2048 : 1024, shift = shifts[digit];
    uint64_t counts[SPARSE_BINS] = {0}, total = 0;
    for (uint64_t i = 0; i < in->count; i++) {
      const struct sparse_pair pair = entry(in, i);
      const uint32_t magnitude = (uint32_t)sparse_magnitude(pair.value);
      if (!is_entry(pair) || (digit > 0 && magnitude >> shifts[digit - 1] != prefix)) continue;
      counts[magnitude >> shift & (uint32_t)(bins - 1)]++;
    }
    if (all_ranks && !twin_add_histograms(m, counts, digit)) wanted = 0;
    for (int b = 0; b < bins; b++) total += counts[b];
    if (wanted > total) wanted = total;
    if (digit == 0) s->wanted = wanted;
    if (digit == 0 && all_ranks) s->gathered_total = total;
    if (wanted == 0) return;
    int bin = bins - 1;
    while (wanted > counts[bin]) wanted -= counts[bin--];
    prefix = prefix << (digit == 0 ? 11 : 10) | (uint32_t)bin;
  }
  selection->above = (sparse_level_t)prefix;
  selection->take = wanted;
  if (!all_ranks) return;
  const uint32_t bin = prefix & 1023, own = twin_histogram(m, m->rank, 2)[bin];
  for (int p = 0; p < m->rank; p++) {
    const uint32_t theirs = twin_histogram(m, p, 2)[bin];
    selection->take -= theirs < selection->take ? theirs : selection->take;
  }
  if (selection->take > own) selection->take = own;
}

static void keep(const struct sparse_memory *m, const struct sparse_select *a)
{
  const struct input in = input_from(m, a->from, *a->keep);
  struct sparse_selection selection = *a->selection;
  uint64_t kept = 0, dropped = 0, taken = 0;
  for (uint64_t i = 0; i < in.count; i++) {
    const struct sparse_pair pair = entry(&in, i);
    const sparse_level_t magnitude = sparse_magnitude(pair.value);
    if (!is_entry(pair)) continue;
    bool chosen = sparse_chosen(&selection, magnitude, pair.index);
    if (selection.take > 0 && magnitude == selection.above) {
      chosen = magnitude <= selection.limit && taken < selection.take;
      if (chosen) {
        taken++;
        a->selection->tie = pair.index;
      }
    }
    if (chosen)
      a->to.pairs[kept++] = pair;
    else if (a->dropped.pairs != NULL)
      a->dropped.pairs[dropped++] = pair;
  }
  *a->to.counts = kept;
  if (a->dropped.pairs != NULL) *a->dropped.counts = dropped;
}

static bool says_something(const uint32_t *source)
{
  return source != NULL && *source != SPARSE_FROM_NOTHING;
}

static void search_and_keep(const struct sparse_memory *m, const struct sparse_select *a)
{
  if (says_something(a->search)) {
    const struct input in = input_from(m, a->from, *a->search);
    search(m, &in, false, a->selection);
  }
  sparse_decide(a->found, m);
  if (says_something(a->keep)) keep(m, a);
}

static void run_select(const void *args)
{
  const struct select *a = args;
  search_and_keep(&a->m, &a->what);
}

ncclResult_t ops_select(const struct sparse_memory *m, const struct sparse_select *select,
                        cudaStream_t stream)
{
  const struct select a = {*m, *select};
  return twin_launch(stream, run_select, &a, sizeof(a));
}

static void run_select_sums(const void *args)
{
  const struct sparse_memory *m = args;
  struct sparse_state *s = m->state;
  if (s->late) return;
  const struct sparse_list sums = {m->reduced, &s->reduced_count, 1};
  const struct input in = input_from(m, sums, SPARSE_FROM_LIST);
  search(m, &in, true, &s->global);
  sparse_decide(SPARSE_GLOBAL_THRESHOLD, m);
  if (s->late) return;
  for (int p = 0; p < m->nranks; p++)
    twin_write_note(m, twin_at_peer(m, p, &m->notes->reduced[m->rank]), (uint32_t)s->reduced_count);
  const uint32_t all = SPARSE_FROM_LIST;
  const struct sparse_select chosen = {
      .from = sums, .to = {m->reduced, &s->chosen_count, 1}, .keep = &all, .selection = &s->global};
  keep(m, &chosen);
  twin_tell_all_of_sums(m, s->chosen_count);
}

ncclResult_t ops_select_sums(const struct sparse_memory *m, cudaStream_t stream)
{
  return twin_launch(stream, run_select_sums, m, sizeof(*m));
}

void twin_choose_and_offer(const struct sparse_memory *m)
{
  struct sparse_state *s = m->state;
  const struct sparse_list offered = {m->offered, &s->offered_count, 1};
  const struct sparse_select select = {.from = offered,
                                       .to = offered,
                                       .search = &s->search_from,
                                       .keep = &s->keep_from,
                                       .selection = &s->selection,
                                       .found = SPARSE_OVERFLOW_FOUND};
  search_and_keep(m, &select);
  twin_send_parts(m);
  s->unoffered = 0;
}

#endif
