/* SPDX-License-Identifier: Apache-2.0 */
/* The operators that are others with most of their arguments given: the forms that paths need. */
#include "ops.h"

ncclResult_t ops_select_offered(const struct sparse_memory *m, enum sparse_rule rule,
                                cudaStream_t stream)
{
  struct sparse_state *s = m->state;
  const struct sparse_list offered = {m->offered, &s->offered_count, 1};
  const struct sparse_select select = {.from = offered,
                                       .to = offered,
                                       .search = &s->search_from,
                                       .keep = &s->keep_from,
                                       .selection = &s->selection,
                                       .found = rule == SPARSE_EXACTLY_K   ? SPARSE_K_FOUND
                                                : rule == SPARSE_ABOVE_KTH ? SPARSE_KTH_FOUND
                                                                           : SPARSE_OVERFLOW_FOUND};
  return ops_select(m, &select, stream);
}

ncclResult_t ops_keep_largest(const struct sparse_memory *m, struct sparse_list list,
                              struct sparse_list to, const struct sparse_list *dropped,
                              cudaStream_t stream)
{
  struct sparse_state *s = m->state;
  struct sparse_select select = {.from = list,
                                 .to = to,
                                 .search = &s->always_list,
                                 .keep = &s->always_list,
                                 .selection = &s->global};
  if (dropped != NULL) select.dropped = *dropped;
  return ops_select(m, &select, stream);
}

ncclResult_t ops_reduce_lists(const struct sparse_memory *m, const struct sparse_pair *lists,
                              struct sparse_list to, cudaStream_t stream)
{
  struct sparse_state *s = m->state;
  return ops_reduce(m, lists, s->received_displs, s->received_counts, 0, 1, s->whole,
                    SPARSE_SUMS_NONZERO, to, SPARSE_THEN_NOTHING, stream);
}

ncclResult_t ops_reduce_region(const struct sparse_memory *m, enum sparse_sums which,
                               cudaStream_t stream)
{
  struct sparse_state *s = m->state;
  const struct sparse_list reduced = {m->reduced, &s->reduced_count, 1};
  return ops_reduce(m, m->received, s->list_displs, s->received_counts, m->rank, -1,
                    s->boundaries + m->rank, which, reduced, SPARSE_SEAL_REDUCED, stream);
}
