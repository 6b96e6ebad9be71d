/* SPDX-License-Identifier: Apache-2.0 */
/* Local selection: what a rank offers of gradient + residual. The paths differ in how they come by
 * the threshold. Each of these reads the gradient and the residual once (ops_local_pass); further
 * passes are over the few candidates that it found, unless the guess it used was bad. `removal`
 * goes to that pass: it is what the path removes from the residual, all that is offered or what of
 * it is in the result. The pass only notes it; the next step's pass carries it out. */
#include "sparse_internal.h"

/* The k-th magnitude by a radix search. Candidates are what lies above a guess from the step
 * before; if they are fewer than k, or more than the list holds, all of the residual is searched.
 */
static ncclResult_t select_exact(const struct sparse_memory *m, const void *gradient,
                                 enum sparse_removal removal, enum sparse_rule rule,
                                 cudaStream_t stream)
{
  SPARSE_TRY(ops_local_pass(m, gradient, SPARSE_ABOVE_GUESS, removal, stream));
  SPARSE_TRY(ops_decide(m, SPARSE_SEARCH_K, stream));
  return ops_select_offered(m, rule, stream);
}

ncclResult_t select_exact_entries(struct sparse_allreduce_handle *h, const void *gradient,
                                  enum sparse_removal removal, cudaStream_t stream)
{
  return select_exact(&h->m, gradient, removal, SPARSE_EXACTLY_K, stream);
}

ncclResult_t select_exact_threshold(struct sparse_allreduce_handle *h, const void *gradient,
                                    enum sparse_removal removal, cudaStream_t stream)
{
  return select_exact(&h->m, gradient, removal, SPARSE_ABOVE_KTH, stream);
}

/* The threshold of the step before. If it selects more than a rank may offer: the k largest. */
ncclResult_t select_by_threshold(struct sparse_allreduce_handle *h, const void *gradient,
                                 enum sparse_removal removal, cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  SPARSE_TRY(ops_local_pass(m, gradient, SPARSE_ABOVE_THRESHOLD, removal, stream));
  SPARSE_TRY(ops_decide(m, SPARSE_TAKE_THRESHOLD, stream));
  return ops_select_offered(m, SPARSE_AS_THE_STATE_IS, stream);
}

/* The same, but the threshold is raised, a few times at most, while it selects too many: the local
 * pass counts all the thresholds that may come, and what is above the first of them is filtered
 * when the decision is known, from the residual if the list could not take all of it. */
ncclResult_t select_by_raised_threshold(struct sparse_allreduce_handle *h, const void *gradient,
                                        enum sparse_removal removal, cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  SPARSE_TRY(ops_local_pass(m, gradient, SPARSE_ABOVE_THRESHOLDS, removal, stream));
  SPARSE_TRY(ops_decide(m, SPARSE_TAKE_THRESHOLD, stream));
  return ops_select_offered(m, SPARSE_AS_THE_STATE_IS, stream);
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
  return ops_select_offered(m, SPARSE_AS_THE_STATE_IS, stream);
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
