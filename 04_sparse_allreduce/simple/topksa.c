/* SPDX-License-Identifier: Apache-2.0 */
/* topkSA (the paper's TopkDSA): regions of equal size, whose owners add up the k largest entries of
 * all ranks. Every rank gets all sums. If lists of them would be longer than the vector, whole
 * regions travel instead. */
#include "simple.h"

void simple_topksa(struct simple *s, const float *gradient)
{
  simple_accumulate(s, gradient);
  simple_offer_largest(s);
  simple_sum_at_owners(s);

  const uint64_t mine = s->on->select(s, s->sums, SIMPLE_NONZERO, NULL);
  uint64_t counts[s->nranks], total = 0;
  simple_numbers(s, &mine, counts, 1);
  for (int r = 0; r < s->nranks; r++) total += counts[r];

  s->last.fell_back = 2 * total >= 2 * (uint64_t)s->n / 3;
  if (s->last.fell_back) {
    for (int r = 0; r < s->nranks; r++) counts[r] = s->boundaries[r + 1] - s->boundaries[r];
    simple_gather(s, s->sums + s->boundaries[s->rank], counts, 1, s->sums);
  } else {
    simple_gather_sums(s, SIMPLE_NONZERO, 0);
  }
  simple_clear_offered(s);
}
