/* SPDX-License-Identifier: Apache-2.0 */
/* topkAopt: as topkA, but a rank offers what exceeds a threshold. The threshold is the k-th
 * magnitude only in exact steps; other steps reuse it. Ranks then offer different numbers of
 * entries, so they exchange counts first. */
#include "simple.h"

void simple_topkaopt(struct simple *s, const float *gradient)
{
  simple_accumulate(s, gradient);
  s->last.exact_local = simple_is_due(s, s->constants.topkaopt_interval);
  if (s->last.exact_local) s->local_threshold = simple_kth_magnitude(s);
  simple_offer_above(s, &s->local_threshold);

  simple_sum_at_all(s);
  simple_clear_offered(s);
}
