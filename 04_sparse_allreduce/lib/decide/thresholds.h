/* SPDX-License-Identifier: Apache-2.0 */
/* The thresholds of Ok-Topk, local and global: exact now and then, adapted in between to how much
 * they have selected. */
#ifndef THRESHOLDS_H
#define THRESHOLDS_H

#include "decide/magnitude.h"

SPARSE_DEVICE void sparse_adapt(double *threshold, uint64_t count, uint64_t t, sparse_band_t band)
{
  if (count * (uint64_t)band.low.den < (uint64_t)band.low.num * t)
    *threshold /= band.low_factor;
  else if (count * (uint64_t)band.high.den > (uint64_t)band.high.num * t)
    *threshold *= band.high_factor;
}

SPARSE_DEVICE void sparse_local_adapt(const struct sparse_memory *m, struct sparse_state *s)
{
  sparse_adapt(&s->local_threshold, s->offered_count, m->t, m->constants.local_band);
  s->guess = sparse_level(s->local_threshold * s->guess_ratio); /* it has moved with what is left */
}

/* By the number of entries in the result. */
SPARSE_DEVICE void sparse_global_adapt(const struct sparse_memory *m, struct sparse_state *s)
{
  sparse_adapt(&s->global_threshold, s->result_count - s->result_flags, m->t,
               m->constants.global_band);
}

/* A search for the `wanted` largest sums is over; the result is what it chose, without flags. */
SPARSE_DEVICE void sparse_global_found(struct sparse_state *s)
{
  if (s->wanted > 0) s->global_threshold = (double)sparse_from_magnitude(s->global.above);
  s->result_flags = 0;
}

#endif
