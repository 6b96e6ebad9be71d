/* SPDX-License-Identifier: Apache-2.0 */
/* gaussiankSA: what exceeds the k-th magnitude goes to the owners of regions of equal size, and all
 * sums to every rank. */
#include "simple.h"

void simple_gaussianksa(struct simple *s, const float *gradient)
{
  simple_accumulate(s, gradient);
  s->local_threshold = simple_kth_magnitude(s);
  simple_offer_above(s, &s->local_threshold);

  simple_sum_at_owners(s);
  simple_gather_sums(s, SIMPLE_NONZERO, 0);
  simple_clear_offered(s);
}
