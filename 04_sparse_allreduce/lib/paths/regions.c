/* SPDX-License-Identifier: Apache-2.0 */
/* topkSA (TopkDSA): exactly k entries per rank, equal regions, each added up by its owner. There is
 * no global selection. With many sums, entries of two words are hardly less than the dense vector,
 * so from n/3 sums on the regions are gathered densely.
 * Between 4 k (P-1) / P and (2 k + n) (P-1) / P words per rank.
 *
 * gaussiankSA: what is above the exact k-th magnitude, one peer at a time, and no dense fallback.
 * Between 4 k (P-1) / P and 2 (k + the sums) (P-1) / P words per rank. */
#include "handle.h"

/* Each owner puts its sums into its region of the result; the regions go to every rank. */
static ncclResult_t gather_densely(struct sparse_allreduce_handle *h, cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  const uint64_t *places = h->state->boundaries; /* they never change here */
  SPARSE_CUDA(cudaMemsetAsync(m->dense + places[m->rank], 0,
                              (places[m->rank + 1] - places[m->rank]) * sizeof(float), stream));
  SPARSE_TRY(ops_scatter(m, sparse_reduced(m), stream));
  SPARSE_TRY(exchange_blocks(h, m->dense, places, sizeof(float), stream));
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_APPLY, stream));
  return ops_average(m, stream);
}

ncclResult_t path_regions(struct sparse_allreduce_handle *h, const void *gradient,
                          cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  const bool falls_back = h->path->is & SPARSE_FALLS_BACK;

  /* 1. acc = gradient + residual; offer a list. All of it will be used and leaves the residual. */
  SPARSE_TRY(select_offered(h, gradient, stream));

  /* 2. Every part of it goes to the owner of its region, which adds.
   * MPI: Isend/Irecv with `throttle` peers at a time -> NCCL: exchange_split */
  SPARSE_TRY(exchange_split(h, falls_back ? m->config.throttle : 1, stream));
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_REDUCE, stream));
  SPARSE_TRY(ops_reduce(m, m->received, true, SPARSE_SUMS_NONZERO, sparse_reduced(m), stream));

  /* Are the sums few enough for a sparse gather? The host has to know.
   * MPI: Allgather(counts) -> NCCL: ncclAllGather */
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_GATHER, stream));
  if (falls_back) {
    uint64_t total = 0;
    SPARSE_TRY(exchange_counts(h, &m->state->reduced_count, 1, stream));
    for (int r = 0; r < m->nranks; r++) total += h->counts[r];
    h->now.fell_back = 2 * total >= 2 * (uint64_t)m->n / 3;
    if (h->now.fell_back) return gather_densely(h, stream);
  }

  /* 3. Every rank gets the sums and averages them.
   * MPI: Allgather(counts), Allgatherv(packed) -> NCCL: see exchange_gather */
  SPARSE_TRY(exchange_gather(h, m->reduced, m->gathered, stream));
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_APPLY, stream));
  return ops_apply(m, sparse_gathered(m), SPARSE_COUNT_GATHERED, stream);
}
