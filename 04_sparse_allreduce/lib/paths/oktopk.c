/* SPDX-License-Identifier: Apache-2.0 */
/* oktopk (Ok-Topk, PPoPP'22): about 4 k (P-1) / P words per rank, half of them in step 3 and half
 * in step 4. Balancing adds 2 k (P-1) / P at most.
 *
 *   rank 0  offered  . x . . x | . . x . | x . . x     1. entries above a threshold that is exact
 *   rank 1  offered  x . . . x | . x x . | . . . x        now and then and adapted in between
 *   rank 2  offered  . . x . . | x . x . | x . . .     2. regions with about equally many entries
 *                     rank 0      rank 1   rank 2      3. each region is added up by its owner
 *   sums above the global threshold -> every rank      4. and only large sums go to every rank
 *
 * Where all ranks share symmetric memory and each has a process of its own, there are no messages:
 * ranks load from and store to each other's memory (onesided/), which gives the same bits. A step
 * that reuses thresholds and regions is three kernels then. */
#include "handle.h"

/* 2. Finds regions with about equally many of the entries that are offered now. Every rank proposes
 * boundaries that cut its own list evenly; the mean of all proposals is taken. */
static ncclResult_t repartition(struct sparse_allreduce_handle *h, cudaStream_t stream)
{
  struct sparse_state *s = h->m.state;
  SPARSE_TRY(ops_decide(&h->m, SPARSE_PROPOSE_REGIONS, stream));
  /* MPI: Allreduce(region_boundaries, SUM) -> NCCL: ncclAllReduce, in 64 bits */
  SPARSE_NCCL(ncclAllReduce(s->proposal, s->proposal, (size_t)h->m.nranks, ncclUint64, ncclSum,
                            h->comm, stream));
  return ops_decide(&h->m, SPARSE_PROPOSED_REGIONS, stream);
}

/* 1. acc = gradient + residual; offer what is above the local threshold. 2. Now and then there are
 * new regions. 3. Every part of the list goes to the owner of its region.
 *
 * One-sided, one pass does all that where threshold and regions are known. It does not know yet
 * whether the threshold will be raised, so it sends by the lowest one that may come, and owners
 * drop what a raised one excludes. If that is too much, ops_reduce_sent() chooses and sends. */
static ncclResult_t select_and_send(struct sparse_allreduce_handle *h, const void *gradient,
                                    cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  if (h->onesided && !h->now.exact_local && !h->now.repartition)
    return ops_pass_and_send(m, gradient, stream);
  SPARSE_TRY(select_offered(h, gradient, stream));
  if (h->now.repartition) SPARSE_TRY(repartition(h, stream));
  if (h->onesided) return ops_send_parts(m, stream);
  return exchange_split(h, m->config.throttle, stream);
}

/* 4., 5., in exact steps: chooses the t largest of all sums that are not zero. The smallest of them
 * is the global threshold of the next steps. Every rank has all sums and finds the same. */
static ncclResult_t choose_and_average(const struct sparse_memory *m, cudaStream_t stream)
{
  SPARSE_TRY(ops_decide(m, SPARSE_COUNT_GATHERED, stream));
  SPARSE_TRY(ops_decide(m, SPARSE_WANT_K_NEAR_THRESHOLD, stream));
  SPARSE_TRY(ops_select(m, sparse_gathered(m), sparse_result(m), &m->state->global,
                        SPARSE_GLOBAL_THRESHOLD, stream));
  return ops_apply(m, sparse_result(m), SPARSE_THEN_NOTHING, stream);
}

ncclResult_t path_oktopk(struct sparse_allreduce_handle *h, const void *gradient,
                         cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  const bool exact = h->now.exact_global;
  const enum sparse_sums which = exact ? SPARSE_SUMS_NONZERO : SPARSE_SUMS_ABOVE;
  SPARSE_TRY(select_and_send(h, gradient, stream));

  /* Owner r adds in the order r, r-1, ...: fixed, so the sums are the same bits in every run. It
   * keeps those above the global threshold; before an exact choice, all. */
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_REDUCE, stream));
  SPARSE_TRY(h->onesided ? ops_reduce_sent(m, which, stream)
                         : ops_reduce(m, m->received, true, which, sparse_reduced(m), stream));

  /* 4. Every rank gets the sums. If balancing is configured, exchange_gather first evens out how
   * many sums each rank has. MPI: Allgather(counts), Allgatherv -> NCCL: see exchange_gather
   * One-sided, exact: no rank has all sums. All send each other how many they have of which size.
   * So they find the t largest and the global threshold. */
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_GATHER, stream));
  if (!h->onesided)
    SPARSE_TRY(exchange_gather(h, m->reduced, m->gathered, stream));
  else if (exact)
    SPARSE_TRY(ops_select_sums(m, stream));

  /* 5. Average. The local threshold, and a global one that was not found just now, adapt. */
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_APPLY, stream));
  if (exact && !h->onesided) return choose_and_average(m, stream);
  return ops_apply(m, h->onesided ? SPARSE_AT_OWNERS : sparse_gathered(m),
                   exact ? SPARSE_COUNT_GATHERED : SPARSE_COUNT_AND_ADAPT, stream);
}
