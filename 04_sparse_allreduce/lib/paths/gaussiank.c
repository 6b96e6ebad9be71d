/* SPDX-License-Identifier: Apache-2.0 */
/* gaussiank: the threshold comes from the mean and the deviation of acc, as if it were normally
 * distributed, and is corrected if that selects far too few or too many. No search, no sort. (Where
 * nothing is above even the lowest corrected threshold, the k largest are offered. The published
 * code then offers nothing, and with bounded gradients nothing in any later step.)
 *
 * About 2 k (P-1) words per rank, in two AllGatherVs: indices, values. gaussiankconcat packs both
 * in one, which is the only difference; the published one packs indices as floats and so is wrong
 * beyond 2^24 elements. */
#include "handle.h"

/* 2. Everybody gets two vectors of words per rank, then pairs again, in place of the offered
 * entries, which are not needed any more.
 * MPI: Allgather(count), Allgatherv(indices), Allgatherv(values) -> NCCL: see exchange_gather */
static ncclResult_t gather_apart(struct sparse_allreduce_handle *h, cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  struct sparse_state *s = m->state;
  const size_t half = (size_t)m->nranks * m->list_room; /* words: half of a buffer of pairs */
  const struct sparse_list lists = {m->offered, s->received_counts, m->nranks};
  uint32_t *indices = (uint32_t *)m->gathered, *all_indices = (uint32_t *)m->received;
  float *values = (float *)m->gathered + half, *all_values = (float *)m->received + half;
  SPARSE_TRY(ops_unzip(m, sparse_offered(m), indices, values, stream));
  SPARSE_TRY(
      exchange_gather(h, indices, all_indices, sizeof(*indices), SPARSE_COUNTS_UNKNOWN, stream));
  SPARSE_TRY(
      exchange_gather(h, values, all_values, sizeof(*values), SPARSE_COUNTS_AS_BEFORE, stream));
  return ops_zip(m, all_indices, all_values, lists, stream);
}

static ncclResult_t gaussiank(struct sparse_allreduce_handle *h, const void *gradient, bool packed,
                              cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;

  /* 1. acc = gradient + residual; offer what is above the Gaussian threshold. All of it leaves the
   * residual. */
  SPARSE_TRY(select_offered(h, gradient, SELECT_GAUSSIAN, SPARSE_REMOVE_OFFERED, stream));

  /* 2. MPI: Allgather(count), Allgatherv(packed) -> NCCL: see exchange_gather */
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_EXCHANGE, stream));
  SPARSE_TRY(ops_decide(m, SPARSE_SEND_OFFERED, stream));
  SPARSE_TRY(packed ? exchange_gather(h, m->offered, m->received, sizeof(*m->offered),
                                      SPARSE_COUNTS_UNKNOWN, stream)
                    : gather_apart(h, stream));

  /* 3. Add rank 0's entries, rank 1's, ... 4. and average. */
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_REDUCE, stream));
  SPARSE_TRY(reduce_lists(m, packed ? m->received : m->offered, sparse_result(m), stream));
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_APPLY, stream));
  return ops_apply(m, sparse_result(m), stream);
}

ncclResult_t path_gaussiank(struct sparse_allreduce_handle *h, const void *gradient,
                            cudaStream_t stream)
{
  return gaussiank(h, gradient, false, stream);
}

ncclResult_t path_gaussiankconcat(struct sparse_allreduce_handle *h, const void *gradient,
                                  cudaStream_t stream)
{
  return gaussiank(h, gradient, true, stream);
}
