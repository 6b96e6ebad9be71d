/* SPDX-License-Identifier: Apache-2.0 */
/* Two lists become one. */
#include "kernels/ops_cpu.h"

#ifdef CPU_STANDIN

static void run_merge(const void *args)
{
  const struct lists *x = args;
  const uint64_t na = list_count(x->a), nb = list_count(x->b);
  uint64_t i = 0, j = 0, count = 0;
  while (i < na || j < nb) {
    struct sparse_pair pair;
    if (j == nb || (i < na && x->a.pairs[i].index < x->b.pairs[j].index)) {
      pair = x->a.pairs[i++];
    } else if (i == na || x->b.pairs[j].index < x->a.pairs[i].index) {
      pair = x->b.pairs[j++];
    } else {
      pair = x->a.pairs[i++];
      pair.value = one_nan(pair.value + x->b.pairs[j++].value);
    }
    x->to.pairs[count++] = pair;
  }
  *x->to.counts = count;
}

ncclResult_t ops_merge(const struct sparse_memory *m, struct sparse_list a, struct sparse_list b,
                       struct sparse_list to, cudaStream_t stream)
{
  const struct lists x = {.m = *m, .a = a, .b = b, .to = to};
  return twin_launch(stream, run_merge, &x, sizeof(x));
}

#endif
