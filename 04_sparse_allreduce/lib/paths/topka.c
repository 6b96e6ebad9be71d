/* SPDX-License-Identifier: Apache-2.0 */
/* topkA: every rank offers its k largest entries, everybody gets all of them and adds.
 *
 * 2 k (P-1) words per rank: simple, and the volume grows with the number of ranks.
 * topkA2 keeps only the k largest sums; the entries that lose stay in the residuals.
 * topkAopt has no exact selection in every step. The threshold is the k-th magnitude of the last
 * exact step; in between it is used as it is, so that the number of entries drifts. */
#include "handle.h"

/* 3. Add rank 0's entries, rank 1's, ...: this order on every rank, so the same bits. 4. And
 * average. */
static ncclResult_t add_and_average(struct sparse_allreduce_handle *h, cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_REDUCE, stream));
  SPARSE_TRY(reduce_lists(m, m->received, sparse_result(m), stream));
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_APPLY, stream));
  return ops_apply(m, sparse_result(m), stream);
}

ncclResult_t path_topka(struct sparse_allreduce_handle *h, const void *gradient,
                        cudaStream_t stream)
{
  /* 1. acc = gradient + residual; offer the k largest. All of them are going to be used, so they
   * leave the residual. The local pass of the next step removes them, since it reads and writes the
   * residual anyway; until then they are still there. */
  SPARSE_TRY(select_offered(h, gradient, SELECT_K, SPARSE_REMOVE_OFFERED, stream));

  /* 2. The same number of entries from every rank. Index and value travel together.
   * MPI: Allgather(values), Allgather(indices) -> NCCL: one ncclAllGather of pairs; or the
   * AlltoAllV of example 03, which reads its counts on the device */
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_EXCHANGE, stream));
  SPARSE_TRY(exchange_gather(h, h->m.offered, h->m.received, sizeof(*h->m.offered),
                             SPARSE_COUNTS_ARE_K, stream));
  return add_and_average(h, stream);
}

ncclResult_t path_topka2(struct sparse_allreduce_handle *h, const void *gradient,
                         cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;

  /* 1., 2. The same; but only what of it is in the result leaves the residual. */
  SPARSE_TRY(select_offered(h, gradient, SELECT_K, SPARSE_REMOVE_IN_RESULT, stream));
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_EXCHANGE, stream));
  SPARSE_TRY(exchange_gather(h, h->m.offered, h->m.received, sizeof(*h->m.offered),
                             SPARSE_COUNTS_ARE_K, stream));

  /* 3. Add in the same order; of the sums, the k largest are the result. */
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_REDUCE, stream));
  SPARSE_TRY(reduce_lists(m, m->received, sparse_reduced(m), stream));
  SPARSE_TRY(ops_decide(m, SPARSE_WANT_K, stream));
  SPARSE_TRY(keep_largest(m, sparse_reduced(m), sparse_result(m), NULL, stream));

  /* 4. The average of what is left. */
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_APPLY, stream));
  return ops_apply(m, sparse_result(m), stream);
}

ncclResult_t path_topkaopt(struct sparse_allreduce_handle *h, const void *gradient,
                           cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;

  /* 1. acc = gradient + residual; offer what is above the threshold. All of it leaves the
   * residual. */
  const enum select how = h->now.exact_local ? SELECT_EXACT_THRESHOLD : SELECT_BY_THRESHOLD;
  SPARSE_TRY(select_offered(h, gradient, how, SPARSE_REMOVE_OFFERED, stream));

  /* 2. Everybody gets all of it.
   * MPI: Allgather(count), Allgatherv(indices), Allgatherv(values) -> NCCL: an AllGatherV of pairs
   * made of what NCCL has, see exchange.c */
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_EXCHANGE, stream));
  SPARSE_TRY(ops_decide(m, SPARSE_SEND_OFFERED, stream));
  SPARSE_TRY(exchange_gather(h, m->offered, m->received, sizeof(*m->offered), SPARSE_COUNTS_UNKNOWN,
                             stream));
  return add_and_average(h, stream);
}
