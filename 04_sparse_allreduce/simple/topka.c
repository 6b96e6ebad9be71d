/* SPDX-License-Identifier: Apache-2.0 */
/* topkA: every rank offers its k largest entries, every rank gets all of them and adds.
 *
 *   rank 0  acc  . 9 . . -7 . . .      offers 1:9 4:-7  \
 *   rank 1  acc  . 5 . . . . . 6       offers 1:5 7:6    } every rank: 1:14 4:-7 7:6, then / P
 *
 * A rank sends its k entries to P - 1 others, so the volume grows with the number of ranks. */
#include "simple.h"

void simple_topka(struct simple *s, const float *gradient)
{
  const size_t k = s->k, ranks = (size_t)s->nranks;
  uint64_t counts[ranks];

  /* 1. acc = gradient + residual. The k largest entries are offered. All that is offered will be
   * in the result, so it leaves the residual; the rest stays for later steps. */
  simple_accumulate(s, gradient);
  simple_offer_largest(s);
  simple_clear_offered(s);

  /* 2. Every rank gets all lists. An entry has two words: its index and its value.
   * MPI: Allgather(indices), Allgather(values) */
  for (size_t r = 0; r < ranks; r++) counts[r] = k;
  simple_gather(s, s->offered, counts, 2, s->received);

  /* 3. Sums. Rank 0's entries first on every rank: the same order gives the same bits. */
  simple_zero(s, s->sums);
  for (size_t r = 0; r < ranks; r++)
    s->on->entries(s, SIMPLE_ADD, s->sums, s->received + r * k, k, NULL);

  /* 4. As a list, without sums that came out as 0. simple_step() takes the average of them. */
  simple_list_sums(s, SIMPLE_NONZERO);
}
