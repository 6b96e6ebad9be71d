/* SPDX-License-Identifier: Apache-2.0 */
/* topkSA (TopkDSA): exactly k entries per rank, equal regions, each added up by its owner. There is
 * no global selection, so the sums may become so many that entries of two words are hardly less
 * than the dense vector; from n/3 sums on the regions are gathered densely.
 *
 * Between 4 k (P-1) / P and (2 k + n) (P-1) / P words per rank. */
#include "sparse_internal.h"

/* Each owner puts its sums into its region of the result; the regions go to everybody. */
static ncclResult_t gather_densely(struct sparse_allreduce_handle *h, cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  const int nranks = m->nranks;
  const uint64_t size = m->n / (size_t)nranks;
  uint64_t counts[SPARSE_MAX_RANKS], displs[SPARSE_MAX_RANKS];
  for (int r = 0; r < nranks; r++) {
    displs[r] = (uint64_t)r * size;
    counts[r] = r < nranks - 1 ? size : m->n - displs[r];
  }
  SPARSE_CUDA(
      cudaMemsetAsync(m->dense + displs[m->rank], 0, counts[m->rank] * sizeof(float), stream));
  SPARSE_TRY(ops_scatter(m, sparse_reduced(m), stream));
  SPARSE_TRY(exchange_blocks(h, m->dense, counts, displs, ncclFloat, stream));
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_APPLY, stream));
  return ops_average(m, stream);
}

ncclResult_t path_topksa(struct sparse_allreduce_handle *h, const void *gradient,
                         cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  struct sparse_state *s = m->state;

  /* 1. acc = gradient + residual; offer the k largest. All of them will be used and leave the
   * residual. */
  SPARSE_TRY(select_exact_entries(h, gradient, SPARSE_REMOVE_OFFERED, stream));

  /* 2. Every part of the list to the owner of its region, who adds. */
  SPARSE_TRY(ops_partition(m, stream));
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_EXCHANGE, stream));
  SPARSE_TRY(exchange_split(h, m->config.throttle, stream));
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_REDUCE, stream));
  SPARSE_TRY(ops_reduce_region(m, SPARSE_SUMS_NONZERO, stream));

  /* 3. Are they few enough for a sparse gather? The host has to know.
   * MPI: Allgather(counts) -> NCCL: ncclAllGather */
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_GATHER, stream));
  SPARSE_TRY(exchange_counts(h, s->announced, 2, stream));
  uint64_t total = 0;
  for (int r = 0; r < m->nranks; r++) {
    total += h->counts[2 * r];
    if (h->now.nonfinite || !h->counts[2 * r + 1])
      continue; /* a dense gather has no flag entries */
    h->now.nonfinite = (uint32_t)h->counts[2 * r + 1];
    h->now.nonfinite_rank = r;
  }
  h->now.fell_back = 2 * total >= 2 * (uint64_t)m->n / 3;
  if (h->now.fell_back) return gather_densely(h, stream);

  /* 4. The sums to everybody, 5. and average. MPI: Allgatherv -> NCCL: see exchange_gather */
  SPARSE_TRY(exchange_gather(h, m->reduced, m->gathered, s->gathered_counts, s->gathered_displs,
                             ncclUint64, stream));
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_APPLY, stream));
  return ops_apply_gathered(m, stream);
}
