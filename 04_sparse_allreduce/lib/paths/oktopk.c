/* SPDX-License-Identifier: Apache-2.0 */
/* oktopk: about 6 k (P-1) / P words per rank, however many ranks there are (PPoPP'22).
 *
 *   rank 0  offered  . x . . x | . . x . | x . . x     1. entries above a threshold that is exact
 *   rank 1  offered  x . . . x | . x x . | . . . x        now and then and adapted in between
 *   rank 2  offered  . . x . . | x . x . | x . . .     2. regions with about equally many entries
 *                     rank 0      rank 1   rank 2      3. each region is added up by its owner
 *   sums above the global threshold -> everybody       4. and only large sums go to everybody
 *
 * Thresholds change slowly from step to step, so reusing them replaces a search by a comparison. */
#include "sparse_internal.h"

/* 2. Boundaries so that every region holds about as many of the entries that are offered now. Every
 * rank proposes boundaries that cut its own list evenly; the mean of all proposals is taken. */
static ncclResult_t repartition(struct sparse_allreduce_handle *h, cudaStream_t stream)
{
  struct sparse_state *s = h->m.state;
  SPARSE_TRY(ops_propose(&h->m, stream));
  /* MPI: Allreduce(region_boundaries, SUM) -> NCCL: ncclAllReduce, in 64 bits */
  SPARSE_NCCL(ncclAllReduce(s->proposal, s->proposal, (size_t)h->m.nranks, ncclUint64, ncclSum,
                            h->comm, stream));
  return ops_control(&h->m, SPARSE_PROPOSED_REGIONS, stream);
}

/* 4., exact: of all sums that are not zero the t largest; the smallest of them is the threshold
 * that the next steps use. Every rank has all sums and finds the same. (Direct: no rank has, but
 * all tell each other how many they have of which size: ops_select_sums().) */
static ncclResult_t choose_globally(struct sparse_allreduce_handle *h, cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  struct sparse_state *s = m->state;
  SPARSE_TRY(ops_control(m, SPARSE_GLOBAL_SEARCH, stream));
  return ops_select(m, sparse_gathered(m), &s->always_list, &s->always_list, &s->global,
                    sparse_result(m), NULL, SPARSE_GLOBAL_FOUND, SPARSE_KEPT_RESULT, stream);
}

ncclResult_t path_oktopk(struct sparse_allreduce_handle *h, const void *gradient,
                         cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  struct sparse_state *s = m->state;

  /* 1. acc = gradient + residual; offer what is above the local threshold. What of it is in the
   * result leaves the residual. */
  select_t *select = h->now.exact_local ? select_exact_threshold : select_by_threshold;
  SPARSE_TRY(select(h, gradient, SPARSE_LEAVES_RESULT, stream));
  if (h->now.repartition) SPARSE_TRY(repartition(h, stream));
  if (!select_offers(h)) SPARSE_TRY(ops_partition(m, stream));

  /* 3. Every part of the list to the owner of its region.
   * MPI: Alltoall(counts), Isend/Irecv/Waitall -> NCCL: see exchange_split */
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_EXCHANGE, stream));
  SPARSE_TRY(exchange_split(h, m->config.throttle, stream));
  /* Owner r adds in the order r, r-1, ...: fixed, so the sums are the same bits in every run. */
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_REDUCE, stream));
  const enum sparse_sums which = h->now.exact_global ? SPARSE_SUMS_NONZERO : SPARSE_SUMS_ABOVE;
  const enum sparse_control then = !m->direct            ? SPARSE_SEAL_REDUCED
                                   : h->now.exact_global ? SPARSE_SUMS_SEARCH
                                                         : SPARSE_THEN_NOTHING;
  SPARSE_TRY(ops_reduce(m, m->direct ? NULL : m->received, s->slot_displs, s->received_counts,
                        m->rank, -1, s->boundaries + m->rank, which, sparse_reduced(m), then,
                        stream));

  /* 4. The sums to everybody. MPI: Allgather(counts), Allgatherv -> NCCL: see exchange_gather */
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_GATHER, stream));
  if (!m->direct)
    SPARSE_TRY(exchange_gather(h, m->reduced, m->gathered, s->gathered_counts, s->gathered_displs,
                               ncclUint64, stream));
  else if (h->now.exact_global)
    SPARSE_TRY(ops_select_sums(m, stream));

  /* 5. Average. */
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_APPLY, stream));
  if (h->now.exact_global && !m->direct) {
    SPARSE_TRY(choose_globally(h, stream));
    return ops_apply(m, sparse_result(m), SPARSE_LOCAL_ADAPT, stream);
  }
  return ops_apply(m, m->direct ? sparse_not_fetched() : sparse_gathered(m),
                   h->now.exact_global ? SPARSE_CHOSEN_ADAPT : SPARSE_BOTH_ADAPT, stream);
}
