/* SPDX-License-Identifier: Apache-2.0 */
/* gaussiank: the threshold comes from the mean and the deviation of acc, as if it were normally
 * distributed, and is corrected if that selects far too few or too many. No search, no sort.
 *
 * About 2 k (P-1) words per rank, in two AllGatherVs: indices, values. gaussiankconcat packs both
 * in one, which is the only difference; the published one packs indices as floats and so is wrong
 * beyond 2^24 elements. */
#include "sparse_internal.h"

/* 1. acc = gradient + residual; offer what is above the Gaussian threshold. All of it leaves the
 * residual. */
static ncclResult_t offer(struct sparse_allreduce_handle *h, const void *gradient,
                          cudaStream_t stream)
{
  SPARSE_TRY(select_gaussian(h, gradient, SPARSE_REMOVE_OFFERED, stream));
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_EXCHANGE, stream));
  return ops_decide(&h->m, SPARSE_SEAL_OFFERED, stream);
}

/* 2. Everybody gets all of it: two vectors of words per rank, then pairs again. The offered entries
 * are not needed any more.
 * MPI: Allgather(count), Allgatherv(indices), Allgatherv(values) -> NCCL: see exchange_gather */
static ncclResult_t gather_apart(struct sparse_allreduce_handle *h, cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  struct sparse_state *s = m->state;
  const size_t half = (size_t)m->nranks * m->list_room; /* words: half of a buffer of pairs */
  const struct sparse_list sealed = {m->offered, &s->sealed_count, 1};
  const struct sparse_list lists = {m->offered, s->received_counts, m->nranks};
  uint32_t *indices = (uint32_t *)m->gathered, *all_indices = (uint32_t *)m->received;
  float *values = (float *)m->gathered + half, *all_values = (float *)m->received + half;
  SPARSE_TRY(ops_unzip(m, sealed, indices, values, stream));
  SPARSE_TRY(exchange_gather(h, indices, all_indices, s->received_counts, s->received_displs,
                             ncclUint32, stream));
  SPARSE_TRY(exchange_gather_again(h, values, all_values, s->received_counts, s->received_displs,
                                   ncclFloat, stream));
  return ops_zip(m, all_indices, all_values, lists, stream);
}

/* 3. Add rank 0's entries, rank 1's, ... 4. and average. */
static ncclResult_t add_and_average(struct sparse_allreduce_handle *h,
                                    const struct sparse_pair *lists, cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_REDUCE, stream));
  SPARSE_TRY(ops_reduce_lists(m, lists, sparse_result(m), stream));
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_APPLY, stream));
  return ops_apply(m, sparse_result(m), stream);
}

ncclResult_t path_gaussiank(struct sparse_allreduce_handle *h, const void *gradient,
                            cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  SPARSE_TRY(offer(h, gradient, stream));
  SPARSE_TRY(gather_apart(h, stream));
  SPARSE_TRY(ops_decide(m, SPARSE_COLLECT_OFFERED_FLAGS, stream));
  return add_and_average(h, m->offered, stream);
}

ncclResult_t path_gaussiankconcat(struct sparse_allreduce_handle *h, const void *gradient,
                                  cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  struct sparse_state *s = m->state;
  SPARSE_TRY(offer(h, gradient, stream));
  /* 2. MPI: Allgather(count), Allgatherv(packed) -> NCCL: see exchange_gather */
  SPARSE_TRY(exchange_gather(h, m->offered, m->received, s->received_counts, s->received_displs,
                             ncclUint64, stream));
  SPARSE_TRY(ops_decide(m, SPARSE_COLLECT_FLAGS, stream));
  return add_and_average(h, m->received, stream);
}
