/* SPDX-License-Identifier: Apache-2.0 */
/* gaussiankSA: what exceeds the k-th magnitude, or on request a Gaussian threshold, goes to the
 * owners of regions of equal size, and all sums to everybody. */
#include "simple.h"

/* Two or three large steps towards k. */
static double corrected(struct simple *s, double threshold)
{
  for (int j = 0; j < 3; j++) {
    const uint64_t count = simple_count_above(s, threshold);
    if (3 * count < 2 * s->k)
      threshold *= 0.5;
    else if (3 * count > 4 * s->k)
      threshold *= 1.5;
    else
      break;
  }
  return threshold;
}

void simple_gaussianksa(struct simple *s, const float *gradient)
{
  simple_accumulate(s, gradient);
  if (s->config.gaussian_sa_threshold)
    s->last.local_threshold = s->local_threshold = corrected(s, simple_gaussian_threshold(s));
  else
    s->local_threshold = simple_magnitude(s->on->largest(s, s->acc, s->k).above);
  simple_offer_above(s, &s->local_threshold);
  if (s->config.gaussian_sa_threshold) s->last.local_threshold = s->local_threshold;

  simple_sum_at_owners(s);
  const uint64_t *region = s->boundaries + s->rank;
  const size_t mine = s->on->select(s, s->sums, region[0], region[1], SIMPLE_NONZERO, s->reduced);
  s->last.global = simple_gather_sums(s, mine);
  simple_scatter_global(s);
  simple_average(s);
  simple_clear_offered(s);
}
