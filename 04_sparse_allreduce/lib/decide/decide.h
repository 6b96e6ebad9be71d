/* SPDX-License-Identifier: Apache-2.0 */
/* What each decision does, compiled by nvcc into the operators' last blocks and by the C compiler
 * into their twins: one thread works on the state. */
#ifndef DECIDE_H
#define DECIDE_H

#include "decide/decisions.h"
#include "decide/flags.h"
#include "decide/gaussian.h"
#include "decide/regions.h"
#include "decide/selection.h"
#include "decide/thresholds.h"

SPARSE_DEVICE void sparse_decide(enum sparse_decision what, const struct sparse_memory *m)
{
  struct sparse_state *s = m->state;
  const sparse_correction_t *c = &m->constants.correction;
  switch (what) {
  case SPARSE_THEN_NOTHING:
    break;
  case SPARSE_SEARCH_K:
    sparse_search_k(m, s);
    break;
  case SPARSE_TAKE_THRESHOLD:
    sparse_threshold_choose(m, s, false);
    break;
  case SPARSE_OFFER_THRESHOLD:
    sparse_threshold_choose(m, s, true);
    break;
  case SPARSE_GAUSSIAN_THRESHOLD:
    sparse_gaussian_threshold(m, s);
    sparse_gaussian_table(m, s, c->lower_steps, c->raise_steps);
    break;
  case SPARSE_HALVING_THRESHOLD:
    sparse_gaussian_threshold(m, s);
    sparse_gaussian_table(m, s, 0, 0);
    break;
  case SPARSE_GAUSSIAN_CORRECT:
    sparse_gaussian_correct(m, s);
    break;
  case SPARSE_HALVING_CORRECT:
    sparse_halving_correct(m, s);
    break;
  case SPARSE_K_FOUND:
    sparse_set_guess(m, s, s->selection.above);
    break;
  case SPARSE_KTH_FOUND:
    sparse_kth_found(m, s);
    break;
  case SPARSE_OVERFLOW_FOUND:
    if (s->overflowed) s->local_threshold = (double)sparse_from_magnitude(s->selection.above);
    break;
  case SPARSE_GLOBAL_THRESHOLD:
    sparse_global_found(s);
    break;
  case SPARSE_ADAPT_LOCAL:
    sparse_local_adapt(m, s);
    break;
  case SPARSE_COUNT_ADAPT_LOCAL:
    sparse_count_gathered(m, s);
    sparse_local_adapt(m, s);
    break;
  case SPARSE_COUNT_ADAPT_BOTH:
    sparse_count_gathered(m, s);
    s->gathered_total = s->result_count;
    sparse_global_adapt(m, s);
    sparse_local_adapt(m, s);
    break;
  case SPARSE_ADAPT_BOTH:
    sparse_global_adapt(m, s);
    sparse_local_adapt(m, s);
    break;
  case SPARSE_WANT_K:
    sparse_want(s, m->k, -1);
    break;
  case SPARSE_WANT_K_NEAR_THRESHOLD: /* max(t, 1) is k, too */
    sparse_want(s, m->t > 1 ? m->t : 1, sparse_level(0.85 * s->global_threshold));
    break;
  case SPARSE_PROPOSED_REGIONS:
    sparse_proposed_regions(m, s);
    break;
  case SPARSE_SPLIT_COUNTS:
    sparse_split_counts(m, s);
    break;
  case SPARSE_SEAL_OFFERED:
    sparse_seal(m, s, m->offered, s->offered_count, false);
    break;
  case SPARSE_SEAL_REDUCED:
    s->announced[0] = s->reduced_count;
    s->announced[1] = s->nonfinite;
    sparse_seal(m, s, m->reduced, s->reduced_count, false);
    break;
  case SPARSE_SEAL_FIXED:
    sparse_seal(m, s, m->offered, m->k, true);
    break;
  case SPARSE_COLLECT_FIXED:
    sparse_collect_fixed(m, s);
    break;
  case SPARSE_COLLECT_FLAGS:
    sparse_collect_flags(m, s, m->received);
    break;
  case SPARSE_COLLECT_OFFERED_FLAGS:
    sparse_collect_flags(m, s, m->offered);
    break;
  case SPARSE_COLLECT_GATHERED:
    sparse_collect_gathered(m, s);
    break;
  case SPARSE_COLLECT_PEER:
    sparse_collect_peer(m, s);
    break;
  case SPARSE_COLLECT_ROOT:
    sparse_collect_root(m, s);
    break;
  }
}

#endif
