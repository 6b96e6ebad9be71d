/* SPDX-License-Identifier: Apache-2.0 */
/* Sums: the lists of all ranks are added, in a fixed order. */
#include "ops_cpu.h"

/* All lists at once, from the lowest index up: no memory for the region. */
static void reduce(const struct call *c)
{
  const struct sparse_state *s = c->m.state;
  const int n = c->m.nranks, rank = c->m.rank, first = c->own_region ? rank : 0;
  const uint64_t *region = c->own_region ? s->boundaries + rank : s->whole;
  const float threshold = (float)s->global_threshold;
  const struct sparse_pair *next[SPARSE_MAX_RANKS], *end[SPARSE_MAX_RANKS];
  uint64_t kept = 0;
  for (int p = 0; p < n; p++) {
    const struct sparse_pair *list =
        c->lists + (c->own_region ? s->list_displs : s->received_displs)[p];
    next[p] = list + lower_bound(list, s->received_counts[p], region[0]);
    end[p] = list + lower_bound(list, s->received_counts[p], region[1]);
  }
  for (;;) {
    uint32_t index = SPARSE_NO_INDEX;
    for (int p = 0; p < n; p++)
      if (next[p] < end[p] && next[p]->index < index) index = next[p]->index;
    if (index == SPARSE_NO_INDEX) break;
    float sum = 0.0f;
    for (int i = 0, p = first; i < n; i++, p = (p + (c->own_region ? n - 1 : 1)) % n)
      if (next[p] < end[p] && next[p]->index == index) sum = one_nan(sum + next[p]++->value);
    if (c->which == SPARSE_SUMS_ALL ||
        (c->which == SPARSE_SUMS_NONZERO ? sum != 0 : fabsf(sum) > threshold))
      c->list.pairs[kept++] = (struct sparse_pair){index, sum};
  }
  *c->list.counts = kept;
}

ncclResult_t ops_reduce(const struct sparse_memory *m, const struct sparse_pair *lists,
                        bool own_region, enum sparse_sums which, struct sparse_list to,
                        cudaStream_t stream)
{
  const struct call c = {.run = reduce,
                         .list = to,
                         .then = own_region ? SPARSE_SEND_REDUCED : SPARSE_THEN_NOTHING,
                         .which = which,
                         .lists = lists,
                         .own_region = own_region};
  return enqueue(m, stream, c);
}
