/* SPDX-License-Identifier: Apache-2.0 */
/* Sums: the lists of all ranks are added, in a fixed order. */
#include "kernels/ops_cpu.h"

#ifdef CPU_STANDIN

struct reduce {
  struct sparse_memory m;
  bool onesided; /* the lists that are for this rank; else: */
  const struct sparse_pair *base;
  const uint64_t *displs, *counts, *region;
  int first, stride;
  enum sparse_sums which;
  struct sparse_list to;
  enum sparse_decision then;
};

/* All lists at once, from the lowest index up: no memory for the region. */
static void run_reduce(const void *args)
{
  const struct reduce *a = args;
  const int n = a->m.nranks;
  const float threshold = (float)a->m.state->global_threshold;
  if (a->onesided && a->m.state->unoffered) twin_choose_and_offer(&a->m);
  const struct sparse_pair *next[SPARSE_MAX_RANKS], *end[SPARSE_MAX_RANKS];
  uint64_t kept = 0;
  for (int p = 0; p < n; p++) {
    const struct sparse_pair *list =
        a->onesided ? twin_await_list(&a->m, p) : a->base + a->displs[p];
    const uint64_t count = a->onesided ? a->m.state->received_counts[p] : a->counts[p];
    next[p] = list + lower_bound(list, count, a->region[0]);
    end[p] = list + lower_bound(list, count, a->region[1]);
    if (end[p] < next[p]) end[p] = next[p];
  }
  for (;;) {
    uint32_t index = SPARSE_NO_INDEX;
    for (int p = 0; p < n; p++)
      if (next[p] < end[p] && next[p]->index < index) index = next[p]->index;
    if (index == SPARSE_NO_INDEX) break;
    float sum = 0.0f;
    for (int i = 0, p = a->first; i < n; i++, p = (p + a->stride + n) % n)
      if (next[p] < end[p] && next[p]->index == index) sum = one_nan(sum + next[p]++->value);
    if (a->which == SPARSE_SUMS_NONZERO ? sum != 0 : fabsf(sum) > threshold)
      a->to.pairs[kept++] = (struct sparse_pair){index, sum};
  }
  const bool late = a->onesided && a->m.state->late;
  *a->to.counts = late ? 0 : kept;
  sparse_decide(a->then, &a->m);
  if (a->onesided && !late && a->which == SPARSE_SUMS_ABOVE) twin_tell_all_of_sums(&a->m, kept);
}

ncclResult_t ops_reduce(const struct sparse_memory *m, const struct sparse_pair *base,
                        const uint64_t *displs, const uint64_t *counts, int first, int stride,
                        const uint64_t *region, enum sparse_sums which, struct sparse_list to,
                        enum sparse_decision then, cudaStream_t stream)
{
  const struct reduce a = {.m = *m,
                           .base = base,
                           .displs = displs,
                           .counts = counts,
                           .region = region,
                           .first = first,
                           .stride = stride,
                           .which = which,
                           .to = to,
                           .then = then};
  return twin_launch(stream, run_reduce, &a, sizeof(a));
}

ncclResult_t ops_reduce_sent(const struct sparse_memory *m, enum sparse_sums which,
                             cudaStream_t stream)
{
  struct sparse_state *s = m->state;
  const struct reduce a = {.m = *m,
                           .onesided = true,
                           .region = s->boundaries + m->rank,
                           .first = m->rank,
                           .stride = -1,
                           .which = which,
                           .to = {m->reduced, &s->reduced_count, 1},
                           .then = which == SPARSE_SUMS_NONZERO ? SPARSE_WANT_K_NEAR_THRESHOLD
                                                                : SPARSE_THEN_NOTHING};
  return twin_launch(stream, run_reduce, &a, sizeof(a));
}

#endif
