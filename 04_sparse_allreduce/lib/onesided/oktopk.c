/* SPDX-License-Identifier: Apache-2.0 */
/* oktopk where all ranks share symmetric memory and each has a process of its own: the same steps
 * as in paths/oktopk.c, the same bits, and no messages. Ranks load from and store to each other's
 * memory, and a step that reuses thresholds and regions is three kernels. */
#include "onesided/onesided.h"
#include "handle.h"

/* 1. Offer, 2. new regions now and then, 3. every part of the list to the owner of its region.
 *
 * In most steps threshold and regions are known, and one pass does all that. It does not know yet
 * whether the threshold will be raised, so it sends by the lowest one that may come, and owners
 * drop what a raised one excludes. If there are too many to send, ops_reduce_sent() chooses and
 * sends. */
static ncclResult_t select_and_send(struct sparse_allreduce_handle *h, const void *gradient,
                                    cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  if (!h->now.exact_local && !h->now.repartition)
    return ops_pass_and_send(m, gradient, SPARSE_REMOVE_IN_RESULT, stream);
  const enum select how = h->now.exact_local ? SELECT_EXACT_THRESHOLD : SELECT_BY_THRESHOLD;
  SPARSE_TRY(select_offered(h, gradient, how, SPARSE_REMOVE_IN_RESULT, stream));
  if (h->now.repartition) SPARSE_TRY(oktopk_repartition(h, stream));
  return ops_send_parts(m, stream);
}

ncclResult_t path_oktopk_onesided(struct sparse_allreduce_handle *h, const void *gradient,
                                  cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  const bool exact = h->now.exact_global;
  SPARSE_TRY(select_and_send(h, gradient, stream));

  /* Owner r waits for its lists and adds them in the order r, r-1, ... */
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_REDUCE, stream));
  SPARSE_TRY(ops_reduce_sent(m, exact ? SPARSE_SUMS_NONZERO : SPARSE_SUMS_ABOVE, stream));

  /* 4., exact: no rank has all sums, but all tell each other how many they have of which size, and
   * so find the t largest and the global threshold. */
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_GATHER, stream));
  if (exact) SPARSE_TRY(ops_select_sums(m, stream));

  /* 4. Everybody loads the owners' sums, 5. averages, and adapts the thresholds that were not found
   * in this step, and always the local one. */
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_APPLY, stream));
  return ops_apply_sums(m, exact ? SPARSE_COUNT_GATHERED : SPARSE_COUNT_AND_ADAPT, stream);
}
