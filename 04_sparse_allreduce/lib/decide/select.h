/* SPDX-License-Identifier: Apache-2.0 */
/* Local selection: which elements are candidates, where to look for those that are offered, and
 * which they are. By an exact or a reused threshold, or by a Gaussian one. Like decide.h, for
 * device code and for the CPU versions of kernels. */
#ifndef DECIDE_SELECT_H
#define DECIDE_SELECT_H

#include <string.h>

#include "state.h"

/* Which elements the local pass gathers: the candidates for what a rank offers. */
enum sparse_candidates {
  SPARSE_ABOVE_GUESS,      /* above a guess, somewhat below the threshold of the step before */
  SPARSE_GAUSSIAN_GUESS,   /* the same, without NaN; and the pass computes mean and deviation */
  SPARSE_ABOVE_THRESHOLDS, /* above the threshold, without NaN, counting by those that it may be
                              raised to */
};

/* ---- magnitudes ------------------------------------------------------------------------------ */

SPARSE_DEVICE sparse_level_t sparse_magnitude(float x)
{
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return (sparse_level_t)(bits & 0x7fffffffu);
}

SPARSE_DEVICE float sparse_from_magnitude(sparse_level_t magnitude)
{
  float x;
  memcpy(&x, &magnitude, sizeof(x));
  return x;
}

/* |x| > threshold, as the level that x has to exceed. NaN is exceeded by nothing that is not above
 * the limit, a negative threshold by everything. */
SPARSE_DEVICE sparse_level_t sparse_level(double threshold)
{
  const float rounded = (float)threshold;
  if (rounded != rounded) return SPARSE_NAN_LEVEL;
  if (rounded < 0) return -1;
  return sparse_magnitude(rounded);
}

SPARSE_DEVICE bool sparse_chosen(const struct sparse_selection *s, sparse_level_t magnitude,
                                 uint32_t index)
{
  return magnitude <= s->limit &&
         (magnitude > s->above || (magnitude == s->above && (int64_t)index <= s->tie));
}

/* An element that is to leave the residual becomes zero. */
SPARSE_DEVICE void sparse_clear_element(const struct sparse_state *s, float *residual, uint32_t i)
{
  if (sparse_chosen(&s->selection, sparse_magnitude(residual[i]), i)) residual[i] = 0;
}

/* ---- exact and reused thresholds ------------------------------------------------------------- */

/* The levels and the limit by which a local pass knows its candidates; returns how many levels. */
SPARSE_DEVICE int sparse_first_levels(const struct sparse_memory *m,
                                      enum sparse_candidates candidates, sparse_level_t *levels,
                                      sparse_level_t *limit)
{
  double threshold = m->state->kept.local_threshold;
  *limit = candidates == SPARSE_ABOVE_GUESS ? SPARSE_NAN_LEVEL : SPARSE_INFINITY_LEVEL;
  levels[0] = m->state->kept.guess;
  if (candidates != SPARSE_ABOVE_THRESHOLDS) return 1;
  for (int j = 0; j <= m->constants.raise_steps; j++, threshold *= m->constants.raise_factor)
    levels[j] = sparse_level(threshold);
  return 1 + m->constants.raise_steps;
}

/* Step `epoch` begins. */
SPARSE_DEVICE void sparse_begin(struct sparse_state *s, uint32_t epoch)
{
  s->nonfinite = 0;
  s->overflowed = 0;
  s->unsent = 0;
  s->progress.epoch = epoch;
}

SPARSE_DEVICE void sparse_select_above(struct sparse_state *s, sparse_level_t above)
{
  s->selection.above = above;
  s->selection.limit = SPARSE_INFINITY_LEVEL;
  s->selection.tie = -1;
  s->selection.take = 0;
}

/* All candidates are in the offered list: selections need not read the residual. */
SPARSE_DEVICE bool sparse_listed(const struct sparse_memory *m, const struct sparse_state *s)
{
  return s->level_counts[0] <= m->room;
}

/* Search and filter are to find the `wanted` largest of `from`, the last perhaps near a level. */
SPARSE_DEVICE void sparse_want(struct sparse_state *s, uint64_t wanted, sparse_level_t near,
                               enum sparse_source from)
{
  s->wanted = wanted;
  s->near = near;
  s->search_from = s->keep_from = from;
}

/* How many elements above a level a rank may offer. Above 0 these are k: no factor moves a
 * threshold of 0, which a step without any gradient leaves. So the next step finds one. */
SPARSE_DEVICE uint64_t sparse_most(const struct sparse_memory *m, sparse_level_t level)
{
  return level == 0 ? m->k : m->capacity;
}

/* The rank's k largest instead of everything above a threshold; `from` has all that is above it. */
SPARSE_DEVICE void sparse_overflow(const struct sparse_memory *m, struct sparse_state *s,
                                   enum sparse_source from)
{
  s->overflowed = 1;
  sparse_want(s, m->k, sparse_level(s->kept.local_threshold), from);
}

/* The next exact selection looks for its candidates a little below this one's k-th magnitude:
 * closer if there were too many this time (what was not sent piles up just below the threshold),
 * further away if there were too few, even if the distance has become 0. Too few cost passes over
 * the residual, and so do more than the list holds. */
SPARSE_DEVICE void sparse_set_guess(const struct sparse_memory *m, struct sparse_state *s)
{
  const uint64_t candidates = s->level_counts[0];
  const double distance = 1 - s->kept.guess_ratio, further = 2 * distance + 0.001;
  if (s->kept.guess >= 0 && candidates < m->k)
    s->kept.guess_ratio = 1 - (further < 0.5 ? further : 0.5);
  else if (s->kept.guess >= 0 && 2 * candidates > 3 * m->k)
    s->kept.guess_ratio = 1 - (candidates > 4 * m->k ? 0.5 : 0.8) * distance;
  s->kept.guess =
      sparse_level((double)sparse_from_magnitude(s->selection.above) * s->kept.guess_ratio);
}

/* How often `nlevels` thresholds of which the first ones select `counts` elements are raised. */
SPARSE_DEVICE int sparse_raised(const struct sparse_memory *m, int nlevels, const uint64_t *counts)
{
  const sparse_fraction_t above = m->constants.raise_above;
  const uint64_t many = (uint64_t)above.num * m->t;
  int raises = 0;
  while (raises < nlevels - 1 && counts[raises] * (uint64_t)above.den > many) raises++;
  return raises;
}

/* Candidates are the elements above the threshold as it was. While it selects too many it is
 * raised, a few times at most; what lies above the raised one is chosen. Then, if the pass has not
 * sent the candidates, there are three cases:
 * - Even that is more than may be offered: the k largest are searched for.
 * - Nothing was raised: the candidates are what is offered.
 * - It was raised: a filter keeps what is chosen of the candidates.
 * SENT_BY_PASS: the local pass has stored them in the memory of the owners of regions. Those leave
 * out what is not chosen, so there is nothing to filter. But of more candidates than sparse_most()
 * none was sent (`unsent`): then one of the three cases holds, and reduce_sent() sends. */
enum sparse_sent { SPARSE_NOT_SENT, SPARSE_SENT_BY_PASS };
SPARSE_DEVICE void sparse_threshold_choose(const struct sparse_memory *m, int raises,
                                           enum sparse_sent candidates)
{
  struct sparse_state *s = m->state;
  const enum sparse_source from = sparse_listed(m, s) ? SPARSE_FROM_LIST : SPARSE_FROM_RESIDUAL;
  s->search_from = s->keep_from = SPARSE_FROM_NOTHING;
  s->unsent =
      candidates == SPARSE_SENT_BY_PASS && s->level_counts[0] > sparse_most(m, s->levels[0]);
  for (int j = 0; j < raises; j++) s->kept.local_threshold *= m->constants.raise_factor;
  sparse_select_above(s, s->levels[raises]);
  if (s->level_counts[raises] > sparse_most(m, s->levels[raises]))
    sparse_overflow(m, s, from);
  else if (candidates == SPARSE_SENT_BY_PASS && !s->unsent)
    s->offered_count = s->level_counts[raises];
  else if (raises > 0)
    s->keep_from = from;
}

SPARSE_DEVICE void sparse_take_threshold(const struct sparse_memory *m)
{
  const struct sparse_state *s = m->state;
  sparse_threshold_choose(m, sparse_raised(m, s->nlevels, s->level_counts), SPARSE_NOT_SENT);
}

/* k entries: candidates will do if there are enough of them, and all are in the list. */
SPARSE_DEVICE void sparse_search_k(const struct sparse_memory *m)
{
  struct sparse_state *s = m->state;
  const bool enough = s->level_counts[0] >= m->k;
  sparse_want(s, m->k, enough ? s->kept.guess : -1,
              enough && sparse_listed(m, s) ? SPARSE_FROM_LIST : SPARSE_FROM_RESIDUAL);
}

/* After a search, if there was one, for the k largest. What exceeds the k-th magnitude is offered
 * by paths that have a threshold; after an overflow all k are. */
SPARSE_DEVICE void sparse_offered_found(const struct sparse_memory *m)
{
  struct sparse_state *s = m->state;
  const sparse_level_t kth = s->selection.above;
  if (s->search_from == SPARSE_FROM_NOTHING) return;
  if (!s->overflowed) sparse_set_guess(m, s);
  if (m->select == SPARSE_SELECT_K) return;
  s->kept.local_threshold = (double)sparse_from_magnitude(kth);
  if (!s->overflowed) sparse_select_above(s, kth);
}

/* ---- Gaussian thresholds ---------------------------------------------------------------------
 *
 * The threshold that would select k entries if elements were normally distributed, corrected by
 * counting: lowered or raised in small steps, whose counts come from one pass over a table of
 * levels: `down` levels below the threshold it starts from, `up` above it. */

SPARSE_DEVICE void sparse_gaussian_table(const struct sparse_memory *m, struct sparse_state *s)
{
  const sparse_correction_t *c = &m->constants.correction;
  const int down = c->lower_steps, up = c->raise_steps;
  double threshold = s->kept.local_threshold;
  s->first_level = down;
  s->nlevels = down + 1 + up;
  s->levels[down] = sparse_level(threshold);
  for (int j = 1; j <= down; j++) s->levels[down - j] = sparse_level(threshold /= c->lower_factor);
  threshold = s->kept.local_threshold;
  for (int j = 1; j <= up; j++) s->levels[down + j] = sparse_level(threshold *= c->raise_factor);
}

/* The threshold before corrections, where to count, and above which levels. */
SPARSE_DEVICE void sparse_gaussian_threshold(const struct sparse_memory *m)
{
  struct sparse_state *s = m->state;
  s->count_from = sparse_listed(m, s) ? SPARSE_FROM_LIST : SPARSE_FROM_RESIDUAL;
  s->candidates = s->level_counts[0];
  s->lowest = SPARSE_NAN_LEVEL;
  s->needed = 0;
  s->gaussian_threshold = s->mean + m->z * s->deviation;
  s->kept.local_threshold = s->gaussian_threshold;
  s->search_from = s->keep_from = SPARSE_FROM_NOTHING;
  sparse_gaussian_table(m, s);
}

/* As sparse_set_guess. But the threshold moves by a step of the table and more from one step to the
 * next, and a guess that was too high costs two passes over the residual, as one that finds more
 * candidates than the list holds: so about k candidates more than were needed. */
SPARSE_DEVICE void sparse_gaussian_guess(const struct sparse_memory *m, struct sparse_state *s)
{
  const double level = (double)sparse_from_magnitude(s->lowest < 0 ? 0 : s->lowest);
  double distance = 1 - s->kept.guess_ratio;
  if (s->kept.guess >= 0) {
    if (s->candidates > m->room)
      distance *= 0.5;
    else if (s->lowest < s->kept.guess)
      distance = 1.5 * distance + 0.005;
    else if (s->candidates < s->needed + m->k)
      distance *= 1.05;
    else if (2 * s->candidates > 2 * s->needed + 3 * m->k)
      distance *= 0.9;
  }
  s->kept.guess_ratio = distance < 0.5 ? 1 - distance : 0.5;
  s->kept.guess = sparse_level(level * s->kept.guess_ratio);
}

/* The threshold is level j of the table. */
SPARSE_DEVICE void sparse_gaussian_found(const struct sparse_memory *m, struct sparse_state *s,
                                         int j)
{
  const enum sparse_source from = (enum sparse_source)s->count_from;
  sparse_gaussian_guess(m, s);
  s->keep_from = from;
  s->count_from = SPARSE_FROM_NOTHING;
  sparse_select_above(s, s->levels[j]);
  if (s->level_counts[j] > sparse_most(m, s->levels[j])) sparse_overflow(m, s, from);
}

/* False if nothing was counted; or the count of level j is not known, because the candidates in the
 * list do not reach so far down: then the next round counts all of the residual. */
SPARSE_DEVICE bool sparse_look_at(struct sparse_state *s, int j)
{
  if (s->count_from == SPARSE_FROM_NOTHING) return false;
  if (s->levels[j] < s->lowest) s->lowest = s->levels[j];
  if (s->count_from == SPARSE_FROM_LIST && s->levels[j] < s->kept.guess) {
    s->count_from = SPARSE_FROM_RESIDUAL;
    return false;
  }
  if (s->level_counts[j] > s->needed) s->needed = s->level_counts[j];
  return true;
}

/* Lowers or raises in small steps; a table has the counts of all of them. */
SPARSE_DEVICE void sparse_gaussian_correct(const struct sparse_memory *m)
{
  struct sparse_state *s = m->state;
  const sparse_correction_t *c = &m->constants.correction;
  int j = s->first_level;
  if (!sparse_look_at(s, j)) return;
  const uint64_t below = (uint64_t)c->lower_below.num * m->k / (uint64_t)c->lower_below.den;
  const uint64_t until = (uint64_t)c->lower_until.num * m->k / (uint64_t)c->lower_until.den;
  const uint64_t above = (uint64_t)c->raise_above.num * m->k / (uint64_t)c->raise_above.den;
  const bool lower = s->level_counts[j] < below;
  const int last = lower ? 0 : s->nlevels - 1;
  double threshold = s->kept.local_threshold;
  while (j != last && (lower ? s->level_counts[j] < until : s->level_counts[j] > above)) {
    threshold = lower ? threshold / c->lower_factor : threshold * c->raise_factor;
    j += lower ? -1 : 1;
    if (!sparse_look_at(s, j)) return;
  }
  s->kept.local_threshold = threshold;
  sparse_gaussian_found(m, s, j);
  /* A bounded gradient may have nothing above even the lowest level, in all later steps, too. */
  if (s->level_counts[j] == 0 && threshold > 0) sparse_overflow(m, s, SPARSE_FROM_RESIDUAL);
}

#endif
