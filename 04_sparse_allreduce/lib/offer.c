/* SPDX-License-Identifier: Apache-2.0 */
/* Local selection: what a rank offers of gradient + residual. The paths differ in how they come by
 * the threshold. Each way reads the gradient and the residual once (ops_local_pass); further passes
 * are over the few candidates that it found, unless the guess it used was bad. */
#include "handle.h"

/* The local pass finds candidates, the first decision says which of them are offered, and `found`
 * is what follows from a search for the k-th magnitude, if there has to be one. Gaussian: `rounds`
 * rounds of counting, with a decision after each, correct the threshold. A round over the
 * candidates may need one over everything after it; one that is not needed does nothing. */
struct rule {
  enum sparse_candidates candidates;
  enum sparse_decision decision, found;
  int rounds;
  enum sparse_decision correct;
};

static struct rule rule_of(const struct sparse_allreduce_handle *h)
{
  const unsigned is = h->path->is;
  /* The threshold of the step before, raised a few times at most while it selects too many: the
   * local pass counts all the thresholds that may come, and what is above the first of them is
   * filtered when the decision is known, from the residual if the list could not take all of it. If
   * it still selects more than a rank may offer, the k largest are offered. */
  if (is & SPARSE_REUSES && !h->now.exact_local)
    return (struct rule){SPARSE_ABOVE_THRESHOLDS, SPARSE_TAKE_THRESHOLD, SPARSE_OVERFLOW_FOUND, 0,
                         0};

  /* The threshold that would select k entries if the elements were normally distributed, mean + z *
   * deviation, corrected by counting, in small steps: one round counts a whole table of them. */
  if (is & SPARSE_GAUSSIAN)
    return (struct rule){SPARSE_GAUSSIAN_GUESS, SPARSE_GAUSSIAN_THRESHOLD, SPARSE_OVERFLOW_FOUND, 2,
                         SPARSE_GAUSSIAN_CORRECT};

  /* What is above the k-th magnitude, which becomes the local threshold; or the k largest, lower
   * indices first among equals. Candidates are what lies above a guess from the step before; if
   * they are fewer than k, or more than the list holds, all of the residual is searched. */
  return (struct rule){SPARSE_ABOVE_GUESS, SPARSE_SEARCH_K,
                       is & (SPARSE_REUSES | SPARSE_EXACT) ? SPARSE_KTH_FOUND : SPARSE_K_FOUND, 0,
                       0};
}

ncclResult_t select_offered(struct sparse_allreduce_handle *h, const void *gradient,
                            cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  const struct rule rule = rule_of(h);
  const bool chooses = h->path->is & SPARSE_CHOOSES;
  SPARSE_TRY(ops_local_pass(m, gradient, rule.candidates,
                            chooses ? SPARSE_REMOVE_IN_RESULT : SPARSE_REMOVE_OFFERED, stream));
  SPARSE_TRY(ops_decide(m, rule.decision, stream));
  for (int round = 0; round < rule.rounds; round++)
    SPARSE_TRY(ops_count_levels(m, rule.correct, stream));
  /* The decision says whether to read the candidates, all of the residual, or nothing. Afterwards
   * state->selection chooses what is in the list. */
  return ops_select(m, sparse_offered(m), sparse_offered(m), &m->state->selection, rule.found,
                    stream);
}
