/* SPDX-License-Identifier: Apache-2.0 */
/* What callers may ask about the last step. */
#include "sparse_internal.h"

#include <string.h>

ncclResult_t sparse_wait(struct sparse_allreduce_handle *h)
{
  if (h->captured)
    SPARSE_CUDA(cudaDeviceSynchronize());
  else
    SPARSE_CUDA(cudaEventSynchronize(h->done));
  return ncclSuccess;
}

/* The state of the last step, on the host. */
ncclResult_t sparse_read_state(struct sparse_allreduce_handle *h)
{
  SPARSE_TRY(sparse_wait(h));
  SPARSE_CUDA(cudaMemcpy(h->state, h->m.state, sizeof(*h->state), cudaMemcpyDeviceToHost));
  return ncclSuccess;
}

/* Whose gradient is not finite: the first rank's, and its first such element. */
static ncclResult_t name_nonfinite(const struct sparse_allreduce_handle *h)
{
  const struct sparse_state *s = h->state;
  uint32_t element = s->nonfinite;
  int rank = s->nonfinite_from ? (int)s->nonfinite_from - 1 : h->m.rank;
  if (h->last.nonfinite) {
    element = h->last.nonfinite;
    rank = h->last.nonfinite_rank;
  } else if (h->m.direct) {
    uint64_t notes[SPARSE_MAX_RANKS][SPARSE_SUM_NOTES];
    SPARSE_CUDA(cudaMemcpy(notes, h->m.notes->sums, sizeof(notes), cudaMemcpyDeviceToHost));
    for (int p = h->m.nranks - 1; p >= 0; p--) {
      if ((uint32_t)notes[p][SPARSE_NOTE_NONFINITE] == 0) continue;
      element = (uint32_t)notes[p][SPARSE_NOTE_NONFINITE];
      rank = p;
    }
  }
  return sparse_fail(ncclSuccess, "element %u of rank %d's gradient is not finite", element - 1,
                     rank);
}

ncclResult_t sparse_allreduce_get_async_error(sparse_allreduce_t handle, ncclResult_t *result)
{
  if (handle == NULL || result == NULL) return sparse_fail(ncclInvalidArgument, "NULL argument");
  *result = ncclSuccess;
  SPARSE_TRY(sparse_read_state(handle));
  if (handle->state->late) {
    *result = ncclRemoteError;
    return sparse_fail(ncclSuccess, "nothing came from rank %d in time",
                       (int)handle->state->late - 1);
  }
  if (handle->alltoallv != NULL) {
    int source, destination;
    SPARSE_ALLTOALLV(alltoallv_get_async_error(handle->alltoallv, result, &source, &destination));
    if (*result != ncclSuccess) {
      if (*result != ncclRemoteError) *result = ncclInternalError; /* counts: not the caller's */
      return sparse_fail_alltoallv(ncclSuccess);
    }
  }
  if (handle->m.config.nonfinite == SPARSE_NONFINITE_ERROR && !handle->last.dense &&
      (handle->state->nonfinite || handle->last.nonfinite)) {
    *result = ncclInvalidArgument;
    return name_nonfinite(handle);
  }
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
  const uint64_t *counts = m->direct ? h->state->gathered_counts : h->state->sums;
  memcpy(sums, counts, (size_t)m->nranks * sizeof(*sums));
  if (!m->direct || !h->last.exact_global) return ncclSuccess;
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
  if (m->config.algorithm == SPARSE_OKTOPK && m->config.balance != SPARSE_BALANCE_NEVER) {
    SPARSE_TRY(count_sums(h, sums));
    if (exchange_balances(m, sums, total)) {
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

/* Words of 32 bits that the step moved between this rank and others: those of the algorithm,
 * whatever the exchange. Direct, candidates may have been sent in vain, see SPARSE_PASS_OFFERS,
 * sums in exact steps are fewer, see ops_select_sums(), and one-sided nothing is evened out. */
static ncclResult_t count_words(const struct sparse_allreduce_handle *h, uint64_t *sent,
                                uint64_t *received)
{
  const struct sparse_memory *m = &h->m;
  const struct sparse_state *s = h->state;
  const uint64_t others = (uint64_t)m->nranks - 1;
  *sent = *received = 0;
  if (h->last.dense) {
    *sent = *received = 2 * m->n * others / (uint64_t)m->nranks;
    return ncclSuccess;
  }
  switch (m->config.algorithm) {
  case SPARSE_GTOPK:
    for (int step = 1; step < m->nranks; step *= 2) {
      if (m->rank % (2 * step) == step) {
        *sent = 2 * m->k;
        break;
      }
      if (m->rank + step < m->nranks) *received += 2 * m->k;
    }
    if (m->rank == 0)
      *sent += 2 * m->k * others;
    else
      *received += 2 * m->k;
    break;
  case SPARSE_OKTOPK:
  case SPARSE_TOPKSA:
  case SPARSE_GAUSSIANKSA:
    *sent = 2 * sum_of_others(m, s->region_counts);
    *received = 2 * sum_of_others(m, s->received_counts);
    if (h->last.fell_back) {
      const uint64_t region = s->boundaries[m->rank + 1] - s->boundaries[m->rank];
      *sent += region * others;
      *received += m->n - region;
      break;
    }
    return count_gather(h, sent, received);
  default:
    *sent = 2 * s->offered_count * others;
    *received = 2 * sum_of_others(m, s->received_counts);
  }
  return ncclSuccess;
}

ncclResult_t sparse_allreduce_statistics(sparse_allreduce_t handle,
                                         sparse_allreduce_statistics_t *statistics)
{
  if (handle == NULL || statistics == NULL)
    return sparse_fail(ncclInvalidArgument, "NULL argument");
  const struct sparse_allreduce_handle *h = handle;
  SPARSE_TRY(sparse_read_state(handle));
  const struct sparse_state *s = h->state;
  sparse_allreduce_statistics_t *out = statistics;
  memset(out, 0, sizeof(*out));
  out->step = h->step == 0 ? 0 : h->step - 1;
  out->k = h->m.k;
  out->capacity = h->m.capacity;
  out->dense = h->last.dense;
  SPARSE_TRY(count_words(h, &out->words_sent, &out->words_received));
  if (h->last.dense) {
    out->local = out->global = h->m.n;
    out->selected_tie = -1;
    return ncclSuccess;
  }
  out->local = s->offered_count;
  out->global = h->last.fell_back ? h->m.n : s->global_count;
  out->local_threshold = s->local_threshold;
  out->global_threshold = s->global_threshold;
  out->gaussian_threshold = s->gaussian_threshold;
  const bool all = s->selection.above < 0; /* by a negative threshold */
  out->selected_above = all ? 0 : (uint32_t)s->selection.above;
  out->selected_tie = all ? (int64_t)h->m.n - 1 : s->selection.tie;
  out->exact_local = h->last.exact_local;
  out->exact_global = h->last.exact_global;
  out->repartitioned = h->last.repartition;
  out->overflowed = s->overflowed != 0;
  out->fell_back = h->last.fell_back;
  return ncclSuccess;
}

ncclResult_t sparse_allreduce_boundaries(sparse_allreduce_t handle, uint64_t *boundaries)
{
  if (handle == NULL || boundaries == NULL)
    return sparse_fail(ncclInvalidArgument, "NULL argument");
  SPARSE_TRY(sparse_read_state(handle));
  memcpy(boundaries, handle->state->boundaries,
         ((size_t)handle->m.nranks + 1) * sizeof(*boundaries));
  return ncclSuccess;
}

ncclResult_t sparse_allreduce_time_phases(sparse_allreduce_t handle, int on)
{
  if (handle == NULL) return sparse_fail(ncclInvalidArgument, "NULL argument");
  handle->time_phases = on != 0;
  return ncclSuccess;
}

ncclResult_t sparse_allreduce_phases(sparse_allreduce_t handle, sparse_allreduce_phases_t *phases)
{
  if (handle == NULL || phases == NULL) return sparse_fail(ncclInvalidArgument, "NULL argument");
  if (handle->phase <= SPARSE_PHASES)
    return sparse_fail(ncclInvalidUsage, "the last step was not timed: "
                                         "sparse_allreduce_time_phases comes first, and no graphs");
  float *out[SPARSE_PHASES] = {&phases->select, &phases->exchange, &phases->reduce, &phases->gather,
                               &phases->apply};
  SPARSE_CUDA(cudaEventSynchronize(handle->phases[SPARSE_PHASES]));
  for (int i = 0; i < SPARSE_PHASES; i++)
    SPARSE_CUDA(cudaEventElapsedTime(out[i], handle->phases[i], handle->phases[i + 1]));
  return ncclSuccess;
}
