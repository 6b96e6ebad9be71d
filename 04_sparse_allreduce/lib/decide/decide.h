/* SPDX-License-Identifier: Apache-2.0 */
/* The decisions of a step: arithmetic on a few numbers of the state, done by one thread on the
 * device so that no count has to travel to the host. Kernels and their CPU versions use them. */
#ifndef DECIDE_H
#define DECIDE_H

#include "decide/select.h"

/* What each of them does is at its case of sparse_decide(). */
enum sparse_decision {
  SPARSE_THEN_NOTHING,
  /* local selection, after the local pass; after counting; after a search */
  SPARSE_SEARCH_K,
  SPARSE_TAKE_THRESHOLD,
  SPARSE_OFFER_THRESHOLD,
  SPARSE_GAUSSIAN_THRESHOLD,
  SPARSE_GAUSSIAN_CORRECT,
  SPARSE_K_FOUND,
  SPARSE_KTH_FOUND,
  SPARSE_OVERFLOW_FOUND,
  /* exchanges */
  SPARSE_PROPOSE_REGIONS,
  SPARSE_PROPOSED_REGIONS,
  SPARSE_SPLIT_COUNTS,
  SPARSE_SEND_OFFERED,
  SPARSE_SEND_REDUCED,
  /* sums: their number, and which of them are the result */
  SPARSE_COUNT_GATHERED,
  SPARSE_WANT_K,
  SPARSE_WANT_K_NEAR_THRESHOLD,
  SPARSE_GLOBAL_THRESHOLD,
  SPARSE_COUNT_AND_ADAPT,
};

SPARSE_DEVICE void sparse_uniform_regions(const struct sparse_memory *m, struct sparse_state *s)
{
  for (int j = 0; j < m->nranks; j++) s->boundaries[j] = (uint64_t)j * (m->n / (size_t)m->nranks);
  s->boundaries[m->nranks] = m->n;
}

/* [0] is 1 if the list is too short for that. */
SPARSE_DEVICE void sparse_propose_regions(const struct sparse_memory *m, struct sparse_state *s)
{
  const uint64_t chunk = s->offered_count / (uint64_t)m->nranks;
  s->proposal[0] = chunk == 0;
  for (int j = 1; j < m->nranks; j++)
    s->proposal[j] = chunk == 0 ? 0 : m->offered[chunk * (uint64_t)j].index;
}

/* From the sum of all ranks' proposals. */
SPARSE_DEVICE void sparse_proposed_regions(const struct sparse_memory *m, struct sparse_state *s)
{
  sparse_uniform_regions(m, s);
  if (s->proposal[0] > 0) return; /* a rank could not propose */
  for (int j = 1; j < m->nranks; j++) s->boundaries[j] = s->proposal[j] / (uint64_t)m->nranks;
}

/* One list goes to every rank. */
SPARSE_DEVICE void sparse_send_to_all(const struct sparse_memory *m, struct sparse_state *s,
                                      uint64_t count)
{
  for (int p = 0; p < m->nranks; p++) s->send_counts[p] = count;
}

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

/* A threshold of Ok-Topk, which is exact now and then, follows how much it has selected. */
SPARSE_DEVICE void sparse_adapt(double *threshold, uint64_t count, uint64_t t, sparse_band_t band)
{
  if (count * (uint64_t)band.low.den < (uint64_t)band.low.num * t)
    *threshold /= band.low_factor;
  else if (count * (uint64_t)band.high.den > (uint64_t)band.high.num * t)
    *threshold *= band.high_factor;
}

/* Are there far more sums than are wanted? Then no factor makes the threshold right soon, and if it
 * is 0, never: as after a step without any gradient. */
SPARSE_DEVICE bool sparse_far_off(const struct sparse_memory *m, uint64_t count)
{
  return count > ((float)m->state->global_threshold == 0 ? m->k : 4 * m->k);
}

/* Of `count` sums those in the sample are evenly spaced: the place of its i-th one. */
SPARSE_DEVICE uint64_t sparse_sample_place(int i, uint64_t count)
{
  return (2 * (uint64_t)i + 1) * count / (2 * SPARSE_SAMPLE);
}

/* The one that `larger` of the sample are above, bit by bit. */
SPARSE_DEVICE sparse_level_t sparse_in_sample(const sparse_level_t *sample, uint64_t larger)
{
  sparse_level_t level = 0;
  for (sparse_level_t bit = 1 << 30; bit > 0; bit >>= 1) {
    uint64_t count = 0;
    for (int i = 0; i < SPARSE_SAMPLE; i++) count += sample[i] >= (level | bit);
    if (count > larger) level |= bit;
  }
  return level;
}

/* The sample's share of k exceeds the new threshold, or it follows the number of sums. */
SPARSE_DEVICE void sparse_global_adapt(const struct sparse_memory *m, struct sparse_state *s)
{
  const uint64_t count = s->result_count;
  if (sparse_far_off(m, count))
    s->global_threshold = (double)sparse_from_magnitude(
        sparse_in_sample(s->sample, SPARSE_SAMPLE * (uint64_t)m->k / count));
  else
    sparse_adapt(&s->global_threshold, count, m->t, m->constants.global_band);
}

SPARSE_DEVICE void sparse_local_adapt(const struct sparse_memory *m, struct sparse_state *s)
{
  sparse_adapt(&s->local_threshold, s->offered_count, m->t, m->constants.local_band);
  s->guess = sparse_level(s->local_threshold * s->guess_ratio); /* it has moved with what is left */
}

SPARSE_DEVICE void sparse_decide(enum sparse_decision what, const struct sparse_memory *m)
{
  struct sparse_state *s = m->state;
  switch (what) {
  case SPARSE_THEN_NOTHING:
    break;
  case SPARSE_SEARCH_K: /* among the candidates; or the residual, if these are too few or many */
    sparse_search_k(m, s);
    break;
  case SPARSE_TAKE_THRESHOLD: /* choose what exceeds it, raised if that is too much */
    sparse_threshold_choose(m, s, false);
    break;
  case SPARSE_OFFER_THRESHOLD: /* the same, but candidates were sent already (one-sided) */
    sparse_threshold_choose(m, s, true);
    break;
  case SPARSE_GAUSSIAN_THRESHOLD: /* and a table of levels to correct it by */
    sparse_gaussian_threshold(m, s);
    sparse_gaussian_table(m, s);
    break;
  case SPARSE_GAUSSIAN_CORRECT: /* a threshold of the table is taken, or counting goes on */
    sparse_gaussian_correct(m, s);
    break;
  case SPARSE_K_FOUND: /* the next step's guess follows from it */
    sparse_set_guess(m, s);
    break;
  case SPARSE_KTH_FOUND: /* the same; and it becomes the local threshold */
    sparse_set_guess(m, s);
    s->local_threshold = (double)sparse_from_magnitude(s->selection.above);
    sparse_select_above(s, s->selection.above);
    break;
  case SPARSE_OVERFLOW_FOUND: /* the k-th magnitude is the threshold, if that chose too many */
    if (s->overflowed) s->local_threshold = (double)sparse_from_magnitude(s->selection.above);
    break;
  case SPARSE_PROPOSE_REGIONS: /* that cut the own list evenly */
    sparse_propose_regions(m, s);
    break;
  case SPARSE_PROPOSED_REGIONS:
    sparse_proposed_regions(m, s);
    break;
  case SPARSE_SPLIT_COUNTS: /* received_counts, from the matrix of counts */
    for (int p = 0; p < m->nranks; p++) s->received_counts[p] = m->matrix[p * m->nranks + m->rank];
    break;
  case SPARSE_SEND_OFFERED:
    sparse_send_to_all(m, s, s->offered_count);
    break;
  case SPARSE_SEND_REDUCED:
    sparse_send_to_all(m, s, s->reduced_count);
    break;
  case SPARSE_COUNT_GATHERED: /* all ranks' sums have come: they are the result, or it is chosen */
    sparse_count_gathered(m, s);
    break;
  case SPARSE_WANT_K: /* largest sums, from a search that looks everywhere */
    sparse_want(s, m->k, -1, SPARSE_FROM_LIST);
    break;
  case SPARSE_WANT_K_NEAR_THRESHOLD: /* it looks near the threshold first, which has followed them.
                                        max(t, 1) is k, too */
    sparse_want(s, m->t > 1 ? m->t : 1, sparse_level(0.85 * s->global_threshold), SPARSE_FROM_LIST);
    break;
  case SPARSE_GLOBAL_THRESHOLD: /* it is the smallest sum that was chosen; the local one adapts */
    if (s->wanted > 0) s->global_threshold = (double)sparse_from_magnitude(s->global.above);
    sparse_local_adapt(m, s);
    break;
  case SPARSE_COUNT_AND_ADAPT: /* as COUNT_GATHERED; then both thresholds of Ok-Topk adapt */
    sparse_count_gathered(m, s);
    sparse_global_adapt(m, s);
    sparse_local_adapt(m, s);
    break;
  }
}

#endif
