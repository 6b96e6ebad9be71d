/* SPDX-License-Identifier: Apache-2.0 */
/* topkA: every rank offers its k largest entries, everybody gets all of them and adds.
 *
 * 2 k (P-1) words per rank: simple, and the volume grows with the number of ranks.
 * topkA2 keeps only the k largest sums; the entries that lose stay in the residuals. */
#include "sparse_internal.h"

ncclResult_t path_topka(struct sparse_allreduce_handle *h, const void *gradient,
                        cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  struct sparse_state *s = m->state;
  const bool keep_k = m->config.algorithm == SPARSE_TOPKA2;

  /* 1. acc = gradient + residual; offer the k largest. topkA: all that is offered is going to be
   * used, so it leaves the residual. topkA2: what of it is in the result. */
  const enum sparse_leaves leaves = keep_k ? SPARSE_LEAVES_RESULT : SPARSE_LEAVES_OFFERED;
  SPARSE_TRY(select_exact_entries(h, gradient, leaves, stream));

  /* 2. The same number of entries from every rank. Index and value travel together; a flag entry
   * behind them says whether the gradient was finite.
   * MPI: Allgather(values), Allgather(indices) -> NCCL: one ncclAllGather of pairs, or one-sided */
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_EXCHANGE, stream));
  SPARSE_TRY(ops_control(m, SPARSE_SEAL_FIXED, stream));
  SPARSE_TRY(exchange_gather_fixed(h, m->offered, m->received, m->k + 1, stream));
  SPARSE_TRY(ops_control(m, SPARSE_FIXED_LISTS, stream));

  /* 3. Add rank 0's entries, rank 1's, ...: this order on every rank, so the same bits. */
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_REDUCE, stream));
  if (!keep_k) {
    SPARSE_TRY(ops_reduce(m, m->received, s->received_displs, s->received_counts, 0, 1, s->whole,
                          SPARSE_SUMS_NONZERO, sparse_result(m), SPARSE_KEPT_RESULT, stream));
  } else {
    SPARSE_TRY(ops_reduce(m, m->received, s->received_displs, s->received_counts, 0, 1, s->whole,
                          SPARSE_SUMS_NONZERO, sparse_reduced(m), SPARSE_KEPT_SEARCH, stream));
    SPARSE_TRY(ops_select(m, sparse_reduced(m), &s->always_list, &s->always_list, &s->global,
                          sparse_result(m), NULL, SPARSE_THEN_NOTHING, SPARSE_KEPT_RESULT, stream));
  }

  /* 4. The average of what is left. */
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_APPLY, stream));
  return ops_apply(m, sparse_result(m), SPARSE_THEN_NOTHING, stream);
}
