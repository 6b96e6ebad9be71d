/* SPDX-License-Identifier: Apache-2.0 */
/* The code of the decisions in decisions.h, compiled by nvcc into the operators' last blocks and by
 * the C compiler into their twins: one thread works on the state. */
#ifndef DECIDE_H
#define DECIDE_H

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "decide/decisions.h"
#include "state/sparse_state.h"

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

/* An element that is pending becomes zero. */
SPARSE_DEVICE void sparse_settle_element(const struct sparse_state *s, float *residual, uint32_t i)
{
  if (sparse_chosen(&s->selection, sparse_magnitude(residual[i]), i)) residual[i] = 0;
}

/* ---- selection ------------------------------------------------------------------------------- */

/* The levels, and the limit, of the local pass that `begin` begins; returns how many levels. Others
 * than the decisions for that: what is in the state. */
SPARSE_DEVICE int sparse_first_levels(const struct sparse_memory *m, enum sparse_control begin,
                                      sparse_level_t *levels, sparse_level_t *limit)
{
  const struct sparse_state *s = m->state;
  int nlevels = 1;
  double threshold = s->local_threshold;
  switch (begin) {
  case SPARSE_EXACT_LEVELS:
    levels[0] = s->guess;
    *limit = SPARSE_NAN_LEVEL;
    return nlevels;
  case SPARSE_GAUSSIAN_BEGIN:
    levels[0] = s->guess;
    *limit = SPARSE_INFINITY_LEVEL;
    return nlevels;
  case SPARSE_THRESHOLD_LEVELS:
    if (m->config.algorithm == SPARSE_OKTOPK) nlevels += m->config.raise_steps;
    for (int j = 0; j < nlevels; j++, threshold *= m->config.raise_factor)
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
  s->search = s->keep = from;
}

/* The next exact selection looks for its candidates a little below this one's k-th magnitude:
 * closer if there were too many this time (what was not sent piles up just below the threshold),
 * further away if there were too few. */
SPARSE_DEVICE void sparse_set_guess(const struct sparse_memory *m, struct sparse_state *s,
                                    sparse_level_t kth)
{
  const uint64_t candidates = s->level_counts[0];
  if (s->guess >= 0 && !s->overflowed) {
    const double distance = 1 - s->guess_ratio;
    if (candidates < m->k)
      s->guess_ratio = 1 - (distance < 0.25 ? 2 * distance : 0.5);
    else if (2 * candidates > 3 * m->k)
      s->guess_ratio = 1 - (candidates > 4 * m->k ? 0.5 : 0.8) * distance;
  }
  s->guess = sparse_level((double)sparse_from_magnitude(kth) * s->guess_ratio);
}

/* Are `count` elements above a threshold enough to raise it? */
SPARSE_DEVICE bool sparse_raises(const struct sparse_memory *m, uint64_t count)
{
  const sparse_fraction_t above = m->config.raise_above;
  return count * (uint64_t)above.den > (uint64_t)above.num * m->t;
}

/* How often `nlevels` thresholds of which the first ones select `counts` elements are raised. */
SPARSE_DEVICE int sparse_raised(const struct sparse_memory *m, int nlevels, const uint64_t *counts)
{
  int raises = 0;
  while (raises < nlevels - 1 && sparse_raises(m, counts[raises])) raises++;
  return raises;
}

/* The threshold is raised first; what it selects then has to fit. offered: the owners of regions
 * have got all candidates and leave out what is not chosen, unless the candidates were too many to
 * be offered, however few are chosen of them. */
SPARSE_DEVICE void sparse_threshold_choose(const struct sparse_memory *m, struct sparse_state *s,
                                           bool offered)
{
  const int raises = sparse_raised(m, s->nlevels, s->level_counts);
  const enum sparse_source from = sparse_listed(m, s) ? SPARSE_FROM_LIST : SPARSE_FROM_RESIDUAL;
  s->search = s->keep = SPARSE_FROM_NOTHING;
  s->unoffered = offered && s->level_counts[0] > m->capacity;
  for (int j = 0; j < raises; j++) s->local_threshold *= m->config.raise_factor;
  sparse_select_above(s, s->levels[raises]);
  if (s->level_counts[raises] > m->capacity)
    sparse_overflow(m, s, from);
  else if (offered && !s->unoffered)
    s->offered_count = s->level_counts[raises];
  else if (raises > 0)
    s->keep = from;
}

SPARSE_DEVICE void sparse_adapt(double *threshold, uint64_t count, uint64_t t, sparse_band_t band)
{
  if (count * (uint64_t)band.low.den < (uint64_t)band.low.num * t)
    *threshold /= band.low_factor;
  else if (count * (uint64_t)band.high.den > (uint64_t)band.high.num * t)
    *threshold *= band.high_factor;
}

SPARSE_DEVICE void sparse_local_adapt(const struct sparse_memory *m, struct sparse_state *s)
{
  sparse_adapt(&s->local_threshold, s->offered_count, m->t, m->config.local_band);
  s->guess = sparse_level(s->local_threshold * s->guess_ratio); /* it has moved with what is left */
}

/* ---- Gaussian thresholds ------------------------------------------------------------------------
 * GAUSSIANK lowers or raises its threshold in small steps. Their counts come from one pass
 * over a table of levels: `lower_steps` levels below the threshold it starts from, `raise_steps`
 * above it. GAUSSIANKSA halves or raises it by half, three times at most: a table of one level. */

SPARSE_DEVICE void sparse_gaussian_table(const struct sparse_memory *m, struct sparse_state *s)
{
  const sparse_correction_t *c = &m->config.correction;
  const bool sa = m->config.algorithm == SPARSE_GAUSSIANKSA;
  const int down = sa ? 0 : c->lower_steps, up = sa ? 0 : c->raise_steps;
  double threshold = s->local_threshold;
  s->first_level = down;
  s->nlevels = down + 1 + up;
  s->levels[down] = sparse_level(threshold);
  for (int j = 1; j <= down; j++) s->levels[down - j] = sparse_level(threshold /= c->lower_factor);
  threshold = s->local_threshold;
  for (int j = 1; j <= up; j++) s->levels[down + j] = sparse_level(threshold *= c->raise_factor);
}

SPARSE_DEVICE void sparse_gaussian_levels(const struct sparse_memory *m, struct sparse_state *s)
{
  s->count = sparse_listed(m, s) ? SPARSE_FROM_LIST : SPARSE_FROM_RESIDUAL;
  s->candidates = s->level_counts[0];
  s->lowest = SPARSE_NAN_LEVEL;
  s->needed = 0;
  s->gaussian_threshold = s->mean + m->z * s->deviation;
  s->local_threshold = s->gaussian_threshold;
  s->search = s->keep = SPARSE_FROM_NOTHING;
  sparse_gaussian_table(m, s);
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
  const enum sparse_source from = (enum sparse_source)s->count;
  sparse_gaussian_guess(m, s);
  s->keep = from;
  s->count = SPARSE_FROM_NOTHING;
  sparse_select_above(s, s->levels[j]);
  if (s->level_counts[j] > m->capacity) sparse_overflow(m, s, from);
}

/* False if the count of level j is not known, because the candidates in the list do not reach so
 * far down; then the next round counts all of the residual. */
SPARSE_DEVICE bool sparse_look_at(struct sparse_state *s, int j)
{
  if (s->levels[j] < s->lowest) s->lowest = s->levels[j];
  if (s->count == SPARSE_FROM_LIST && s->levels[j] < s->guess) {
    s->count = SPARSE_FROM_RESIDUAL;
    return false;
  }
  if (s->level_counts[j] > s->needed) s->needed = s->level_counts[j];
  return true;
}

SPARSE_DEVICE void sparse_gaussian_choose(const struct sparse_memory *m, struct sparse_state *s)
{
  const sparse_correction_t *c = &m->config.correction;
  if (s->count == SPARSE_FROM_NOTHING) return;
  const int down = s->first_level;
  if (!sparse_look_at(s, down)) return;
  if (m->config.algorithm == SPARSE_GAUSSIANKSA) {
    const uint64_t count = s->level_counts[0];
    const bool low = 3 * count < 2 * m->k;
    const bool high = 3 * count > 4 * m->k;
    if (s->round == 3 || (!low && !high)) {
      sparse_gaussian_found(m, s, 0);
      return;
    }
    s->round++;
    s->local_threshold *= low ? 0.5 : 1.5;
    sparse_gaussian_table(m, s);
    return;
  }
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

/* ---- regions --------------------------------------------------------------------------------- */

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

/* In front of a loop over ranks that is seldom what others wait for: it is not unrolled, since its
 * code stands in nearly all kernels. */
#ifdef __CUDA_ARCH__
#define SPARSE_ROLLED _Pragma("unroll 1")
#else
#define SPARSE_ROLLED
#endif

/* ---- flags ----------------------------------------------------------------------------------- */

/* What this rank has to report of a gradient: see state->nonfinite. 0: nothing. */
SPARSE_DEVICE uint32_t sparse_says_nonfinite(const struct sparse_memory *m,
                                             const struct sparse_state *s)
{
  return m->config.nonfinite == SPARSE_NONFINITE_ERROR ? s->nonfinite : 0;
}

/* The flag entry behind a list, if there is something to report: the bits of its value are that.
 * Fixed: there always is one, and in place of SPARSE_NO_INDEX it has the rank that it is about. */
SPARSE_DEVICE void sparse_seal(const struct sparse_memory *m, struct sparse_state *s,
                               struct sparse_pair *pairs, uint64_t count, bool fixed)
{
  const uint32_t flag = sparse_says_nonfinite(m, s);
  const uint32_t from = s->nonfinite_from ? s->nonfinite_from - 1 : (uint32_t)m->rank;
  if (flag || fixed) {
    pairs[count].index = fixed ? from : SPARSE_NO_INDEX;
    memcpy(&pairs[count].value, &flag, sizeof(flag));
    count++;
  }
  s->sealed_count = count;
  for (int p = 0; p < m->nranks; p++) s->send_counts[p] = count;
}

/* What a flag entry says of that rank's gradient goes into the state. */
SPARSE_DEVICE void sparse_collect_flag(struct sparse_state *s, const struct sparse_pair *flag,
                                       uint32_t rank)
{
  uint32_t said;
  memcpy(&said, &flag->value, sizeof(said));
  if (said == 0) return;
  s->nonfinite = said;
  s->nonfinite_from = rank + 1;
}

/* 1 if the list of rank p ends with a flag entry. Of several the one collected last counts, so
 * lists are looked at from the last rank's to the first one's. */
SPARSE_DEVICE uint64_t sparse_collect(struct sparse_state *s, const struct sparse_pair *pairs,
                                      uint64_t count, int p)
{
  if (count == 0 || pairs[count - 1].index != SPARSE_NO_INDEX) return 0;
  sparse_collect_flag(s, &pairs[count - 1], (uint32_t)p);
  return 1;
}

/* Of lists that are summed where they are: their flag entries are not counted any more. */
SPARSE_DEVICE void sparse_collect_flags(const struct sparse_memory *m, struct sparse_state *s,
                                        const struct sparse_pair *lists)
{
  SPARSE_ROLLED
  for (int p = m->nranks - 1; p >= 0; p--)
    s->received_counts[p] -=
        sparse_collect(s, lists + s->received_displs[p], s->received_counts[p], p);
}

SPARSE_DEVICE void sparse_count_result(const struct sparse_memory *m, struct sparse_state *s)
{
  uint64_t entries = 0, flags = 0;
  for (int p = 0; p < m->nranks; p++) entries += s->gathered_counts[p];
  SPARSE_ROLLED
  for (int p = m->nranks - 1; p >= 0 && !m->direct; p--) { /* direct: flags come in notes */
    const uint64_t count = s->gathered_counts[p];
    const uint64_t flag = sparse_collect(s, m->gathered + s->gathered_displs[p], count, p);
    s->sums[p] = count - flag;
    flags += flag;
  }
  s->result_count = entries;
  s->global_count = entries - flags;
}

/* The result, or the sums that it is chosen from, has come from all ranks. */
SPARSE_DEVICE void sparse_collect_result(const struct sparse_memory *m, struct sparse_state *s)
{
  sparse_count_result(m, s);
  s->gathered_total = s->global_count;
}

/* The t largest sums. The threshold has been adapted to about so many. */
SPARSE_DEVICE void sparse_global_search(const struct sparse_memory *m, struct sparse_state *s)
{
  sparse_want(s, m->t > 1 ? m->t : 1, sparse_level(0.85 * s->global_threshold));
}

/* ---- all of them ----------------------------------------------------------------------------- */

SPARSE_DEVICE void sparse_decide(enum sparse_control what, const struct sparse_memory *m)
{
  struct sparse_state *s = m->state;
  switch (what) {
  case SPARSE_THEN_NOTHING:
    break;
  case SPARSE_EXACT_LEVELS:
  case SPARSE_THRESHOLD_LEVELS:
  case SPARSE_GAUSSIAN_BEGIN:
    s->nlevels = sparse_first_levels(m, what, s->levels, &s->limit);
    sparse_begin(s, s->number + 1);
    break;
  case SPARSE_EXACT_SEARCH:
    sparse_want(s, m->k, s->level_counts[0] >= m->k ? s->guess : -1);
    s->search = s->keep =
        s->level_counts[0] >= m->k && sparse_listed(m, s) ? SPARSE_FROM_LIST : SPARSE_FROM_RESIDUAL;
    break;
  case SPARSE_EXACT_ENTRIES:
    sparse_set_guess(m, s, s->selection.above);
    break;
  case SPARSE_EXACT_THRESHOLD:
    sparse_set_guess(m, s, s->selection.above);
    s->local_threshold = (double)sparse_from_magnitude(s->selection.above);
    sparse_select_above(s, s->selection.above);
    break;
  case SPARSE_THRESHOLD_CHOOSE:
    sparse_threshold_choose(m, s, false);
    break;
  case SPARSE_THRESHOLD_OFFER:
    sparse_threshold_choose(m, s, true);
    break;
  case SPARSE_THRESHOLD_OVERFLOW:
    if (s->overflowed) s->local_threshold = (double)sparse_from_magnitude(s->selection.above);
    break;
  case SPARSE_GAUSSIAN_LEVELS:
    sparse_gaussian_levels(m, s);
    break;
  case SPARSE_GAUSSIAN_CHOOSE:
    sparse_gaussian_choose(m, s);
    break;
  case SPARSE_LOCAL_ADAPT:
    sparse_local_adapt(m, s);
    break;
  case SPARSE_PROPOSED_REGIONS:
    sparse_proposed_regions(m, s);
    break;
  case SPARSE_SPLIT_COUNTS:
    sparse_split_counts(m, s);
    break;
  case SPARSE_GLOBAL_SEARCH:
    sparse_collect_result(m, s);
    sparse_global_search(m, s);
    break;
  case SPARSE_SUMS_SEARCH:
    sparse_global_search(m, s);
    break;
  case SPARSE_GLOBAL_FOUND:
    if (s->wanted > 0) s->global_threshold = (double)sparse_from_magnitude(s->global.above);
    break;
  case SPARSE_CHOSEN_ADAPT: /* gathered_total is of all sums */
    sparse_count_result(m, s);
    sparse_local_adapt(m, s);
    break;
  case SPARSE_BOTH_ADAPT:
    sparse_collect_result(m, s);
    sparse_adapt(&s->global_threshold, s->global_count, m->t, m->config.global_band);
    sparse_local_adapt(m, s);
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
  case SPARSE_FIXED_LISTS:
    SPARSE_ROLLED
    for (int p = m->nranks - 1; p >= 0; p--) {
      const struct sparse_pair *flag;
      s->received_counts[p] = m->k;
      s->received_displs[p] = (uint64_t)p * (m->k + 1);
      flag = m->received + s->received_displs[p] + m->k;
      sparse_collect_flag(s, flag, flag->index);
    }
    break;
  case SPARSE_COLLECT_FLAGS:
    sparse_collect_flags(m, s, m->received);
    break;
  case SPARSE_COLLECT_OFFERED_FLAGS:
    sparse_collect_flags(m, s, m->offered);
    break;
  case SPARSE_COLLECT_RESULT:
    sparse_collect_result(m, s);
    break;
  case SPARSE_KEPT_SEARCH:
    sparse_want(s, m->k, -1);
    break;
  case SPARSE_KEPT_RESULT:
    s->global_count = s->result_count;
    break;
  case SPARSE_MERGE_SEARCH: /* a list of k entries and a flag entry has been received */
    s->received_counts[0] = m->k;
    sparse_want(s, m->k, -1);
    if (!s->nonfinite) sparse_collect_flag(s, m->received + m->k, m->received[m->k].index);
    break;
  case SPARSE_FIXED_RESULT:
    s->result_count = s->global_count = m->k;
    sparse_collect_flag(s, m->gathered + m->k, m->gathered[m->k].index);
    break;
  }
}

#endif
