/* SPDX-License-Identifier: Apache-2.0 */
/* Gaussian thresholds: the one that would select k entries if elements were normally distributed,
 * corrected by counting. GAUSSIANK lowers or raises it in small steps. Their counts come from one
 * pass over a table of levels: `lower_steps` levels below the threshold it starts from,
 * `raise_steps` above it. GAUSSIANKSA halves or raises it by half, three times at most: a table of
 * one level. */
#ifndef GAUSSIAN_H
#define GAUSSIAN_H

#include "decide/selection.h"

/* A table of `down` levels below the threshold and `up` levels above it. */
SPARSE_DEVICE void sparse_gaussian_table(const struct sparse_memory *m, struct sparse_state *s,
                                         int down, int up)
{
  const sparse_correction_t *c = &m->constants.correction;
  double threshold = s->local_threshold;
  s->first_level = down;
  s->nlevels = down + 1 + up;
  s->levels[down] = sparse_level(threshold);
  for (int j = 1; j <= down; j++) s->levels[down - j] = sparse_level(threshold /= c->lower_factor);
  threshold = s->local_threshold;
  for (int j = 1; j <= up; j++) s->levels[down + j] = sparse_level(threshold *= c->raise_factor);
}

/* The threshold before corrections, and where to count. */
SPARSE_DEVICE void sparse_gaussian_threshold(const struct sparse_memory *m, struct sparse_state *s)
{
  s->count_from = sparse_listed(m, s) ? SPARSE_FROM_LIST : SPARSE_FROM_RESIDUAL;
  s->candidates = s->level_counts[0];
  s->lowest = SPARSE_NAN_LEVEL;
  s->needed = 0;
  s->gaussian_threshold = s->mean + m->z * s->deviation;
  s->local_threshold = s->gaussian_threshold;
  s->search_from = s->keep_from = SPARSE_FROM_NOTHING;
}

/* The next step looks for candidates a little below the lowest level of which the count mattered in
 * this one. Thresholds move by a step of the table and more from one step to the next, and what was
 * not sent piles up just below them, so how far below is adapted: about k candidates more than were
 * needed. A guess that was too high costs two passes over the residual, as one that finds more
 * candidates than the list holds. */
SPARSE_DEVICE void sparse_gaussian_guess(const struct sparse_memory *m, struct sparse_state *s)
{
  const double level = (double)sparse_from_magnitude(s->lowest < 0 ? 0 : s->lowest);
  double distance = 1 - s->guess_ratio;
  if (s->guess >= 0) {
    if (s->candidates > m->room)
      distance *= 0.5;
    else if (s->lowest < s->guess)
      distance = 1.5 * distance + 0.005;
    else if (s->candidates < s->needed + m->k)
      distance *= 1.05;
    else if (2 * s->candidates > 2 * s->needed + 3 * m->k)
      distance *= 0.9;
  }
  s->guess_ratio = distance < 0.5 ? 1 - distance : 0.5;
  s->guess = sparse_level(level * s->guess_ratio);
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
  if (s->level_counts[j] > m->capacity) sparse_overflow(m, s, from);
}

/* False if the count of level j is not known, because the candidates in the list do not reach so
 * far down; then the next round counts all of the residual. */
SPARSE_DEVICE bool sparse_look_at(struct sparse_state *s, int j)
{
  if (s->levels[j] < s->lowest) s->lowest = s->levels[j];
  if (s->count_from == SPARSE_FROM_LIST && s->levels[j] < s->guess) {
    s->count_from = SPARSE_FROM_RESIDUAL;
    return false;
  }
  if (s->level_counts[j] > s->needed) s->needed = s->level_counts[j];
  return true;
}

/* GAUSSIANK: lowers or raises in small steps; a table has the counts of all of them. */
SPARSE_DEVICE void sparse_gaussian_correct(const struct sparse_memory *m, struct sparse_state *s)
{
  const sparse_correction_t *c = &m->constants.correction;
  if (s->count_from == SPARSE_FROM_NOTHING) return;
  const int down = s->first_level;
  if (!sparse_look_at(s, down)) return;
  const uint64_t below = (uint64_t)c->lower_below.num * m->k / (uint64_t)c->lower_below.den;
  const uint64_t until = (uint64_t)c->lower_until.num * m->k / (uint64_t)c->lower_until.den;
  const uint64_t above = (uint64_t)c->raise_above.num * m->k / (uint64_t)c->raise_above.den;
  double threshold = s->local_threshold;
  int j = down;
  if (s->level_counts[down] < below) {
    while (down - j < c->lower_steps && s->level_counts[j] < until) {
      threshold /= c->lower_factor;
      j--;
      if (!sparse_look_at(s, j)) return;
    }
  } else {
    while (j - down < c->raise_steps && s->level_counts[j] > above) {
      threshold *= c->raise_factor;
      j++;
      if (!sparse_look_at(s, j)) return;
    }
  }
  s->local_threshold = threshold;
  sparse_gaussian_found(m, s, j);
}

/* GAUSSIANKSA: halves or raises by half, three times at most; a round of counting for each. */
SPARSE_DEVICE void sparse_halving_correct(const struct sparse_memory *m, struct sparse_state *s)
{
  if (s->count_from == SPARSE_FROM_NOTHING) return;
  if (!sparse_look_at(s, 0)) return;
  const uint64_t count = s->level_counts[0];
  const bool low = 3 * count < 2 * m->k;
  const bool high = 3 * count > 4 * m->k;
  if (s->round == 3 || (!low && !high)) {
    sparse_gaussian_found(m, s, 0);
    return;
  }
  s->round++;
  s->local_threshold *= low ? 0.5 : 1.5;
  sparse_gaussian_table(m, s, 0, 0);
}

#endif
