/* SPDX-License-Identifier: Apache-2.0 */
/* dense: an allreduce of everything. The residual is not used. Steps to warm up are such, too. */
#include "simple.h"

void simple_dense(struct simple *s, const float *gradient)
{
  const uint64_t ranks = (uint64_t)s->nranks;
  s->last.dense = 1;
  s->between->sum(s, gradient, s->sums);
  simple_average(s);
  s->last.words_sent = s->last.words_received = 2 * s->n * (ranks - 1) / ranks;
}
