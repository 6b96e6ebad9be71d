/* SPDX-License-Identifier: Apache-2.0 */
/* Reference: every algorithm as a sequence of what all ranks do, in the order of the paper. Before
 * a step acc and residual are the same; a step leaves result, global and the new residual. */
#include "reference_parts.h"

/* ---- ranks ------------------------------------------------------------------------------------*/

/* What a rank does on its own. */
typedef void rank_action(struct reference *ref, struct reference_rank *rank);

struct action {
  struct reference *ref;
  rank_action *act;
};

static void act_as(void *context, size_t r)
{
  const struct action *action = context;
  action->act(action->ref, &action->ref->ranks[r]);
}

/* All ranks do it, at the same time. */
static void on_all_ranks(struct reference *ref, rank_action *act)
{
  struct action action = {ref, act};
  parallel_for(ref->team, (size_t)ref->nranks, act_as, &action);
}

/* ---- local selection --------------------------------------------------------------------------*/

static void offer(struct reference *ref, struct reference_rank *rank, struct selection selection)
{
  rank->noffered = list_indices(acc_of(ref, rank), selection, rank->offered, ref->capacity);
  rank->selected_above = selection.above;
  rank->selected_tie = selection.tie;
}

static double exact_threshold(const struct reference *ref, const struct reference_rank *rank)
{
  return magnitude_value(select_largest(acc_of(ref, rank), ref->k).above);
}

static size_t count_offered(const struct reference *ref, const struct reference_rank *rank)
{
  return count_selected(acc_of(ref, rank), select_above(rank->local_threshold, ref->n));
}

static void offer_largest(struct reference *ref, struct reference_rank *rank)
{
  offer(ref, rank, select_largest(acc_of(ref, rank), ref->k));
}

/* What is above the local threshold; the k largest if that is too much. */
static void offer_above_threshold(struct reference *ref, struct reference_rank *rank)
{
  offer(ref, rank, select_above(rank->local_threshold, ref->n));
  rank->overflowed = rank->noffered > ref->capacity;
  if (rank->overflowed) {
    offer_largest(ref, rank);
    rank->local_threshold = magnitude_value(rank->selected_above);
  }
}

/* A threshold of earlier steps lets too much through when gradients grow. */
static void raise_threshold(struct reference *ref, struct reference_rank *rank)
{
  const struct sparse_constants *c = &ref->constants;
  uint64_t limit = (uint64_t)c->raise_above.num * ref->t, den = (uint64_t)c->raise_above.den;
  for (int j = 0; j < c->raise_steps && count_offered(ref, rank) * den > limit; j++)
    rank->local_threshold *= c->raise_factor;
}

static void adapt(const struct reference *ref, const sparse_band_t *band, uint64_t count,
                  double *threshold)
{
  if (count * (uint64_t)band->low.den < (uint64_t)band->low.num * ref->t)
    *threshold /= band->low_factor;
  else if (count * (uint64_t)band->high.den > (uint64_t)band->high.num * ref->t)
    *threshold *= band->high_factor;
}

/* GAUSSIANK: real gradients are not normal, so the threshold moves until about k are above it. */
static void correct_threshold(struct reference *ref, struct reference_rank *rank)
{
  const sparse_correction_t *c = &ref->constants.correction;
  uint64_t k = ref->k, count = count_offered(ref, rank);
  uint64_t below = (uint64_t)c->lower_below.num * k / (uint64_t)c->lower_below.den;
  uint64_t until = (uint64_t)c->lower_until.num * k / (uint64_t)c->lower_until.den;
  uint64_t above = (uint64_t)c->raise_above.num * k / (uint64_t)c->raise_above.den;

  if (count < below) {
    for (int j = 0; j < c->lower_steps && count < until; j++) {
      rank->local_threshold /= c->lower_factor;
      count = count_offered(ref, rank);
    }
    return;
  }
  for (int j = 0; j < c->raise_steps && count > above; j++) {
    rank->local_threshold *= c->raise_factor;
    count = count_offered(ref, rank);
  }
}

/* GAUSSIANKSA with a Gaussian threshold. */
static void correct_threshold_coarsely(struct reference *ref, struct reference_rank *rank)
{
  for (int j = 0; j < 3; j++) {
    uint64_t count = count_offered(ref, rank);
    if (3 * count < 2 * ref->k)
      rank->local_threshold *= 0.5;
    else if (3 * count > 4 * ref->k)
      rank->local_threshold *= 1.5;
    else
      break;
  }
}

static void estimate_threshold(struct reference *ref, struct reference_rank *rank)
{
  const double *given = ref->gaussian_thresholds;
  rank->gaussian_threshold = gaussian_threshold(acc_of(ref, rank), ref->config.density);
  rank->local_threshold = given ? given[rank - ref->ranks] : rank->gaussian_threshold;
}

/* ---- result and residual ----------------------------------------------------------------------*/

/* The result is zero so far. */
static void average(struct reference *ref)
{
  for (size_t e = 0; e < ref->nglobal; e++)
    ref->result[ref->global[e].index] = canonical(ref->global[e].value / (float)ref->nranks);
}

/* Residuals are acc so far. What was offered has left the rank, ... */
static void zero_offered(struct reference *ref, struct reference_rank *rank)
{
  (void)ref;
  for (size_t e = 0; e < rank->noffered; e++) rank->residual[rank->offered[e]] = 0;
}

/* ... or only what was offered and is in the result. Both lists are ascending. */
static void zero_offered_in_global(struct reference *ref, struct reference_rank *rank)
{
  for (size_t e = 0, g = 0; e < rank->noffered; e++) {
    while (g < ref->nglobal && ref->global[g].index < rank->offered[e]) g++;
    if (g < ref->nglobal && ref->global[g].index == rank->offered[e])
      rank->residual[rank->offered[e]] = 0;
  }
}

/* GTOPK: where a node discarded a partial sum of an index that won elsewhere, the ranks that had
 * contributed believe that it arrived. The node keeps it for them. */
static void keep_discarded(struct reference *ref)
{
  for (size_t d = 0; d < ref->ndiscarded; d++) {
    struct sparse_pair entry = ref->discarded[d].entry;
    float *residual = &ref->ranks[ref->discarded[d].node].residual[entry.index];
    size_t low = 0, high = ref->nglobal;
    while (low < high) {
      size_t middle = (low + high) / 2;
      if (ref->global[middle].index < entry.index)
        low = middle + 1;
      else
        high = middle;
    }
    if (low < ref->nglobal && ref->global[low].index == entry.index)
      *residual = canonical(*residual + entry.value);
  }
}

/* ---- the algorithms ---------------------------------------------------------------------------*/

static void add_gradients(void *context, size_t range)
{
  struct reference *ref = context;
  const struct range elements = range_of(ref->n, range);
  for (size_t i = elements.first; i < elements.end; i++) {
    float sum = 0;
    for (int r = 0; r < ref->nranks; r++) sum = canonical(sum + ref->gradients[r][i]);
    ref->sums[i] = sum;
    ref->result[i] = canonical(sum / (float)ref->nranks);
  }
}

void step_dense(struct reference *ref)
{
  parallel_for(ref->team, range_count(ref->n), add_gradients, ref);
  words_of_dense(ref);
}

/* Everything that is offered goes to everyone. */
static void allgather_offered(struct reference *ref)
{
  count_by_region(ref);
  sum_in_rank_order(ref);
  words_of_allgather(ref);
  take_sums(ref, NULL);
}

void step_topka(struct reference *ref)
{
  on_all_ranks(ref, offer_largest);
  allgather_offered(ref);
  if (ref->config.algorithm == SPARSE_TOPKA2 && ref->nglobal > ref->k) {
    struct selection largest = select_largest(sums_of(ref), ref->k);
    take_sums(ref, &largest);
  }
  average(ref);
  if (ref->config.algorithm == SPARSE_TOPKA2)
    on_all_ranks(ref, zero_offered_in_global);
  else
    on_all_ranks(ref, zero_offered);
}

static void select_topkaopt(struct reference *ref, struct reference_rank *rank)
{
  if (ref->exact_local) rank->local_threshold = exact_threshold(ref, rank);
  offer_above_threshold(ref, rank);
}

void step_topkaopt(struct reference *ref)
{
  on_all_ranks(ref, select_topkaopt);
  allgather_offered(ref);
  average(ref);
  on_all_ranks(ref, zero_offered);
}

void step_gtopk(struct reference *ref)
{
  on_all_ranks(ref, offer_largest);
  count_by_region(ref);
  merge_along_tree(ref);
  words_of_tree(ref);
  average(ref);
  on_all_ranks(ref, zero_offered_in_global);
  if (ref->config.gtopk_exact_residual) keep_discarded(ref);
}

static void select_oktopk(struct reference *ref, struct reference_rank *rank)
{
  if (ref->exact_local)
    rank->local_threshold = exact_threshold(ref, rank);
  else
    raise_threshold(ref, rank);
  offer_above_threshold(ref, rank);
  adapt(ref, &ref->constants.local_band, rank->noffered, &rank->local_threshold);
}

void step_oktopk(struct reference *ref)
{
  on_all_ranks(ref, select_oktopk);

  if (ref->repartitioned) balanced_regions(ref);
  count_by_region(ref);
  sum_by_owner(ref);
  words_of_split(ref);

  struct selection selection = select_above(ref->global_threshold, ref->n);
  take_sums(ref, ref->exact_global ? NULL : &selection);
  words_of_owners_gather(ref);
  if (!ref->exact_global) {
    adapt(ref, &ref->constants.global_band, ref->nglobal, &ref->global_threshold);
  } else if (ref->nglobal > 0) { /* the owners gather all sums, and everyone selects the same */
    uint64_t wanted = ref->t > 0 ? ref->t : 1;
    selection = select_largest(sums_of(ref), wanted < ref->nglobal ? wanted : ref->nglobal);
    take_sums(ref, &selection);
    ref->global_threshold = magnitude_value(selection.above);
  }
  average(ref);
  on_all_ranks(ref, zero_offered_in_global);
}

/* TOPKSA and GAUSSIANKSA after their selection. */
static void split_and_gather(struct reference *ref)
{
  count_by_region(ref);
  sum_by_owner(ref);
  words_of_split(ref);
  take_sums(ref, NULL);
  ref->fell_back =
      ref->config.algorithm == SPARSE_TOPKSA && 2 * ref->nglobal >= 2 * (uint64_t)ref->n / 3;
  if (ref->fell_back)
    words_of_dense_gather(ref);
  else
    words_of_owners_gather(ref);
  average(ref); /* also of a dense gather: sums that are zero stay zero */
  on_all_ranks(ref, zero_offered);
}

void step_topksa(struct reference *ref)
{
  on_all_ranks(ref, offer_largest);
  split_and_gather(ref);
}

static void select_gaussiank(struct reference *ref, struct reference_rank *rank)
{
  estimate_threshold(ref, rank);
  correct_threshold(ref, rank);
  offer_above_threshold(ref, rank);
}

void step_gaussiank(struct reference *ref)
{
  on_all_ranks(ref, select_gaussiank);
  allgather_offered(ref);
  average(ref);
  on_all_ranks(ref, zero_offered);
}

static void select_gaussianksa(struct reference *ref, struct reference_rank *rank)
{
  if (ref->config.gaussian_sa_threshold) {
    estimate_threshold(ref, rank);
    correct_threshold_coarsely(ref, rank);
  } else {
    rank->local_threshold = exact_threshold(ref, rank);
  }
  offer_above_threshold(ref, rank);
}

void step_gaussianksa(struct reference *ref)
{
  on_all_ranks(ref, select_gaussianksa);
  split_and_gather(ref);
}
