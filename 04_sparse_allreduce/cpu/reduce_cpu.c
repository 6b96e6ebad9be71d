/* SPDX-License-Identifier: Apache-2.0 */
/* Sums: the lists of all ranks are added, in a fixed order. */
#include "ops_cpu.h"

/* All lists at once, from the lowest index up: no memory for the region. */
uint64_t cpu_reduce(const struct call *c, const struct sparse_pair *const *lists,
                    const uint64_t *counts, const sparse_level_t *levels, uint64_t *taken,
                    struct sparse_pair *to)
{
  const int n = c->m.nranks;
  const float threshold = (float)c->m.state->global_threshold;
  const struct sparse_pair *next[SPARSE_MAX_RANKS], *end[SPARSE_MAX_RANKS];
  uint64_t kept = 0;
  for (int p = 0; p < n; p++) {
    next[p] = lists[p] + lower_bound(lists[p], counts[p], c->region[0]);
    end[p] = lists[p] + lower_bound(lists[p], counts[p], c->region[1]);
    taken[p] = 0;
  }
  for (;;) {
    uint32_t index = SPARSE_NO_INDEX;
    for (int p = 0; p < n; p++) {
      while (next[p] < end[p] && sparse_magnitude(next[p]->value) <= levels[p]) next[p]++;
      if (next[p] < end[p] && next[p]->index < index) index = next[p]->index;
    }
    if (index == SPARSE_NO_INDEX) return kept;
    float sum = 0.0f;
    for (int i = 0, p = c->first; i < n; i++, p = (p + c->stride + n) % n)
      if (next[p] < end[p] && next[p]->index == index) {
        sum = one_nan(sum + next[p]++->value);
        taken[p]++;
      }
    if (c->which == SPARSE_SUMS_ALL ||
        (c->which == SPARSE_SUMS_NONZERO ? sum != 0 : fabsf(sum) > threshold))
      to[kept++] = (struct sparse_pair){index, sum};
  }
}

static void run_reduce(const void *call)
{
  const struct call *c = call;
  const struct sparse_pair *lists[SPARSE_MAX_RANKS];
  sparse_level_t levels[SPARSE_MAX_RANKS];
  uint64_t taken[SPARSE_MAX_RANKS];
  for (int p = 0; p < c->m.nranks; p++) {
    lists[p] = c->base + c->displs[p];
    levels[p] = -1;
  }
  *c->to.counts = cpu_reduce(c, lists, c->counts, levels, taken, c->to.pairs);
  sparse_decide(c->then, &c->m);
}

ncclResult_t ops_reduce(const struct sparse_memory *m, const struct sparse_pair *base,
                        const uint64_t *displs, const uint64_t *counts, int first, int stride,
                        const uint64_t *region, enum sparse_sums which, struct sparse_list to,
                        enum sparse_decision then, cudaStream_t stream)
{
  const struct call c = {.m = *m,
                         .base = base,
                         .displs = displs,
                         .counts = counts,
                         .region = region,
                         .first = first,
                         .stride = stride,
                         .which = which,
                         .to = to,
                         .then = then};
  return enqueue(stream, run_reduce, &c);
}
