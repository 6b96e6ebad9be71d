/* SPDX-License-Identifier: Apache-2.0 */
/* The decisions of a step: arithmetic on a few numbers of the state, done by one thread on the
 * device so that no count has to travel to the host. nvcc compiles it into the kernels, the C
 * compiler into their CPU versions. */
#ifndef DECIDE_H
#define DECIDE_H

#include "decide/select.h"

enum sparse_decision {
  SPARSE_THEN_NOTHING,

  /* ---- statements of a path, or of what paths share: ops_decide() ---- */

  /* local selection, after the local pass */
  SPARSE_SEARCH_K,           /* search the candidates; the residual if they are too few, or too
                                many for the list */
  SPARSE_TAKE_THRESHOLD,     /* choose what exceeds the threshold, raised if that is too much */
  SPARSE_GAUSSIAN_THRESHOLD, /* mean + z * deviation, and a table of levels to correct it by */
  SPARSE_HALVING_THRESHOLD,  /* mean + z * deviation, to be halved or raised by half */

  /* thresholds of Ok-Topk */
  SPARSE_GLOBAL_THRESHOLD, /* becomes the smallest of the largest sums that a search has found */
  SPARSE_ADAPT_LOCAL,      /* the local threshold follows how many entries were offered */
  SPARSE_ADAPT_BOTH,       /* the same; and the global one follows how many are in the result */

  /* ops_keep_largest() is to keep the k largest entries. Where it looks for the k-th first only
     changes its speed. */
  SPARSE_WANT_K,                /* it looks everywhere */
  SPARSE_WANT_K_NEAR_THRESHOLD, /* it looks above 0.85 of the global threshold first, since that
                                   has followed the k-th sum from step to step */

  /* regions */
  SPARSE_PROPOSED_REGIONS, /* boundaries from the sum of all ranks' proposals */
  SPARSE_SPLIT_COUNTS,     /* received_counts from the matrix of counts */

  /* what goes to everybody, and what has come */
  SPARSE_SEND_OFFERED,   /* send_counts: the offered list */
  SPARSE_COUNT_GATHERED, /* sums have come, to `gathered`: how many they are */

  /* ---- taken at the end of kernels, whose interface says so (ops.h) ---- */

  /* ops_select_offered() has found the k-th magnitude */
  SPARSE_K_FOUND,        /* the next step's guess follows from it */
  SPARSE_KTH_FOUND,      /* the same; and it becomes the local threshold */
  SPARSE_OVERFLOW_FOUND, /* if a threshold chose too many, it becomes the local threshold */

  /* ops_count_levels() has counted */
  SPARSE_GAUSSIAN_CORRECT, /* a threshold of the table is taken, or counting goes on */
  SPARSE_HALVING_CORRECT,  /* the threshold is taken, or changed by half and counted again */

  SPARSE_SEND_REDUCED, /* ops_reduce_region(): send_counts: the reduced list */

  /* oktopk one-sided, where a launch of its own would be too slow */
  SPARSE_OFFER_THRESHOLD,   /* as TAKE_THRESHOLD, but the candidates were already sent, and their
                               owners leave out what a raised threshold does not choose */
  SPARSE_COUNT_ADAPT_LOCAL, /* counts the sums, which have come; then as ADAPT_LOCAL */
  SPARSE_COUNT_ADAPT_BOTH,  /* counts the sums, which have come; then as ADAPT_BOTH */
};

/* ---- regions and counts ---------------------------------------------------------------------- */

SPARSE_DEVICE void sparse_uniform_regions(const struct sparse_memory *m, struct sparse_state *s)
{
  for (int j = 0; j < m->nranks; j++) s->boundaries[j] = (uint64_t)j * (m->n / (size_t)m->nranks);
  s->boundaries[m->nranks] = m->n;
}

SPARSE_DEVICE void sparse_proposed_regions(const struct sparse_memory *m, struct sparse_state *s)
{
  if (m->nranks == 1 || s->proposal[0] > 0) {
    sparse_uniform_regions(m, s);
    return;
  }
  s->boundaries[0] = 0;
  for (int j = 1; j < m->nranks; j++) s->boundaries[j] = s->proposal[j] / (uint64_t)m->nranks;
  s->boundaries[m->nranks] = m->n;
}

SPARSE_DEVICE void sparse_split_counts(const struct sparse_memory *m, struct sparse_state *s)
{
  for (int p = 0; p < m->nranks; p++) s->received_counts[p] = m->matrix[p * m->nranks + m->rank];
}

/* One list goes to everybody. */
SPARSE_DEVICE void sparse_send_to_all(const struct sparse_memory *m, struct sparse_state *s,
                                      uint64_t count)
{
  for (int p = 0; p < m->nranks; p++) s->send_counts[p] = count;
}

/* The result, or the sums that it is chosen from, has come from all ranks. */
SPARSE_DEVICE void sparse_count_gathered(const struct sparse_memory *m, struct sparse_state *s)
{
  uint64_t entries = 0;
  for (int p = 0; p < m->nranks; p++) entries += s->gathered_counts[p];
  s->result_count = entries;
}

/* What this rank has to report of a gradient: see state->nonfinite. 0: nothing. */
SPARSE_DEVICE uint32_t sparse_says_nonfinite(const struct sparse_memory *m,
                                             const struct sparse_state *s)
{
  return m->config.nonfinite == SPARSE_NONFINITE_ERROR ? s->nonfinite : 0;
}

/* ---- thresholds of Ok-Topk -------------------------------------------------------------------
 *
 * Exact now and then, adapted in between to how much they have selected. */

SPARSE_DEVICE void sparse_adapt(double *threshold, uint64_t count, uint64_t t, sparse_band_t band)
{
  if (count * (uint64_t)band.low.den < (uint64_t)band.low.num * t)
    *threshold /= band.low_factor;
  else if (count * (uint64_t)band.high.den > (uint64_t)band.high.num * t)
    *threshold *= band.high_factor;
}

SPARSE_DEVICE void sparse_local_adapt(const struct sparse_memory *m, struct sparse_state *s)
{
  sparse_adapt(&s->local_threshold, s->offered_count, m->t, m->constants.local_band);
  s->guess = sparse_level(s->local_threshold * s->guess_ratio); /* it has moved with what is left */
}

/* By the number of entries in the result. */
SPARSE_DEVICE void sparse_global_adapt(const struct sparse_memory *m, struct sparse_state *s)
{
  sparse_adapt(&s->global_threshold, s->result_count, m->t, m->constants.global_band);
}

/* A search for the `wanted` largest sums is over; the result is what it chose. */
SPARSE_DEVICE void sparse_global_found(struct sparse_state *s)
{
  if (s->wanted > 0) s->global_threshold = (double)sparse_from_magnitude(s->global.above);
}

/* ---- all of them ----------------------------------------------------------------------------- */

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
  case SPARSE_SEND_OFFERED:
    sparse_send_to_all(m, s, s->offered_count);
    break;
  case SPARSE_SEND_REDUCED:
    sparse_send_to_all(m, s, s->reduced_count);
    break;
  case SPARSE_COUNT_GATHERED:
    sparse_count_gathered(m, s);
    s->gathered_total = s->result_count;
    break;
  }
}

#endif
