/* SPDX-License-Identifier: Apache-2.0 */
/* gaussiankSA: what exceeds the k-th magnitude, or on request a Gaussian threshold, goes to the
 * owners of regions of equal size, and all sums to every rank. */
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
  s->local_threshold = s->config.gaussian_sa_threshold ? corrected(s, simple_gaussian_threshold(s))
                                                       : simple_kth_magnitude(s);
  simple_offer_above(s, &s->local_threshold);

  simple_sum_at_owners(s);
  simple_gather_sums(s, SIMPLE_NONZERO, SPARSE_BALANCE_NEVER);
  simple_clear_offered(s);
}
