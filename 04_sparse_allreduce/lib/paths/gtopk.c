/* SPDX-License-Identifier: Apache-2.0 */
/* gtopk: lists of k entries are merged along a binary tree, two lists to the k largest sums of
 * both, and the root's list goes to every rank (Shi et al., gTop-k).
 *
 *   round 0   0 <- 1   2 <- 3   4 <- 5   6          any number of ranks: one that has no
 *   round 1   0 <- 2            4 <- 6              partner keeps its list
 *   round 2   0 <- 4
 *
 * There are 4 k log P words on the longest way, so this pays from 8 ranks on. What a merge discards
 * of an index that wins elsewhere is lost in the published algorithm. With gtopk_exact_residual it
 * goes to the residual of the rank that discarded it. */
#include "handle.h"

/* The sums of a round. The result takes the first place of the same buffer. */
static struct sparse_list merged(const struct sparse_memory *m, int round)
{
  return (struct sparse_list){m->gathered + (size_t)(1 + round) * m->list_room,
                              &m->state->merge_counts[round], 1};
}

/* MPI: Recv(indices), Recv(values) -> NCCL: one ncclRecv of pairs. Then the k largest sums of both
 * lists: received_counts and received_displs say from the start where those are. */
static ncclResult_t merge_from(struct sparse_allreduce_handle *h, int peer, int round,
                               cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  SPARSE_NCCL(ncclRecv(m->received, m->k, ncclUint64, peer, h->comm, stream));
  SPARSE_TRY(
      ops_reduce(m, m->offered, SPARSE_FROM_RANK_0, SPARSE_SUMS_ALL, merged(m, round), stream));
  return ops_select_sums(m, merged(m, round), sparse_offered(m), &m->state->merges[round], stream);
}

ncclResult_t step_up_a_tree(struct sparse_allreduce_handle *h, const void *gradient,
                            cudaStream_t stream)
{
  const struct sparse_memory *m = &h->m;
  const int rank = m->rank, nranks = m->nranks;

  /* 1. acc = gradient + residual; the k largest are the first list. Those that win leave the
   * residual, all others stay in it. */
  SPARSE_TRY(select_offered(h, gradient, stream));

  /* 2. Up the tree, k entries at a time. A rank that has sent its list is done. */
  SPARSE_TRY(ops_want_k(m, stream));
  int rounds = 0;
  for (int step = 1; step < nranks; step *= 2) {
    if (rank % (2 * step) == step) {
      SPARSE_NCCL(ncclSend(m->offered, m->k, ncclUint64, rank - step, h->comm, stream));
      break;
    }
    if (rank + step < nranks) SPARSE_TRY(merge_from(h, rank + step, rounds++, stream));
  }

  /* 3. The root's list goes to every rank. MPI: Bcast -> NCCL: ncclBroadcast */
  SPARSE_NCCL(ncclBroadcast(m->offered, m->gathered, m->k, ncclUint64, 0, h->comm, stream));

  /* 4. Average. */
  SPARSE_TRY(ops_apply(m, sparse_result(m), SPARSE_THRESHOLDS_STAY, stream));
  if (!m->config.gtopk_exact_residual) return ncclSuccess;
  SPARSE_TRY(ops_clear_pending(m, stream)); /* now, so that what is returned stays */
  for (int i = 0; i < rounds; i++)
    SPARSE_TRY(ops_return(m, merged(m, i), &m->state->merges[i], stream));
  return ncclSuccess;
}
