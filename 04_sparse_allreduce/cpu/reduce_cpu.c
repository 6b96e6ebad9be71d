/* SPDX-License-Identifier: Apache-2.0 */
/* Sums: the lists of all ranks are added, in a fixed order. */
#include "ops_cpu.h"

/* All lists at once, from the lowest index up: no memory for the region. */
static void reduce(const struct call *c)
{
  const int n = c->m.nranks;
  const float threshold = (float)c->m.state->global_threshold;
  const struct sparse_pair *next[SPARSE_MAX_RANKS], *end[SPARSE_MAX_RANKS];
  uint64_t kept = 0;
  for (int p = 0; p < n; p++) {
    const struct sparse_pair *list = c->base + c->displs[p];
    next[p] = list + lower_bound(list, c->counts[p], c->region[0]);
    end[p] = list + lower_bound(list, c->counts[p], c->region[1]);
  }
  for (;;) {
    uint32_t index = SPARSE_NO_INDEX;
    for (int p = 0; p < n; p++)
      if (next[p] < end[p] && next[p]->index < index) index = next[p]->index;
    if (index == SPARSE_NO_INDEX) break;
    float sum = 0.0f;
    for (int i = 0, p = c->first; i < n; i++, p = (p + c->stride + n) % n)
      if (next[p] < end[p] && next[p]->index == index) sum = one_nan(sum + next[p]++->value);
    if (c->which == SPARSE_SUMS_ALL ||
        (c->which == SPARSE_SUMS_NONZERO ? sum != 0 : fabsf(sum) > threshold))
      c->list.pairs[kept++] = (struct sparse_pair){index, sum};
  }
  *c->list.counts = kept;
}

ncclResult_t ops_reduce(const struct sparse_memory *m, const struct sparse_pair *base,
                        const uint64_t *displs, const uint64_t *counts, int first, int stride,
                        const uint64_t *region, enum sparse_sums which, struct sparse_list to,
                        enum sparse_decision then, cudaStream_t stream)
{
  const struct call c = {.run = reduce,
                         .list = to,
                         .then = then,
                         .which = which,
                         .base = base,
                         .displs = displs,
                         .counts = counts,
                         .region = region,
                         .first = first,
                         .stride = stride};
  return enqueue(m, stream, c);
}
