/* SPDX-License-Identifier: Apache-2.0 */
/* Local selection: what a rank offers of gradient + residual. The paths differ in how they come by
 * the threshold. Each of these reads the gradient and the residual once (ops_local_pass); further
 * passes are over the few candidates that it found, unless the guess it used was bad. `leaves` goes
 * to that pass: the path's word for what leaves the residual when the step is done. */
#include "sparse_internal.h"

/* A search among the candidates, or in the residual, and a filter, as far as the state asks for
 * them: what is chosen is the offered list then. */
static ncclResult_t search_and_keep(struct sparse_allreduce_handle *h, enum sparse_control found,
                                    cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  struct sparse_state *s = m->state;
  return ops_select(m, sparse_offered(m), &s->search, &s->keep, &s->selection, sparse_offered(m),
                    NULL, found, SPARSE_THEN_NOTHING, stream);
}

/* The k-th magnitude by a radix search. Candidates are what lies above a guess from the step
 * before; if they are fewer than k, or more than the list holds, all of the residual is searched.
 */
static ncclResult_t select_exact(struct sparse_allreduce_handle *h, const void *gradient,
                                 enum sparse_leaves leaves, enum sparse_control what,
                                 cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  SPARSE_TRY(ops_local_pass(m, gradient, SPARSE_PASS_SELECTS, leaves, SPARSE_EXACT_LEVELS,
                            SPARSE_EXACT_SEARCH, stream));
  return search_and_keep(h, what, stream);
}

ncclResult_t select_exact_entries(struct sparse_allreduce_handle *h, const void *gradient,
                                  enum sparse_leaves leaves, cudaStream_t stream)
{
  return select_exact(h, gradient, leaves, SPARSE_EXACT_ENTRIES, stream);
}

ncclResult_t select_exact_threshold(struct sparse_allreduce_handle *h, const void *gradient,
                                    enum sparse_leaves leaves, cudaStream_t stream)
{
  return select_exact(h, gradient, leaves, SPARSE_EXACT_THRESHOLD, stream);
}

/* The threshold of the step before. Ok-Topk raises it, a few times at most, while it selects too
 * many: the local pass counts all the thresholds that may come, and what is above the first of them
 * is filtered when the decision is known, from the residual if the list could not take all of it.
 * If the raised threshold selects more than a rank may offer: the k largest. Where the pass offers,
 * the rest is done by those who add up (ops_reduce). */
ncclResult_t select_by_threshold(struct sparse_allreduce_handle *h, const void *gradient,
                                 enum sparse_leaves leaves, cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  if (select_offers(h))
    return ops_local_pass(m, gradient, SPARSE_PASS_OFFERS, leaves, SPARSE_THRESHOLD_LEVELS,
                          SPARSE_THRESHOLD_OFFER, stream);
  SPARSE_TRY(ops_local_pass(m, gradient, SPARSE_PASS_SELECTS, leaves, SPARSE_THRESHOLD_LEVELS,
                            SPARSE_THRESHOLD_CHOOSE, stream));
  return search_and_keep(h, SPARSE_THRESHOLD_OVERFLOW, stream);
}

/* The threshold that would select k entries if the elements were normally distributed, corrected by
 * counting. The counts of a whole table of thresholds come from one round; a round over the
 * candidates may have to be followed by one over everything; GAUSSIANKSA takes up to four tables of
 * one threshold. A round that is not needed does nothing. */
ncclResult_t select_gaussian(struct sparse_allreduce_handle *h, const void *gradient,
                             enum sparse_leaves leaves, cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  const int rounds = m->config.algorithm == SPARSE_GAUSSIANKSA ? 5 : 2;
  SPARSE_TRY(ops_local_pass(m, gradient, SPARSE_PASS_MOMENTS, leaves, SPARSE_GAUSSIAN_BEGIN,
                            SPARSE_GAUSSIAN_LEVELS, stream));
  for (int round = 0; round < rounds; round++)
    SPARSE_TRY(ops_count_levels(m, SPARSE_GAUSSIAN_CHOOSE, stream));
  return search_and_keep(h, SPARSE_THRESHOLD_OVERFLOW, stream);
}
