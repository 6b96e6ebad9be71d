/* SPDX-License-Identifier: Apache-2.0 */
/* Every rank's list goes to everybody, who adds. The paths differ in what they offer.
 *
 * topkA      the k largest. 2 k (P-1) words per rank: simple, and the volume grows with the number
 *            of ranks
 * topkA2     the same, but only the k largest sums are the result; the entries that lose stay in
 *            the residuals
 * topkAopt   what is above a threshold, the k-th magnitude of the last exact step; in between it is
 *            used as it is, so that the number of entries drifts
 * gaussiank  what is above a threshold from the mean and the deviation of acc, as if it were
 *            normally distributed, corrected if that selects far too few or too many. No search, no
 *            sort. (Where nothing is above even the lowest corrected threshold, the k largest are
 *            offered. The published code then offers nothing, and with bounded gradients nothing in
 *            any later step.) Indices and values go in two AllGatherVs
 * gaussiankconcat  the same, both packed in one, which is the only difference; the published one
 *            packs indices as floats and so is wrong beyond 2^24 elements */
#include "handle.h"

/* 1. acc = gradient + residual; offer a list. What is offered and going to be used leaves the
 * residual. The local pass of the next step removes it, since it reads and writes the residual
 * anyway; until then it is still there. */
static ncclResult_t offer(struct sparse_allreduce_handle *h, const void *gradient, enum select how,
                          enum sparse_removal removal, cudaStream_t stream)
{
  SPARSE_TRY(select_offered(h, gradient, how, removal, stream));
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_EXCHANGE, stream));
  return h->path->is & SPARSE_VARIES ? ops_decide(&h->m, SPARSE_SEND_OFFERED, stream) : ncclSuccess;
}

/* 2. Everybody gets all lists. Index and value travel together.
 * MPI: Allgather(count), Allgatherv(values), Allgatherv(indices) -> NCCL: see exchange_gather */
static ncclResult_t gather(struct sparse_allreduce_handle *h, cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  return exchange_gather(h, m->offered, m->received, sizeof(*m->offered), false, stream);
}

/* Or two vectors of words per rank, and then pairs again, in place of the offered entries, which
 * are not needed any more. */
static ncclResult_t gather_apart(struct sparse_allreduce_handle *h, cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  const size_t half = (size_t)m->nranks * m->list_room; /* words: half of a buffer of pairs */
  const struct sparse_list lists = {m->offered, m->state->received_counts, m->nranks};
  uint32_t *indices = (uint32_t *)m->gathered, *all_indices = (uint32_t *)m->received;
  float *values = (float *)m->gathered + half, *all_values = (float *)m->received + half;
  SPARSE_TRY(ops_unzip(m, sparse_offered(m), indices, values, stream));
  SPARSE_TRY(exchange_gather(h, indices, all_indices, sizeof(*indices), false, stream));
  SPARSE_TRY(exchange_gather(h, values, all_values, sizeof(*values), true, stream));
  return ops_zip(m, all_indices, all_values, lists, stream);
}

/* 3. Add rank 0's entries, rank 1's, ...: this order on every rank, so the same bits. 4. And
 * average. */
static ncclResult_t add_and_average(struct sparse_allreduce_handle *h,
                                    const struct sparse_pair *lists, cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_REDUCE, stream));
  SPARSE_TRY(reduce_lists(m, lists, sparse_result(m), stream));
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_APPLY, stream));
  return ops_apply(m, sparse_result(m), SPARSE_THEN_NOTHING, stream);
}

ncclResult_t path_topka(struct sparse_allreduce_handle *h, const void *gradient,
                        cudaStream_t stream)
{
  SPARSE_TRY(offer(h, gradient, SELECT_K, SPARSE_REMOVE_OFFERED, stream));
  SPARSE_TRY(gather(h, stream));
  return add_and_average(h, h->m.received, stream);
}

ncclResult_t path_topka2(struct sparse_allreduce_handle *h, const void *gradient,
                         cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  SPARSE_TRY(offer(h, gradient, SELECT_K, SPARSE_REMOVE_IN_RESULT, stream));
  SPARSE_TRY(gather(h, stream));

  /* 3. Add in the same order; of the sums, the k largest are the result. 4. Their average. */
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_REDUCE, stream));
  SPARSE_TRY(reduce_lists(m, m->received, sparse_reduced(m), stream));
  SPARSE_TRY(ops_decide(m, SPARSE_WANT_K, stream));
  SPARSE_TRY(
      keep_largest(m, sparse_reduced(m), sparse_result(m), NULL, SPARSE_THEN_NOTHING, stream));
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_APPLY, stream));
  return ops_apply(m, sparse_result(m), SPARSE_THEN_NOTHING, stream);
}

ncclResult_t path_topkaopt(struct sparse_allreduce_handle *h, const void *gradient,
                           cudaStream_t stream)
{
  const enum select how = h->now.exact_local ? SELECT_EXACT_THRESHOLD : SELECT_BY_THRESHOLD;
  SPARSE_TRY(offer(h, gradient, how, SPARSE_REMOVE_OFFERED, stream));
  SPARSE_TRY(gather(h, stream));
  return add_and_average(h, h->m.received, stream);
}

ncclResult_t path_gaussiank(struct sparse_allreduce_handle *h, const void *gradient,
                            cudaStream_t stream)
{
  SPARSE_TRY(offer(h, gradient, SELECT_GAUSSIAN, SPARSE_REMOVE_OFFERED, stream));
  SPARSE_TRY(gather_apart(h, stream));
  return add_and_average(h, h->m.offered, stream);
}

ncclResult_t path_gaussiankconcat(struct sparse_allreduce_handle *h, const void *gradient,
                                  cudaStream_t stream)
{
  SPARSE_TRY(offer(h, gradient, SELECT_GAUSSIAN, SPARSE_REMOVE_OFFERED, stream));
  SPARSE_TRY(gather(h, stream));
  return add_and_average(h, h->m.received, stream);
}
