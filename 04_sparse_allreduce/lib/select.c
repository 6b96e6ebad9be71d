/* SPDX-License-Identifier: Apache-2.0 */
/* Local selection: what a rank offers of gradient + residual. The paths differ in how they come by
 * the threshold. Each of these reads the gradient and the residual once (ops_local_pass); further
 * passes are over the few candidates that it found, unless the guess it used was bad. `removal`
 * goes to that pass: it is what the path removes from the residual, all that is offered or what of
 * it is in the result. The pass only notes it; the next step's pass carries it out. */
#include "handle.h"

/* What a rank offers of its candidates. */
enum rule {
  EXACTLY_K,       /* the k largest; of equal ones those of lower indices */
  ABOVE_KTH,       /* those above the k-th magnitude, which becomes the local threshold */
  AS_THE_STATE_IS, /* what state->selection says; if these are too many, state->overflowed: the k
                      largest, and the local threshold is the k-th magnitude */
};

/* Brings the offered list from the candidates to what is offered. Where to look state->search_from
 * and state->keep_from say: in the list, or in all of the residual; or there is nothing to do.
 * Afterwards state->selection chooses what is in the list. */
static ncclResult_t select_offered(const struct sparse_memory *m, enum rule rule,
                                   cudaStream_t stream)
{
  struct sparse_state *s = m->state;
  const struct sparse_list offered = {m->offered, &s->offered_count, 1};
  const struct sparse_select select = {.from = offered,
                                       .to = offered,
                                       .search = &s->search_from,
                                       .keep = &s->keep_from,
                                       .selection = &s->selection,
                                       .found = rule == EXACTLY_K   ? SPARSE_K_FOUND
                                                : rule == ABOVE_KTH ? SPARSE_KTH_FOUND
                                                                    : SPARSE_OVERFLOW_FOUND};
  return ops_select(m, &select, stream);
}

/* The k-th magnitude by a radix search. Candidates are what lies above a guess from the step
 * before; if they are fewer than k, or more than the list holds, all of the residual is searched.
 */
static ncclResult_t select_exact(const struct sparse_memory *m, const void *gradient,
                                 enum sparse_removal removal, enum rule rule, cudaStream_t stream)
{
  SPARSE_TRY(ops_local_pass(m, gradient, SPARSE_ABOVE_GUESS, removal, stream));
  SPARSE_TRY(ops_decide(m, SPARSE_SEARCH_K, stream));
  return select_offered(m, rule, stream);
}

ncclResult_t select_exact_entries(struct sparse_allreduce_handle *h, const void *gradient,
                                  enum sparse_removal removal, cudaStream_t stream)
{
  return select_exact(&h->m, gradient, removal, EXACTLY_K, stream);
}

ncclResult_t select_exact_threshold(struct sparse_allreduce_handle *h, const void *gradient,
                                    enum sparse_removal removal, cudaStream_t stream)
{
  return select_exact(&h->m, gradient, removal, ABOVE_KTH, stream);
}

/* The threshold of the step before; if it may be raised, that happens a few times at most while it
 * selects too many: the local pass counts all the thresholds that may come, and what is above the
 * first of them is filtered when the decision is known, from the residual if the list could not
 * take all of it. If it still selects more than a rank may offer: the k largest. */
static ncclResult_t select_reused(const struct sparse_memory *m, const void *gradient,
                                  enum sparse_removal removal, enum sparse_candidates candidates,
                                  cudaStream_t stream)
{
  SPARSE_TRY(ops_local_pass(m, gradient, candidates, removal, stream));
  SPARSE_TRY(ops_decide(m, SPARSE_TAKE_THRESHOLD, stream));
  return select_offered(m, AS_THE_STATE_IS, stream);
}

ncclResult_t select_by_threshold(struct sparse_allreduce_handle *h, const void *gradient,
                                 enum sparse_removal removal, cudaStream_t stream)
{
  return select_reused(&h->m, gradient, removal, SPARSE_ABOVE_THRESHOLD, stream);
}

ncclResult_t select_by_raised_threshold(struct sparse_allreduce_handle *h, const void *gradient,
                                        enum sparse_removal removal, cudaStream_t stream)
{
  return select_reused(&h->m, gradient, removal, SPARSE_ABOVE_THRESHOLDS, stream);
}

/* The threshold that would select k entries if the elements were normally distributed, corrected by
 * counting, `rounds` times. A round over the candidates may have to be followed by one over
 * everything; a round that is not needed does nothing. */
static ncclResult_t select_normal(const struct sparse_memory *m, const void *gradient,
                                  enum sparse_removal removal, enum sparse_decision threshold,
                                  enum sparse_decision correct, int rounds, cudaStream_t stream)
{
  SPARSE_TRY(ops_local_pass_moments(m, gradient, SPARSE_FINITE_ABOVE_GUESS, removal, stream));
  SPARSE_TRY(ops_decide(m, threshold, stream));
  for (int round = 0; round < rounds; round++) SPARSE_TRY(ops_count_levels(m, correct, stream));
  return select_offered(m, AS_THE_STATE_IS, stream);
}

/* In small steps: one round counts a whole table of thresholds. */
ncclResult_t select_gaussian(struct sparse_allreduce_handle *h, const void *gradient,
                             enum sparse_removal removal, cudaStream_t stream)
{
  return select_normal(&h->m, gradient, removal, SPARSE_GAUSSIAN_THRESHOLD, SPARSE_GAUSSIAN_CORRECT,
                       2, stream);
}

/* Halved or raised by half, up to three times: a round for each of four thresholds, and one more.
 */
ncclResult_t select_gaussian_halving(struct sparse_allreduce_handle *h, const void *gradient,
                                     enum sparse_removal removal, cudaStream_t stream)
{
  return select_normal(&h->m, gradient, removal, SPARSE_HALVING_THRESHOLD, SPARSE_HALVING_CORRECT,
                       5, stream);
}

/* ---- operators with most of their arguments given -------------------------------------------- */

ncclResult_t keep_largest(const struct sparse_memory *m, struct sparse_list list,
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

ncclResult_t reduce_lists(const struct sparse_memory *m, const struct sparse_pair *lists,
                          struct sparse_list to, cudaStream_t stream)
{
  struct sparse_state *s = m->state;
  return ops_reduce(m, lists, s->received_displs, s->received_counts, 0, 1, s->whole,
                    SPARSE_SUMS_NONZERO, to, SPARSE_THEN_NOTHING, stream);
}

ncclResult_t reduce_region(const struct sparse_memory *m, enum sparse_sums which,
                           cudaStream_t stream)
{
  struct sparse_state *s = m->state;
  const struct sparse_list reduced = {m->reduced, &s->reduced_count, 1};
  return ops_reduce(m, m->received, s->list_displs, s->received_counts, m->rank, -1,
                    s->boundaries + m->rank, which, reduced, SPARSE_SEND_REDUCED, stream);
}
