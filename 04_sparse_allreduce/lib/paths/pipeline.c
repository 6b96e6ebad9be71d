/* SPDX-License-Identifier: Apache-2.0 */
/* The paths, a row each, and the step of all of them but dense and gtopk:
 *
 *   select    acc = gradient + residual; what is offered becomes a list        select_offered()
 *   exchange  lists go to all ranks, or their parts to the owners of regions
 *   reduce    lists are added, in an order that is the same in every run        sum_at_all()
 *   gather    the sums of owners go to every rank                               sum_at_owners()
 *   choose    of the sums all, the k largest or those above a threshold stay
 *   apply     the average, as a vector or as entries                            ops_apply()
 *
 * Of oktopk (Ok-Topk, PPoPP'22), about 4 k (P-1) / P words per rank, half of them for each
 * exchange:
 *
 *   rank 0  offered  . x . . x | . . x . | x . . x     entries above a threshold that is exact now
 *   rank 1  offered  x . . . x | . x x . | . . . x     and then and adapted in between
 *   rank 2  offered  . . x . . | x . x . | x . . .     regions with about equally many entries
 *                     rank 0's    rank 1's  rank 2's   each region is added up by its owner
 *   sums above the global threshold -> every rank      and only large sums go to every rank
 *
 * Where all ranks share symmetric memory and each has a process of its own, it needs no messages:
 * step_onesided() is the same step by kernels that use the memory of other ranks. */
#include "handle.h"

/* Nothing else in the library asks which algorithm it is. */
static const struct sparse_path paths[SPARSE_ALGORITHMS] = {
    [SPARSE_DENSE] = {.name = "dense", .select = SPARSE_SELECT_NOTHING},
    [SPARSE_TOPKA] = {.name = "topkA", SPARSE_SELECT_K, SPARSE_SUMS_AT_ALL, SPARSE_EVERY_SUM},
    [SPARSE_TOPKA2] = {.name = "topkA2",
                       SPARSE_SELECT_K,
                       SPARSE_SUMS_AT_ALL,
                       SPARSE_K_LARGEST_SUMS},
    [SPARSE_TOPKAOPT] = {.name = "topkAopt",
                         SPARSE_SELECT_REUSED,
                         SPARSE_SUMS_AT_ALL,
                         SPARSE_EVERY_SUM},
    [SPARSE_GTOPK] = {.name = "gtopk",
                      SPARSE_SELECT_K,
                      SPARSE_SUMS_UP_A_TREE,
                      SPARSE_K_LARGEST_SUMS},
    [SPARSE_OKTOPK] = {.name = "oktopk",
                       SPARSE_SELECT_REUSED,
                       SPARSE_SUMS_AT_OWNERS,
                       SPARSE_SUMS_FOLLOWED},
    [SPARSE_TOPKSA] = {.name = "topkSA",
                       SPARSE_SELECT_K,
                       SPARSE_SUMS_AT_OWNERS,
                       SPARSE_EVERY_SUM,
                       .falls_back = true},
    [SPARSE_GAUSSIANK] = {.name = "gaussiank",
                          SPARSE_SELECT_GAUSSIAN,
                          SPARSE_SUMS_AT_ALL,
                          SPARSE_EVERY_SUM},
    [SPARSE_GAUSSIANKCONCAT] = {.name = "gaussiankconcat",
                                SPARSE_SELECT_GAUSSIAN,
                                SPARSE_SUMS_AT_ALL,
                                SPARSE_EVERY_SUM},
    [SPARSE_GAUSSIANKSA] = {.name = "gaussiankSA",
                            SPARSE_SELECT_ABOVE_KTH,
                            SPARSE_SUMS_AT_OWNERS,
                            SPARSE_EVERY_SUM,
                            .one_peer = true},
};

const struct sparse_path *sparse_path_of(sparse_allreduce_algorithm_t algorithm)
{
  return &paths[algorithm];
}

const char *sparse_allreduce_name(sparse_allreduce_algorithm_t algorithm)
{
  return (unsigned)algorithm < SPARSE_ALGORITHMS ? paths[algorithm].name : NULL;
}

/* ---- select ---------------------------------------------------------------------------------- */

/* Each way reads gradient and residual once, in the local pass; further passes are over the few
 * candidates that it finds, unless the guess that it used was bad. What leaves the residual, and
 * when, is said here: see enum sparse_removal. */
ncclResult_t select_offered(struct sparse_allreduce_handle *h, const void *gradient,
                            cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  const enum sparse_removal removal =
      h->path->choice == SPARSE_EVERY_SUM ? SPARSE_REMOVE_OFFERED : SPARSE_REMOVE_IN_RESULT;

  if (m->select == SPARSE_SELECT_REUSED && !h->now.exact_local) {
    /* The threshold of the step before, raised a few times at most while it selects too many: the
     * pass counts all the thresholds that may come. Too many even then: the k largest. */
    SPARSE_TRY(ops_local_pass(m, gradient, SPARSE_ABOVE_THRESHOLDS, removal, stream));
    SPARSE_TRY(ops_take_threshold(m, stream));
  } else if (m->select == SPARSE_SELECT_GAUSSIAN) {
    /* mean + z * deviation would select k entries of the normal distribution. It is corrected by
     * counting a table of thresholds, among the candidates, and if they do not reach so far, once
     * more among all elements. */
    SPARSE_TRY(ops_local_pass(m, gradient, SPARSE_GAUSSIAN_GUESS, removal, stream));
    SPARSE_TRY(ops_gaussian_threshold(m, stream));
    SPARSE_TRY(ops_count_levels(m, stream));
    SPARSE_TRY(ops_count_levels(m, stream));
  } else {
    /* The k largest, lower indices first among equals, or what is above the k-th magnitude.
     * Candidates are what lies above a guess from the step before. */
    SPARSE_TRY(ops_local_pass(m, gradient, SPARSE_ABOVE_GUESS, removal, stream));
    SPARSE_TRY(ops_search_k(m, stream));
  }
  /* The decision says whether to read the candidates, all of the residual, or nothing. Afterwards
   * state->selection chooses what is in the list. */
  return ops_select_offered(m, stream);
}

/* ---- exchange, reduce, gather ---------------------------------------------------------------- */

/* Every rank gets all lists, and adds rank 0's, rank 1's, ...: this order on every rank, so the
 * same bits. MPI: Allgather(count), Allgatherv(values), Allgatherv(indices) -> NCCL:
 * exchange_gather */
static ncclResult_t sum_at_all(struct sparse_allreduce_handle *h, struct sparse_list sums,
                               cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  if (sparse_varies(h->path)) SPARSE_TRY(ops_send_offered(m, stream));
  SPARSE_TRY(exchange_gather(h, m->offered, m->received, m->state->received_counts,
                             m->state->received_displs, stream));
  return ops_reduce(m, m->received, SPARSE_FROM_RANK_0, SPARSE_SUMS_NONZERO, sums, stream);
}

/* Regions with about equally many of the entries that are offered now. Every rank proposes
 * boundaries that cut its own list evenly; the mean of all proposals is taken. */
static ncclResult_t repartition(struct sparse_allreduce_handle *h, cudaStream_t stream)
{
  struct sparse_state *s = h->m.state;
  SPARSE_TRY(ops_propose_regions(&h->m, stream));
  /* MPI: Allreduce(region_boundaries, SUM) -> NCCL: ncclAllReduce, in 64 bits */
  SPARSE_NCCL(ncclAllReduce(s->proposal, s->proposal, (size_t)h->m.nranks, ncclUint64, ncclSum,
                            h->comm, stream));
  return ops_take_regions(&h->m, stream);
}

/* With n/3 sums or more, entries of two words are hardly less than the dense vector. The host has
 * to know. MPI: Allgather(counts) -> NCCL: ncclAllGather */
static ncclResult_t decide_to_fall_back(struct sparse_allreduce_handle *h, cudaStream_t stream)
{
  uint64_t total = 0;
  SPARSE_TRY(exchange_counts(h, &h->m.state->reduced_count, 1, stream));
  for (int r = 0; r < h->m.nranks; r++) total += h->counts[r];
  h->now.fell_back = 2 * total >= 2 * (uint64_t)h->m.n / 3;
  return ncclSuccess;
}

/* Each owner puts its sums into its region of the result; the regions go to every rank. */
static ncclResult_t gather_densely(struct sparse_allreduce_handle *h, cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  const uint64_t *places = h->state->kept.boundaries; /* they never change here */
  SPARSE_CUDA(cudaMemsetAsync(m->dense + places[m->rank], 0,
                              (places[m->rank + 1] - places[m->rank]) * sizeof(float), stream));
  SPARSE_TRY(ops_scatter(m, sparse_reduced(m), stream));
  SPARSE_TRY(exchange_blocks(h, m->dense, places, sizeof(float), stream));
  return ops_average(m, stream);
}

/* Of the sums, an owner keeps those above the global threshold; before an exact choice all. */
static enum sparse_sums which_sums(const struct sparse_allreduce_handle *h)
{
  return h->m.adapts && !h->now.exact_global ? SPARSE_SUMS_ABOVE : SPARSE_SUMS_NONZERO;
}

/* Every part of the lists goes to the owner of its region, who adds in the order rank, rank - 1,
 * ... Then every rank gets the sums, which exchange_gather() may even out before. MPI: Isend/Irecv
 * with `throttle` peers at a time -> NCCL: exchange_split */
static ncclResult_t sum_at_owners(struct sparse_allreduce_handle *h, cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  if (h->now.repartition) SPARSE_TRY(repartition(h, stream));
  SPARSE_TRY(exchange_split(h, h->path->one_peer ? 1 : m->config.throttle, stream));
  SPARSE_TRY(
      ops_reduce(m, m->received, SPARSE_FROM_OWNER, which_sums(h), sparse_reduced(m), stream));
  if (h->path->falls_back) SPARSE_TRY(decide_to_fall_back(h, stream));
  if (h->now.fell_back) return gather_densely(h, stream);
  return exchange_gather(h, m->reduced, m->gathered, m->state->gathered_counts,
                         m->state->gathered_displs, stream);
}

/* ---- the step -------------------------------------------------------------------------------- */

ncclResult_t step_of_lists(struct sparse_allreduce_handle *h, const void *gradient,
                           cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  const bool at_owners = h->path->sums == SPARSE_SUMS_AT_OWNERS;
  const bool chooses = h->path->choice == SPARSE_K_LARGEST_SUMS || h->now.exact_global;
  struct sparse_list sums = at_owners ? sparse_gathered(m)
                            : chooses ? sparse_reduced(m)
                                      : sparse_result(m);
  SPARSE_TRY(select_offered(h, gradient, stream));
  SPARSE_TRY(at_owners ? sum_at_owners(h, stream) : sum_at_all(h, sums, stream));
  if (h->now.fell_back) return ncclSuccess;
  if (chooses) { /* the k largest; every rank has all sums and finds the same */
    SPARSE_TRY(m->adapts ? ops_want_k_near_threshold(m, stream) : ops_want_k(m, stream));
    SPARSE_TRY(ops_select_sums(m, sums, sparse_result(m), &m->state->global, stream));
    sums = sparse_result(m);
  }
  return ops_apply(
      m, sums, m->adapts && !chooses ? SPARSE_THRESHOLDS_ADAPT : SPARSE_THRESHOLDS_STAY, stream);
}

/* Where threshold and regions are known, one pass selects and sends. It does not know yet whether
 * the threshold will be raised, so it sends by the lowest one that may come, and owners drop what a
 * raised one excludes. If that is too much, reduce_sent() chooses and sends. In exact steps no
 * rank gets all sums: all say how many they have of which size, so they find the largest.
 *
 * `ops` is the table at the end of onesided/onesided.cu. pass_and_send, reduce_sent and apply_sent
 * are one-sided forms of kernels/local_pass.cu, reduce.cu and apply.cu. */
ncclResult_t step_onesided(struct sparse_allreduce_handle *h, const void *gradient,
                           cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  const struct sparse_onesided *ops = ops_onesided;
  const bool exact = h->now.exact_global;
  if (!h->now.exact_local && !h->now.repartition) {
    SPARSE_TRY(ops->pass_and_send(m, gradient, stream));
  } else {
    SPARSE_TRY(select_offered(h, gradient, stream));
    if (h->now.repartition) SPARSE_TRY(repartition(h, stream));
    SPARSE_TRY(ops->send_parts(m, stream));
  }
  SPARSE_TRY(ops->reduce_sent(m, which_sums(h), stream));
  if (exact) SPARSE_TRY(ops->choose_sent(m, stream));
  return ops->apply_sent(m, exact ? SPARSE_THRESHOLDS_STAY : SPARSE_THRESHOLDS_ADAPT, stream);
}
