/* SPDX-License-Identifier: Apache-2.0 */
/* What callers may ask about the last step: its entries, errors, words, statistics, times. */
#include "handle.h"

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

/* ---- entries --------------------------------------------------------------------------------- */

ncclResult_t sparse_allreduce_sparse_result(sparse_allreduce_t handle,
                                            const struct sparse_pair **pairs,
                                            const uint64_t **count)
{
  if (handle == NULL) return sparse_fail(ncclInvalidArgument, "NULL handle");
  const bool entries = handle->holds == SPARSE_HOLDS_ENTRIES;
  if (pairs != NULL) *pairs = entries ? handle->m.gathered : NULL;
  if (count != NULL) *count = entries ? &handle->m.state->result_count : NULL;
  return ncclSuccess;
}

static ncclResult_t add(const struct sparse_allreduce_handle *h, enum sparse_holds holds,
                        float scale, float *vector, cudaStream_t stream)
{
  switch (holds) {
  case SPARSE_HOLDS_ENTRIES:
    return ops_add_entries(&h->m, sparse_result(&h->m), scale, vector, stream);
  case SPARSE_HOLDS_DENSE:
    return ops_add_dense(&h->m, scale, vector, stream);
  default:
    return sparse_fail(ncclInvalidUsage, "there was no step yet whose result could be added");
  }
}

ncclResult_t sparse_allreduce_add(sparse_allreduce_t handle, float scale, float *vector,
                                  cudaStream_t stream)
{
  struct sparse_allreduce_handle *h = handle;
  if (h == NULL || vector == NULL) return sparse_fail(ncclInvalidArgument, "NULL argument");
  enum cudaStreamCaptureStatus status;
  SPARSE_CUDA(cudaStreamIsCapturing(stream, &status));
  const bool now = status == cudaStreamCaptureStatusNone;
  SPARSE_TRY(add(h, now ? h->holds : h->latest, scale, vector, stream));
  /* whoever waits for the step, to free what it left, waits for this, too */
  if (now)
    SPARSE_CUDA(cudaEventRecord(h->done, stream));
  else
    h->captured = true;
  return ncclSuccess;
}

/* ---- errors on the device -------------------------------------------------------------------- */

/* Was a gradient of the last step not finite? Names the first rank that has one, and its first such
 * element. */
static ncclResult_t check_finite(const struct sparse_allreduce_handle *h, ncclResult_t *result)
{
  uint64_t flags[SPARSE_MAX_RANKS][SPARSE_SUM_FLAGS];
  uint32_t all[SPARSE_MAX_RANKS];
  if (h->m.config.nonfinite != SPARSE_NONFINITE_ERROR || h->holds == SPARSE_HOLDS_NOTHING ||
      h->last.dense)
    return ncclSuccess;
  if (h->onesided)
    SPARSE_CUDA(cudaMemcpy(flags, h->m.flags->sums, sizeof(flags), cudaMemcpyDeviceToHost));
  else
    SPARSE_CUDA(cudaMemcpy(all, nonfinite_of(h), (size_t)h->m.nranks * sizeof(*all),
                           cudaMemcpyDeviceToHost));
  for (int p = 0; p < h->m.nranks; p++) {
    const uint32_t element = h->onesided ? (uint32_t)flags[p][SPARSE_FLAG_NONFINITE] : all[p];
    if (element == 0) continue;
    *result = ncclInvalidArgument;
    return sparse_fail(ncclSuccess, "element %u of rank %d's gradient is not finite", element - 1,
                       p);
  }
  return ncclSuccess;
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
  return check_finite(handle, result);
}

/* ---- words -----------------------------------------------------------------------------------
 *
 * Of 32 bits, that the last step moved between this rank and others: those of the algorithm,
 * whatever the exchange. One-sided, candidates may have been sent in vain (a raised threshold does
 * not choose them), sums in exact steps are fewer, see ops_select_sums(), and nothing is evened
 * out. */

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
  memcpy(sums, h->state->gathered_counts, (size_t)m->nranks * sizeof(*sums));
  if (!h->onesided || !h->last.exact_global) return ncclSuccess;
  uint64_t flags[SPARSE_MAX_RANKS];
  SPARSE_CUDA(cudaMemcpy(flags, m->flags->reduced, sizeof(flags), cudaMemcpyDeviceToHost));
  for (int p = 0; p < m->nranks; p++) sums[p] = (uint32_t)flags[p];
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

/* ---- statistics ------------------------------------------------------------------------------ */

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
  SPARSE_TRY((h->last.dense ? sparse_words_of_allreduce : h->path->words)(h, &out->words_sent,
                                                                          &out->words_received));
  if (h->last.dense) {
    out->local = out->global = h->m.n;
    out->selected_tie = -1;
    return ncclSuccess;
  }
  out->local = s->offered_count;
  out->global = h->last.fell_back ? h->m.n : s->result_count;
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
