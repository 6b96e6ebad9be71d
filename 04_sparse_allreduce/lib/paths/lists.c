/* SPDX-License-Identifier: Apache-2.0 */
/* Every rank's list goes to every rank, which adds. The paths differ in what they offer.
 *
 * topkA      the k largest: 2 k (P-1) words per rank, which grows with the number of ranks
 * topkA2     the same, but only the k largest sums are the result; the others stay in residuals
 * topkAopt   what is above a threshold, which is the k-th magnitude of the last exact step. Other
 *            steps reuse it, so that the number of entries drifts
 * gaussiank  what is above a threshold from the mean and the deviation of acc, as if acc were
 *            normally distributed, corrected by counting; or the k largest, where nothing is above
 *            even the lowest corrected one. Indices and values go in two AllGatherVs
 * gaussiankconcat  the same, both packed in one */
#include "handle.h"

ncclResult_t path_lists(struct sparse_allreduce_handle *h, const void *gradient,
                        cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  const bool chooses = h->path->is & SPARSE_CHOOSES;

  /* 1. acc = gradient + residual; offer a list. */
  SPARSE_TRY(select_offered(h, gradient, stream));

  /* 2. Every rank gets all lists.
   * MPI: Allgather(count), Allgatherv(values), Allgatherv(indices) -> NCCL: see exchange_gather */
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_EXCHANGE, stream));
  if (h->path->is & SPARSE_VARIES) SPARSE_TRY(ops_decide(m, SPARSE_SEND_OFFERED, stream));
  SPARSE_TRY(exchange_gather(h, m->offered, m->received, stream));

  /* 3. Add rank 0's entries, rank 1's, ...: this order on every rank, so the same bits. */
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_REDUCE, stream));
  SPARSE_TRY(ops_reduce(m, m->received, false, SPARSE_SUMS_NONZERO,
                        chooses ? sparse_reduced(m) : sparse_result(m), stream));
  if (chooses) { /* of the sums, the k largest are the result */
    SPARSE_TRY(ops_decide(m, SPARSE_WANT_K, stream));
    SPARSE_TRY(ops_select(m, sparse_reduced(m), sparse_result(m), &m->state->global,
                          SPARSE_THEN_NOTHING, stream));
  }

  /* 4. Average. */
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_APPLY, stream));
  return ops_apply(m, sparse_result(m), SPARSE_THEN_NOTHING, stream);
}
