/* SPDX-License-Identifier: Apache-2.0 */
/* Local selection: which elements are candidates, where to look for those that are offered, and
 * which they are. */
#ifndef SELECTION_H
#define SELECTION_H

#include "decide/decisions.h"
#include "decide/magnitude.h"

/* The levels, and the limit, by which a local pass knows its candidates; returns how many levels.
 */
SPARSE_DEVICE int sparse_first_levels(const struct sparse_memory *m,
                                      enum sparse_candidates candidates, sparse_level_t *levels,
                                      sparse_level_t *limit)
{
  const struct sparse_state *s = m->state;
  int nlevels = 1;
  double threshold = s->local_threshold;
  switch (candidates) {
  case SPARSE_ABOVE_GUESS:
    levels[0] = s->guess;
    *limit = SPARSE_NAN_LEVEL;
    return nlevels;
  case SPARSE_FINITE_ABOVE_GUESS:
    levels[0] = s->guess;
    *limit = SPARSE_INFINITY_LEVEL;
    return nlevels;
  case SPARSE_ABOVE_THRESHOLD:
  case SPARSE_ABOVE_THRESHOLDS:
    if (candidates == SPARSE_ABOVE_THRESHOLDS) nlevels += m->constants.raise_steps;
    for (int j = 0; j < nlevels; j++, threshold *= m->constants.raise_factor)
      levels[j] = sparse_level(threshold);
    *limit = SPARSE_INFINITY_LEVEL;
    return nlevels;
  default:
    for (int j = 0; j < s->nlevels; j++) levels[j] = s->levels[j];
    *limit = s->limit;
    return s->nlevels;
  }
}

/* Step `number` begins. */
SPARSE_DEVICE void sparse_begin(struct sparse_state *s, uint32_t number)
{
  s->nonfinite = 0;
  s->nonfinite_from = 0;
  s->overflowed = 0;
  s->unoffered = 0;
  s->round = 0;
  s->number = number;
}

/* What a local pass begins with; the kernel does the same in pieces. */
SPARSE_DEVICE void sparse_begin_pass(const struct sparse_memory *m,
                                     enum sparse_candidates candidates)
{
  struct sparse_state *s = m->state;
  s->nlevels = sparse_first_levels(m, candidates, s->levels, &s->limit);
  if (candidates != SPARSE_ABOVE_LEVELS) sparse_begin(s, s->number + 1);
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

/* The search to come is for the `wanted` largest entries, the last of them perhaps near a level. */
SPARSE_DEVICE void sparse_want(struct sparse_state *s, uint64_t wanted, sparse_level_t near)
{
  s->wanted = wanted;
  s->near = near;
}

/* The rank's k largest instead of everything above a threshold; `from` has all that is above it. */
SPARSE_DEVICE void sparse_overflow(const struct sparse_memory *m, struct sparse_state *s,
                                   enum sparse_source from)
{
  s->overflowed = 1;
  sparse_want(s, m->k, sparse_level(s->local_threshold));
  s->search_from = s->keep_from = from;
}

/* The next exact selection looks for its candidates a little below this one's k-th magnitude:
 * closer if there were too many this time (what was not sent piles up just below the threshold),
 * further away if there were too few, even if the distance has become 0. */
SPARSE_DEVICE void sparse_set_guess(const struct sparse_memory *m, struct sparse_state *s,
                                    sparse_level_t kth)
{
  const uint64_t candidates = s->level_counts[0];
  if (s->guess >= 0 && !s->overflowed) {
    const double distance = 1 - s->guess_ratio, further = 2 * distance + 0.001;
    if (candidates < m->k)
      s->guess_ratio = 1 - (further < 0.5 ? further : 0.5);
    else if (2 * candidates > 3 * m->k)
      s->guess_ratio = 1 - (candidates > 4 * m->k ? 0.5 : 0.8) * distance;
  }
  s->guess = sparse_level((double)sparse_from_magnitude(kth) * s->guess_ratio);
}

/* Are `count` elements above a threshold enough to raise it? */
SPARSE_DEVICE bool sparse_raises(const struct sparse_memory *m, uint64_t count)
{
  const sparse_fraction_t above = m->constants.raise_above;
  return count * (uint64_t)above.den > (uint64_t)above.num * m->t;
}

/* How often `nlevels` thresholds of which the first ones select `counts` elements are raised. */
SPARSE_DEVICE int sparse_raised(const struct sparse_memory *m, int nlevels, const uint64_t *counts)
{
  int raises = 0;
  while (raises < nlevels - 1 && sparse_raises(m, counts[raises])) raises++;
  return raises;
}

/* Candidates are the elements above the threshold as it was. While it selects too many it is
 * raised, a few times at most; what lies above the raised one is chosen. Then there are four cases:
 * - Even that is more than may be offered: the k largest are searched for.
 * - Nothing was raised: the candidates are what is offered.
 * - It was raised: a filter keeps what is chosen of the candidates.
 * - already_sent: the local pass has stored the candidates in the memory of the owners of regions.
 *   They leave out what is not chosen, so there is nothing to filter. The exception is `unoffered`:
 *   more candidates than `capacity` are not sent, and one of the other cases holds. */
SPARSE_DEVICE void sparse_threshold_choose(const struct sparse_memory *m, struct sparse_state *s,
                                           bool already_sent)
{
  const int raises = sparse_raised(m, s->nlevels, s->level_counts);
  const enum sparse_source from = sparse_listed(m, s) ? SPARSE_FROM_LIST : SPARSE_FROM_RESIDUAL;
  s->search_from = s->keep_from = SPARSE_FROM_NOTHING;
  s->unoffered = already_sent && s->level_counts[0] > m->capacity;
  for (int j = 0; j < raises; j++) s->local_threshold *= m->constants.raise_factor;
  sparse_select_above(s, s->levels[raises]);
  if (s->level_counts[raises] > m->capacity)
    sparse_overflow(m, s, from);
  else if (already_sent && !s->unoffered)
    s->offered_count = s->level_counts[raises];
  else if (raises > 0)
    s->keep_from = from;
}

/* k entries: candidates will do if there are enough of them, and all are in the list. */
SPARSE_DEVICE void sparse_search_k(const struct sparse_memory *m, struct sparse_state *s)
{
  const bool enough = s->level_counts[0] >= m->k;
  sparse_want(s, m->k, enough ? s->guess : -1);
  s->search_from = s->keep_from =
      enough && sparse_listed(m, s) ? SPARSE_FROM_LIST : SPARSE_FROM_RESIDUAL;
}

/* The k-th magnitude is the threshold, and what exceeds it is chosen. */
SPARSE_DEVICE void sparse_kth_found(const struct sparse_memory *m, struct sparse_state *s)
{
  sparse_set_guess(m, s, s->selection.above);
  s->local_threshold = (double)sparse_from_magnitude(s->selection.above);
  sparse_select_above(s, s->selection.above);
}

#endif
