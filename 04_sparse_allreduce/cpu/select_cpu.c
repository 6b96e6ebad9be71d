/* SPDX-License-Identifier: Apache-2.0 */
/* Selection: a search for the largest entries, and a filter. */
#include "ops_cpu.h"

/* Three digits of a magnitude, highest first: a histogram of those that agree in the digits before
 * says in which digit the wanted one lies, and how many of the same digits are still wanted. */
void cpu_search(const struct sparse_memory *m, const struct input *in,
                struct sparse_selection *selection,
                bool (*add)(const struct sparse_memory *m, uint64_t *counts, int digit))
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
      const uint32_t magnitude = (uint32_t)sparse_magnitude(entry(in, i).value);
      if (digit > 0 && magnitude >> shifts[digit - 1] != prefix) continue;
      counts[magnitude >> shift & (uint32_t)(bins - 1)]++;
    }
    if (add != NULL && !add(m, counts, digit)) wanted = 0;
    for (int b = 0; b < bins; b++) total += counts[b];
    if (wanted > total) wanted = total;
    if (digit == 0) s->wanted = wanted;
    if (wanted == 0) return;
    int bin = bins - 1;
    while (wanted > counts[bin]) wanted -= counts[bin--];
    prefix = prefix << (digit == 0 ? 11 : 10) | (uint32_t)bin;
  }
  selection->above = (sparse_level_t)prefix;
  selection->take = wanted;
}

void cpu_keep(const struct sparse_memory *m, const struct sparse_select *a)
{
  const struct input in = input_from(m, a->from, *a->keep);
  const struct sparse_selection selection = *a->selection;
  uint64_t kept = 0, dropped = 0, taken = 0;
  for (uint64_t i = 0; i < in.count; i++) {
    const struct sparse_pair pair = entry(&in, i);
    const sparse_level_t magnitude = sparse_magnitude(pair.value);
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

void cpu_select(const struct sparse_memory *m, const struct sparse_select *a)
{
  if (says_something(a->search)) {
    const struct input in = input_from(m, a->from, *a->search);
    cpu_search(m, &in, a->selection, NULL);
  }
  sparse_decide(a->found, m);
  if (says_something(a->keep)) cpu_keep(m, a);
}

static void run_select(const void *call)
{
  const struct call *c = call;
  cpu_select(&c->m, &c->select);
}

ncclResult_t ops_select(const struct sparse_memory *m, const struct sparse_select *select,
                        cudaStream_t stream)
{
  return enqueue(stream, run_select, &(struct call){.m = *m, .select = *select});
}
