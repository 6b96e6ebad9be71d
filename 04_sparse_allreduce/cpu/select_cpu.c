/* SPDX-License-Identifier: Apache-2.0 */
/* Selection: a search for the largest entries, and a filter. And counting above levels. */
#include "ops_cpu.h"

/* A list, or all of the residual. */
struct input {
  const struct sparse_pair *pairs; /* NULL: the residual */
  const float *residual;
  uint64_t count;
};

static struct input input_from(const struct sparse_memory *m, struct sparse_list list,
                               uint32_t source)
{
  if (source == SPARSE_FROM_LIST) return (struct input){list.pairs, NULL, list_count(list)};
  return (struct input){NULL, m->residual, m->n};
}

static struct sparse_pair entry(const struct input *in, uint64_t i)
{
  if (in->pairs != NULL) return in->pairs[i];
  return (struct sparse_pair){(uint32_t)i, in->residual[i]};
}

/* Three digits of a magnitude, highest first: a histogram of those that agree in the digits before
 * says in which digit the wanted one lies, and how many of the same digits are still wanted. */
static void search(struct sparse_state *s, const struct input *in,
                   struct sparse_selection *selection)
{
  static const struct {
    int shift, bits;
  } digits[] = {{20, 11}, {10, 10}, {0, 10}};
  uint32_t prefix = 0;
  if (s->wanted > in->count) s->wanted = in->count;
  *selection = (struct sparse_selection){SPARSE_NAN_LEVEL, SPARSE_NAN_LEVEL, -1, s->wanted};
  for (int d = 0; d < 3 && s->wanted > 0; d++) {
    const int shift = digits[d].shift, bits = digits[d].bits;
    const uint32_t last = (1u << bits) - 1;
    uint64_t counts[SPARSE_BINS] = {0};
    for (uint64_t i = 0; i < in->count; i++) {
      const uint32_t digit = (uint32_t)sparse_magnitude(entry(in, i).value) >> shift;
      if (digit >> bits == prefix) counts[digit & last]++;
    }
    uint32_t bin = last;
    while (selection->take > counts[bin]) selection->take -= counts[bin--];
    prefix = prefix << bits | bin;
  }
  if (s->wanted > 0) selection->above = (sparse_level_t)prefix;
}

static void keep(const struct call *c, const struct input *in)
{
  const struct sparse_selection selection = *c->selection;
  uint64_t kept = 0, taken = 0;
  for (uint64_t i = 0; i < in->count; i++) {
    const struct sparse_pair pair = entry(in, i);
    const sparse_level_t magnitude = sparse_magnitude(pair.value);
    bool chosen = sparse_chosen(&selection, magnitude, pair.index);
    if (selection.take > 0 && magnitude == selection.above) {
      chosen = magnitude <= selection.limit && taken < selection.take;
      if (chosen) {
        taken++;
        c->selection->tie = pair.index;
      }
    }
    if (chosen) c->list.pairs[kept++] = pair;
  }
  *c->list.counts = kept;
}

static void run_select(const struct call *c)
{
  struct sparse_state *s = c->m.state;
  if (s->search_from != SPARSE_FROM_NOTHING) {
    const struct input in = input_from(&c->m, c->from, s->search_from);
    search(s, &in, c->selection);
  }
  sparse_decide(c->found, &c->m);
  if (s->keep_from != SPARSE_FROM_NOTHING) {
    const struct input in = input_from(&c->m, c->from, s->keep_from);
    keep(c, &in);
  }
}

ncclResult_t ops_select(const struct sparse_memory *m, struct sparse_list from,
                        struct sparse_list to, struct sparse_selection *selection,
                        enum sparse_decision found, cudaStream_t stream)
{
  const struct call c = {
      .run = run_select, .from = from, .list = to, .selection = selection, .found = found};
  return enqueue(m, stream, c);
}

static void count_levels(const struct call *c)
{
  struct sparse_state *s = c->m.state;
  if (s->count_from == SPARSE_FROM_NOTHING) return;
  const struct input in = input_from(&c->m, sparse_offered(&c->m), s->count_from);
  for (int j = 0; j < s->nlevels; j++) {
    s->level_counts[j] = 0;
    for (uint64_t i = 0; i < in.count; i++) {
      const sparse_level_t magnitude = sparse_magnitude(entry(&in, i).value);
      s->level_counts[j] += magnitude > s->levels[j] && magnitude <= s->limit;
    }
  }
}

ncclResult_t ops_count_levels(const struct sparse_memory *m, enum sparse_decision then,
                              cudaStream_t stream)
{
  return enqueue(m, stream, (struct call){.run = count_levels, .then = then});
}
