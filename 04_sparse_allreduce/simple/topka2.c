/* SPDX-License-Identifier: Apache-2.0 */
/* topkA2: as topkA, but only the k largest sums are kept. The result stays sparse however many
 * ranks there are; what is not in it stays in the residuals. */
#include "simple.h"

void simple_topka2(struct simple *s, const float *gradient)
{
  simple_accumulate(s, gradient);
  simple_offer_largest(s);
  simple_sum_at_all(s);

  /* All ranks have the same sums, so all choose the same. */
  if (s->last.global > s->k) simple_list_sums(s, s->on->largest(s, s->sums, s->k));
  simple_sums_of_list(s);
  simple_clear_offered_in_result(s);
}
