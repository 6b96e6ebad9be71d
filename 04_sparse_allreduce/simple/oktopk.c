/* SPDX-License-Identifier: Apache-2.0 */
/* oktopk (Ok-Topk, PPoPP'22): about 4 k (P-1) / P words per rank, however many ranks there are. An
 * entry has two words. Step 3 sends k (P-1) / P entries, all but those of the rank's own region.
 * Step 4 sends the k / P large sums of this region to P-1 ranks, which is as many.
 *
 *   rank 0  offers  . x . . x | . . x . | x . . x     1. what is above a local threshold
 *   rank 1  offers  x . . . x | . x x . | . . . x     2. regions with about as many entries each
 *                    rank 0's    rank 1's             3. the owner of a region adds its entries
 *   sums above the global threshold -> every rank     4. and sends the large sums to every rank
 *
 * A threshold is found exactly now and then. In between the old one is used again and follows the
 * number of entries that it selected. */
#include "float16.h"
#include "simple.h"

/* ---- 1. thresholds --------------------------------------------------------------------------- */

/* How far a count lies above fraction * t (below, if negative), times fraction.den: an integer. */
static int64_t excess(uint64_t count, sparse_fraction_t fraction, uint64_t t)
{
  return (int64_t)count * fraction.den - (int64_t)t * fraction.num;
}

/* The threshold of the next step: lower if too few entries were selected, higher if too many. */
static double adapted(double threshold, uint64_t selected, const sparse_band_t *band, uint64_t t)
{
  if (excess(selected, band->low, t) < 0) return threshold / band->low_factor;
  if (excess(selected, band->high, t) > 0) return threshold * band->high_factor;
  return threshold;
}

/* No factor moves a global threshold of 0, which a step without any gradient leaves. If it lets too
 * many sums through, the new one is what k sums exceed, as a sample of the list says. */
static double found_by_sample(struct simple *s)
{
  enum { SAMPLE = 256 };
  const uint64_t larger = SAMPLE * (uint64_t)s->k / s->last.global;
  float sample[SAMPLE];
  for (uint64_t i = 0; i < SAMPLE; i++) {
    struct sparse_pair sum;
    simple_copy(s, &sum, s->global + (2 * i + 1) * s->last.global / (2 * SAMPLE), sizeof sum);
    sample[i] = sum.value;
  }
  return float16_of_bits(simple_host_largest(sample, SAMPLE, larger + 1).above);
}

static double next_global_threshold(struct simple *s)
{
  if ((float)s->global_threshold == 0 && s->last.global > s->k) return found_by_sample(s);
  return adapted(s->global_threshold, s->last.global, &s->constants.global_band, s->t);
}

static void offer(struct simple *s)
{
  const struct sparse_constants *c = &s->constants;
  double threshold = s->local_threshold;
  /* What exceeds the k-th magnitude is offered: k - 1 entries at most. (topkA takes exactly k.) */
  if (s->last.exact_local) threshold = simple_kth_magnitude(s);

  /* When gradients grow, an old threshold selects too many entries. */
  for (int i = 0; i < c->raise_steps && !s->last.exact_local; i++) {
    if (excess(simple_count_above(s, threshold), c->raise_above, s->t) <= 0) break;
    threshold *= c->raise_factor;
  }
  simple_offer_above(s, &threshold); /* the k largest, if that is still too much */

  /* The threshold of the next step, after exact steps, too, and from a raised one. */
  s->local_threshold = adapted(threshold, s->last.local, &c->local_band, s->t);
}

/* ---- 2. regions ------------------------------------------------------------------------------ */

/* Every rank proposes boundaries that cut its own list into P equal parts; the mean of all
 * proposals is taken. Where a rank has fewer than P entries, regions are of equal size. */
static void new_regions(struct simple *s)
{
  const size_t P = (size_t)s->nranks;
  const uint64_t offered = s->last.local;
  uint64_t mine[P], all[P * P], sums[P];
  for (size_t j = 0; j < P; j++)
    mine[j] = offered >= P ? simple_offered_index(s, offered / P * j) : 0;
  mine[0] = offered < P; /* the first boundary is always 0: here it says "I cannot propose" */
  simple_numbers(s, mine, all, P); /* MPI: Allreduce(boundaries, SUM) */
  for (size_t j = 0; j < P; j++) {
    sums[j] = 0;
    for (size_t r = 0; r < P; r++) sums[j] += all[r * P + j];
    if (j > 0) s->boundaries[j] = sums[0] == 0 ? sums[j] / P : s->n / P * j;
  }
}

/* ---- the step -------------------------------------------------------------------------------- */

void simple_oktopk(struct simple *s, const float *gradient)
{
  const struct sparse_constants *c = &s->constants;
  if (s->steps == (uint64_t)s->config.warmup_steps) s->global_threshold = 0; /* no sums so far */
  s->last.exact_local = simple_is_due(s, c->local_interval);
  s->last.exact_global = simple_is_due(s, c->global_interval);
  s->last.repartitioned = simple_is_due(s, c->repartition_interval);

  /* 1. acc = gradient + residual; offer what is above the local threshold. */
  simple_accumulate(s, gradient);
  offer(s);

  /* 2. and 3. The owners of regions add up. */
  if (s->last.repartitioned) new_regions(s);
  simple_sum_at_owners(s);

  /* 4. Sums above the global threshold go to every rank. In an exact step all of them do; every
   * rank finds the largest, and the smallest of those is the new threshold. */
  const struct simple_rule large =
      s->last.exact_global ? SIMPLE_NONZERO : simple_above(s, s->global_threshold);
  simple_gather_sums(s, large, s->config.balance);
  if (!s->last.exact_global) {
    s->global_threshold = next_global_threshold(s);
  } else if (s->last.global > 0) {
    const size_t wanted = s->k < s->last.global ? s->k : s->last.global;
    const struct simple_rule largest = s->on->largest(s, s->sums, wanted);
    simple_list_sums(s, largest);
    simple_sums_of_list(s);
    s->global_threshold = float16_of_bits(largest.above);
  }

  /* 5. What was offered and is in the result leaves the residual. */
  simple_clear_offered_in_result(s);
}
