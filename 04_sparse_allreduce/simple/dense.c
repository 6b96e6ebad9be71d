/* SPDX-License-Identifier: Apache-2.0 */
/* dense: an allreduce of everything. The residual is not used. Warm-up steps are dense, too. */
#include "simple.h"

void simple_dense(struct simple *s, const float *gradient)
{
  s->last.dense = 1;
  simple_sum(s, gradient, s->sums);
}
