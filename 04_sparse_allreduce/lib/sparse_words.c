/* SPDX-License-Identifier: Apache-2.0 */
/* Words of 32 bits that the last step moved between this rank and others: those of the algorithm,
 * whatever the exchange. One-sided, candidates may have been sent in vain (a raised threshold does
 * not choose them), sums in exact steps are fewer, see ops_select_sums(), and nothing is evened
 * out. */
#include "sparse_internal.h"

#include <string.h>

ncclResult_t sparse_words_of_allreduce(const struct sparse_allreduce_handle *h, uint64_t *sent,
                                       uint64_t *received)
{
  *sent = *received = 2 * h->m.n * ((uint64_t)h->m.nranks - 1) / (uint64_t)h->m.nranks;
  return ncclSuccess;
}

static uint64_t sum_of_others(const struct sparse_memory *m, const uint64_t *counts)
{
  uint64_t sum = 0;
  for (int p = 0; p < m->nranks; p++)
    if (p != m->rank) sum += counts[p];
  return sum;
}

/* How many sums each rank had for the others. */
static ncclResult_t count_sums(const struct sparse_allreduce_handle *h, uint64_t *sums)
{
  const struct sparse_memory *m = &h->m;
  const uint64_t *counts = h->onesided ? h->state->gathered_counts : h->state->sums;
  memcpy(sums, counts, (size_t)m->nranks * sizeof(*sums));
  if (!h->onesided || !h->last.exact_global) return ncclSuccess;
  uint64_t notes[SPARSE_MAX_RANKS];
  SPARSE_CUDA(cudaMemcpy(notes, m->notes->reduced, sizeof(notes), cudaMemcpyDeviceToHost));
  for (int p = 0; p < m->nranks; p++) sums[p] = (uint32_t)notes[p];
  return ncclSuccess;
}

/* The gather of all sums, and what the ranks move before to even them out. */
static ncclResult_t count_gather(const struct sparse_allreduce_handle *h, uint64_t *sent,
                                 uint64_t *received)
{
  const struct sparse_memory *m = &h->m;
  const uint64_t total = h->state->gathered_total, others = (uint64_t)m->nranks - 1;
  uint64_t sums[SPARSE_MAX_RANKS], own = h->state->reduced_count;
  if (h->path->balances && m->config.balance != SPARSE_BALANCE_NEVER) {
    SPARSE_TRY(count_sums(h, sums));
    if (exchange_balances(h, sums, total)) {
      struct sparse_share from, to;
      exchange_shares(m, sums, total, m->rank, &from, &to);
      const uint64_t stays = exchange_overlap(from, to).count;
      *sent += 2 * (from.count - stays);
      *received += 2 * (to.count - stays);
      own = to.count;
    }
  }
  *sent += 2 * own * others;
  *received += 2 * (total - own);
  return ncclSuccess;
}

ncclResult_t sparse_words_of_lists(const struct sparse_allreduce_handle *h, uint64_t *sent,
                                   uint64_t *received)
{
  *sent = 2 * h->state->offered_count * ((uint64_t)h->m.nranks - 1);
  *received = 2 * sum_of_others(&h->m, h->state->received_counts);
  return ncclSuccess;
}

ncclResult_t sparse_words_of_tree(const struct sparse_allreduce_handle *h, uint64_t *sent,
                                  uint64_t *received)
{
  const struct sparse_memory *m = &h->m;
  *sent = *received = 0;
  for (int step = 1; step < m->nranks; step *= 2) {
    if (m->rank % (2 * step) == step) {
      *sent = 2 * m->k;
      break;
    }
    if (m->rank + step < m->nranks) *received += 2 * m->k;
  }
  if (m->rank == 0)
    *sent += 2 * m->k * ((uint64_t)m->nranks - 1);
  else
    *received += 2 * m->k;
  return ncclSuccess;
}

ncclResult_t sparse_words_of_regions(const struct sparse_allreduce_handle *h, uint64_t *sent,
                                     uint64_t *received)
{
  const struct sparse_memory *m = &h->m;
  const struct sparse_state *s = h->state;
  *sent = 2 * sum_of_others(m, s->region_counts);
  *received = 2 * sum_of_others(m, s->received_counts);
  if (!h->last.fell_back) return count_gather(h, sent, received);
  const uint64_t region = s->boundaries[m->rank + 1] - s->boundaries[m->rank];
  *sent += region * ((uint64_t)m->nranks - 1);
  *received += m->n - region;
  return ncclSuccess;
}
