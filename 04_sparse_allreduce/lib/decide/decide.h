/* SPDX-License-Identifier: Apache-2.0 */
/* The decisions of a step: arithmetic on a few numbers of the state, done by one thread on the
 * device so that no count has to travel to the host. Kernels and their CPU versions use them. Those
 * whose only argument is the memory of a handle are taken by name: by a launch of their own, which
 * is called ops_... instead of sparse_... (ops.h), or at the end of an operator. */
#ifndef DECIDE_H
#define DECIDE_H

#include "decide/select.h"

/* Whether thresholds adapt to what they have selected in this step. */
enum sparse_thresholds { SPARSE_THRESHOLDS_STAY, SPARSE_THRESHOLDS_ADAPT };

SPARSE_DEVICE void sparse_uniform_regions(const struct sparse_memory *m, struct sparse_state *s)
{
  for (int j = 0; j < m->nranks; j++)
    s->kept.boundaries[j] = (uint64_t)j * (m->n / (size_t)m->nranks);
  s->kept.boundaries[m->nranks] = m->n;
}

/* ---- regions --------------------------------------------------------------------------------- */

/* That cut the own list evenly. [0] is 1 if it is too short for that. */
SPARSE_DEVICE void sparse_propose_regions(const struct sparse_memory *m)
{
  struct sparse_state *s = m->state;
  const uint64_t chunk = s->offered_count / (uint64_t)m->nranks;
  s->proposal[0] = chunk == 0;
  for (int j = 1; j < m->nranks; j++)
    s->proposal[j] = chunk == 0 ? 0 : m->offered[chunk * (uint64_t)j].index;
}

/* From the sum of all ranks' proposals. */
SPARSE_DEVICE void sparse_take_regions(const struct sparse_memory *m)
{
  struct sparse_state *s = m->state;
  sparse_uniform_regions(m, s);
  if (s->proposal[0] > 0) return; /* a rank could not propose */
  for (int j = 1; j < m->nranks; j++) s->kept.boundaries[j] = s->proposal[j] / (uint64_t)m->nranks;
}

/* ---- exchanges ------------------------------------------------------------------------------- */

/* received_counts, from the matrix of counts. */
SPARSE_DEVICE void sparse_take_counts(const struct sparse_memory *m)
{
  for (int p = 0; p < m->nranks; p++)
    m->state->received_counts[p] = m->matrix[p * m->nranks + m->rank];
}

/* A list of so many entries goes to every rank. */
SPARSE_DEVICE void sparse_send_to_all(const struct sparse_memory *m, uint64_t count)
{
  for (int p = 0; p < m->nranks; p++) m->state->send_counts[p] = count;
}

SPARSE_DEVICE void sparse_send_offered(const struct sparse_memory *m)
{
  sparse_send_to_all(m, m->state->offered_count);
}

SPARSE_DEVICE void sparse_send_reduced(const struct sparse_memory *m)
{
  sparse_send_to_all(m, m->state->reduced_count);
}

/* What this rank has to report of a gradient: see state->nonfinite. 0: nothing. */
SPARSE_DEVICE uint32_t sparse_says_nonfinite(const struct sparse_memory *m,
                                             const struct sparse_state *s)
{
  return m->config.nonfinite == SPARSE_NONFINITE_ERROR ? s->nonfinite : 0;
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* The k largest are wanted, by a search that looks everywhere; */
SPARSE_DEVICE void sparse_want_k(const struct sparse_memory *m)
{
  sparse_want(m->state, m->k, -1, SPARSE_FROM_LIST);
}

/* or near the global threshold first, which has followed them. */
SPARSE_DEVICE void sparse_want_k_near_threshold(const struct sparse_memory *m)
{
  const double near = 0.85 * m->state->kept.global_threshold;
  sparse_want(m->state, m->k, sparse_level(near), SPARSE_FROM_LIST);
}

/* A threshold of Ok-Topk, which is exact now and then, follows how much it has selected. */
SPARSE_DEVICE void sparse_adapt(double *threshold, uint64_t count, uint64_t t, sparse_band_t band)
{
  if (count * (uint64_t)band.low.den < (uint64_t)band.low.num * t)
    *threshold /= band.low_factor;
  else if (count * (uint64_t)band.high.den > (uint64_t)band.high.num * t)
    *threshold *= band.high_factor;
}

/* No factor moves a threshold of 0, which a step without any gradient leaves. If it lets too many
 * sums through, a sample of them finds another one. */
SPARSE_DEVICE bool sparse_needs_sample(const struct sparse_memory *m, uint64_t count)
{
  return (float)m->state->kept.global_threshold == 0 && count > m->k;
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
SPARSE_DEVICE void sparse_global_adapt(const struct sparse_memory *m)
{
  struct sparse_state *s = m->state;
  const uint64_t count = s->result_count;
  if (sparse_needs_sample(m, count))
    s->kept.global_threshold = (double)sparse_from_magnitude(
        sparse_in_sample(s->sample, SPARSE_SAMPLE * (uint64_t)m->k / count));
  else
    sparse_adapt(&s->kept.global_threshold, count, m->t, m->constants.global_band);
}

SPARSE_DEVICE void sparse_local_adapt(const struct sparse_memory *m)
{
  struct sparse_state *s = m->state;
  sparse_adapt(&s->kept.local_threshold, s->offered_count, m->t, m->constants.local_band);
  s->kept.guess = sparse_level(s->kept.local_threshold *
                               s->kept.guess_ratio); /* it has moved with what is left */
}

/* The wanted sums are known. The smallest is the global threshold, if there is one. */
SPARSE_DEVICE void sparse_sums_found(const struct sparse_memory *m)
{
  struct sparse_state *s = m->state;
  if (!m->adapts) return;
  if (s->wanted > 0) s->kept.global_threshold = (double)sparse_from_magnitude(s->global.above);
  sparse_local_adapt(m);
}

/* So many sums are the result, and perhaps both thresholds follow what they have selected. */
SPARSE_DEVICE void sparse_applied(const struct sparse_memory *m, uint64_t count,
                                  enum sparse_thresholds thresholds)
{
  m->state->result_count = count;
  if (thresholds == SPARSE_THRESHOLDS_STAY) return;
  sparse_global_adapt(m);
  sparse_local_adapt(m);
}

#endif
