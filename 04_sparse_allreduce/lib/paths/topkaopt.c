/* SPDX-License-Identifier: Apache-2.0 */
/* topkAopt: topkA without an exact selection in every step. The threshold is the k-th magnitude of
 * the last exact step, every topkaopt_interval steps; in between it is used as it is, so that the
 * number of entries drifts.
 *
 * 2 (P-1) times the entries of a rank, about 2 k (P-1) words. */
#include "sparse_internal.h"

ncclResult_t path_topkaopt(struct sparse_allreduce_handle *h, const void *gradient,
                           cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  struct sparse_state *s = m->state;

  /* 1. acc = gradient + residual; offer what is above the threshold. All of it leaves the
   * residual. */
  select_t *select = h->now.exact_local ? select_exact_threshold : select_by_threshold;
  SPARSE_TRY(select(h, gradient, SPARSE_REMOVE_OFFERED, stream));

  /* 2. Everybody gets all of it.
   * MPI: Allgather(count), Allgatherv(indices), Allgatherv(values) -> NCCL: an AllGatherV of pairs
   * made of what NCCL has, see exchange.c */
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_EXCHANGE, stream));
  SPARSE_TRY(ops_decide(m, SPARSE_SEAL_OFFERED, stream));
  SPARSE_TRY(exchange_gather(h, m->offered, m->received, s->received_counts, s->received_displs,
                             ncclUint64, stream));
  SPARSE_TRY(ops_decide(m, SPARSE_COLLECT_FLAGS, stream));

  /* 3. Add rank 0's entries, rank 1's, ... 4. and average. */
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_REDUCE, stream));
  SPARSE_TRY(ops_reduce_lists(m, m->received, sparse_result(m), stream));
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_APPLY, stream));
  return ops_apply(m, sparse_result(m), stream);
}
