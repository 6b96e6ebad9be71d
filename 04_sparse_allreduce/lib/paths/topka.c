/* SPDX-License-Identifier: Apache-2.0 */
/* topkA: every rank offers its k largest entries, everybody gets all of them and adds.
 *
 * 2 k (P-1) words per rank: simple, and the volume grows with the number of ranks.
 * topkA2 keeps only the k largest sums; the entries that lose stay in the residuals. */
#include "sparse_internal.h"

/* 2. The same number of entries from every rank. Index and value travel together; a flag entry
 * after them says whether the gradient was finite.
 * MPI: Allgather(values), Allgather(indices) -> NCCL: one ncclAllGather of pairs; or the
 * AlltoAllV of example 03, which reads its counts on the device */
static ncclResult_t gather(struct sparse_allreduce_handle *h, cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_EXCHANGE, stream));
  SPARSE_TRY(ops_decide(m, SPARSE_SEAL_FIXED, stream)); /* to seal: write the flag entry */
  SPARSE_TRY(exchange_gather_fixed(h, m->offered, m->received, m->k + 1, stream));
  /* to collect: read all ranks' flag entries, and say where their lists are */
  return ops_decide(m, SPARSE_COLLECT_FIXED, stream);
}

ncclResult_t path_topka(struct sparse_allreduce_handle *h, const void *gradient,
                        cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;

  /* 1. acc = gradient + residual; offer the k largest. All of them are going to be used, so they
   * leave the residual. The local pass of the next step removes them, since it reads and writes the
   * residual anyway; until then they are still there. */
  SPARSE_TRY(select_exact_entries(h, gradient, SPARSE_REMOVE_OFFERED, stream));
  SPARSE_TRY(gather(h, stream));

  /* 3. Add rank 0's entries, rank 1's, ...: this order on every rank, so the same bits. */
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_REDUCE, stream));
  SPARSE_TRY(ops_reduce_lists(m, m->received, sparse_result(m), stream));

  /* 4. The average. */
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_APPLY, stream));
  return ops_apply(m, sparse_result(m), stream);
}

ncclResult_t path_topka2(struct sparse_allreduce_handle *h, const void *gradient,
                         cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;

  /* 1. The same; but only what of it is in the result leaves the residual. */
  SPARSE_TRY(select_exact_entries(h, gradient, SPARSE_REMOVE_IN_RESULT, stream));
  SPARSE_TRY(gather(h, stream));

  /* 3. Add in the same order; of the sums, the k largest are the result. */
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_REDUCE, stream));
  SPARSE_TRY(ops_reduce_lists(m, m->received, sparse_reduced(m), stream));
  SPARSE_TRY(ops_decide(m, SPARSE_WANT_K, stream));
  SPARSE_TRY(ops_keep_largest(m, sparse_reduced(m), sparse_result(m), NULL, stream));

  /* 4. The average of what is left. */
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_APPLY, stream));
  return ops_apply(m, sparse_result(m), stream);
}
