/* SPDX-License-Identifier: Apache-2.0 */
/* gaussiankSA: equal regions, added up by their owners, one peer at a time. As published it cannot
 * run; this is what it means to do: the exact k-th magnitude as threshold (or the Gaussian one,
 * halved or raised by half up to three times), and no dense fallback.
 *
 * Between 4 k (P-1) / P and 2 (k + the sums) (P-1) / P words per rank. */
#include "sparse_internal.h"

ncclResult_t path_gaussiansa(struct sparse_allreduce_handle *h, const void *gradient,
                             cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  struct sparse_state *s = m->state;

  /* 1. acc = gradient + residual; offer what is above the threshold. All of it will be used and
   * leaves the residual. */
  select_t *select =
      m->config.gaussian_sa_threshold ? select_gaussian_halving : select_exact_threshold;
  SPARSE_TRY(select(h, gradient, SPARSE_REMOVE_OFFERED, stream));

  /* 2. Every part of the list to the owner of its region, who adds.
   * MPI: Isend/Irecv with one peer after the other -> NCCL: exchange_split, throttled to one */
  SPARSE_TRY(ops_partition(m, stream));
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_EXCHANGE, stream));
  SPARSE_TRY(exchange_split(h, 1, stream));
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_REDUCE, stream));
  SPARSE_TRY(ops_reduce_region(m, SPARSE_SUMS_NONZERO, stream));

  /* 3. The sums to everybody, 4. and average.
   * MPI: Allgather(counts), Allgatherv(packed) -> NCCL: see exchange_gather */
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_GATHER, stream));
  SPARSE_TRY(exchange_gather(h, m->reduced, m->gathered, s->gathered_counts, s->gathered_displs,
                             ncclUint64, stream));
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_APPLY, stream));
  return ops_apply_gathered(m, stream);
}
