/* SPDX-License-Identifier: Apache-2.0 */
/* What callers may ask about the last step: its entries, errors, words, statistics, times. */
#include "handle.h"

#include <stdio.h>
#include <string.h>

ncclResult_t sparse_read_state(struct sparse_allreduce_handle *h)
{
  SPARSE_CUDA(cudaDeviceSynchronize());
  SPARSE_CUDA(cudaMemcpy(h->state, h->m.state, sizeof(*h->state), cudaMemcpyDeviceToHost));
  if (h->alltoallv != NULL && !h->onesided) /* where it delivers them */
    SPARSE_CUDA(cudaMemcpy(h->state->all_nonfinite, h->m.flags->nonfinite,
                           sizeof(h->state->all_nonfinite), cudaMemcpyDeviceToHost));
  return ncclSuccess;
}

/* A rank was late, or the AlltoAllV got counts that cannot be, which is not the caller's fault. */
static ncclResult_t find_error(struct sparse_allreduce_handle *h)
{
  ncclResult_t result = ncclSuccess;
  if (h->state->progress.late) {
    h->broken = ncclRemoteError;
    snprintf(h->reason, sizeof(h->reason), "nothing came from rank %d in time",
             (int)h->state->progress.late - 1);
    return ncclSuccess;
  }
  if (h->alltoallv != NULL)
    SPARSE_TRY(sparse_alltoallv(alltoallv_get_async_error(h->alltoallv, &result, NULL, NULL)));
  if (result == ncclSuccess) return ncclSuccess;
  h->broken = result == ncclRemoteError ? ncclRemoteError : ncclInternalError;
  snprintf(h->reason, sizeof(h->reason), "%s", alltoallv_last_error());
  return ncclSuccess;
}

ncclResult_t sparse_usable(const struct sparse_allreduce_handle *h, const void *argument)
{
  if (h == NULL || argument == NULL) return sparse_fail(ncclInvalidArgument, "NULL argument");
  return h->broken == ncclSuccess ? ncclSuccess : sparse_fail(h->broken, "%s", h->reason);
}

ncclResult_t sparse_wait(struct sparse_allreduce_handle *h, const void *argument)
{
  SPARSE_TRY(sparse_usable(h, argument));
  SPARSE_TRY(sparse_read_state(h));
  SPARSE_TRY(find_error(h));
  return sparse_usable(h, argument);
}

/* ---- entries --------------------------------------------------------------------------------- */

ncclResult_t sparse_allreduce_sparse_result(sparse_allreduce_t handle,
                                            const struct sparse_pair **pairs,
                                            const uint64_t **count)
{
  SPARSE_TRY(sparse_usable(handle, handle));
  const bool entries = handle->last.there && !sparse_is_dense(handle->last);
  if (pairs != NULL) *pairs = entries ? handle->m.gathered : NULL;
  if (count != NULL) *count = entries ? &handle->m.state->result_count : NULL;
  return ncclSuccess;
}

ncclResult_t sparse_allreduce_add(sparse_allreduce_t handle, float scale, float *vector,
                                  cudaStream_t stream)
{
  const struct sparse_allreduce_handle *h = handle;
  SPARSE_TRY(sparse_usable(h, vector));
  enum cudaStreamCaptureStatus status;
  SPARSE_CUDA(cudaStreamIsCapturing(stream, &status));
  const struct sparse_step step = status == cudaStreamCaptureStatusNone ? h->last : h->latest;
  if (!step.there)
    return sparse_fail(ncclInvalidUsage, "no step has run yet whose result could be added");
  if (sparse_is_dense(step)) return ops_add_dense(&h->m, scale, vector, stream);
  return ops_add(&h->m, sparse_result(&h->m), scale, vector, stream);
}

/* ---- errors on the device -------------------------------------------------------------------- */

/* Was a gradient of the last step not finite? Names the first such element of the first rank. */
static ncclResult_t check_finite(const struct sparse_allreduce_handle *h, ncclResult_t *result)
{
  if (h->m.config.nonfinite != SPARSE_NONFINITE_ERROR || !h->last.there || h->last.dense)
    return ncclSuccess;
  for (int p = 0; p < h->m.nranks; p++) {
    const uint32_t element = h->state->all_nonfinite[p];
    if (element == 0) continue;
    *result = ncclInvalidArgument;
    sparse_say("element %u of rank %d's gradient is not finite", element - 1, p);
    break;
  }
  return ncclSuccess;
}

ncclResult_t sparse_allreduce_get_async_error(sparse_allreduce_t handle, ncclResult_t *result)
{
  if (handle == NULL || result == NULL) return sparse_fail(ncclInvalidArgument, "NULL argument");
  *result = ncclSuccess;
  const ncclResult_t waited = sparse_wait(handle, result);
  if (waited == ncclSuccess) return check_finite(handle, result);
  *result = handle->broken;
  return handle->broken == ncclSuccess ? waited : ncclSuccess;
}

/* ---- words -----------------------------------------------------------------------------------
 *
 * Of 32 bits, that the last step moved between this rank and others by the algorithm, whatever the
 * exchange. One-sided, a rank may also send candidates that a raised threshold does not choose,
 * fewer sums move in exact steps (ops_select_sums()), and nothing is evened out. */

static uint64_t sum_of_others(const struct sparse_memory *m, const uint64_t *counts)
{
  uint64_t sum = 0;
  for (int p = 0; p < m->nranks; p++)
    if (p != m->rank) sum += counts[p];
  return sum;
}

/* Lists of k entries up a tree, and one from the root to all. */
static void count_tree(const struct sparse_memory *m, uint64_t *sent, uint64_t *received)
{
  int step = 1;
  for (; step < m->nranks && m->rank % (2 * step) == 0; step *= 2)
    if (m->rank + step < m->nranks) *received += m->k;
  *sent = m->rank == 0 ? m->k * (uint64_t)(m->nranks - 1) : m->k;
  if (m->rank > 0) *received += m->k;
}

/* The gather of all sums, and what ranks move before that to even them out. */
static ncclResult_t count_gather(const struct sparse_allreduce_handle *h, uint64_t *sent,
                                 uint64_t *received)
{
  const struct sparse_memory *m = &h->m;
  const struct sparse_state *s = h->state;
  const int rank = m->rank;
  uint64_t counts[SPARSE_MAX_RANKS], from[SPARSE_MAX_RANKS + 1], to[SPARSE_MAX_RANKS + 1], first;
  memcpy(counts, s->gathered_counts, sizeof(counts));
  if (h->onesided && h->last.exact_global) { /* how many sums each rank chose from */
    SPARSE_CUDA(cudaMemcpy(counts, m->flags->reduced, sizeof(counts), cudaMemcpyDeviceToHost));
    for (int p = 0; p < m->nranks; p++) counts[p] = (uint32_t)counts[p];
  }
  exchange_shares(h, counts, from, to);
  const uint64_t stays = exchange_overlap(&from[rank], &to[rank], &first);
  const uint64_t own = to[rank + 1] - to[rank];
  *sent += counts[rank] - stays + own * (uint64_t)(m->nranks - 1);
  *received += own - stays + to[m->nranks] - own;
  return ncclSuccess;
}

static ncclResult_t count_words(const struct sparse_allreduce_handle *h, uint64_t *sent,
                                uint64_t *received)
{
  const struct sparse_memory *m = &h->m;
  const struct sparse_state *s = h->state;
  const uint64_t nranks = (uint64_t)m->nranks;
  if (h->last.dense) { /* every element, as a ring moves them */
    *sent = *received = 2 * m->n * (nranks - 1) / nranks;
    return ncclSuccess;
  }
  if (h->path->sums == SPARSE_SUMS_UP_A_TREE) {
    count_tree(m, sent, received);
  } else if (h->path->sums ==
             SPARSE_SUMS_AT_OWNERS) { /* lists to owners, their sums to every rank */
    *sent = sum_of_others(m, s->region_counts);
    *received = sum_of_others(m, s->received_counts);
    if (!h->last.fell_back) SPARSE_TRY(count_gather(h, sent, received));
  } else { /* every rank's list to every rank */
    *sent = s->offered_count * (nranks - 1);
    *received = sum_of_others(m, s->received_counts);
  }
  *sent *= 2; /* an entry has two words */
  *received *= 2;
  if (h->last.fell_back) { /* a region of the vector to every rank */
    const uint64_t region = s->kept.boundaries[m->rank + 1] - s->kept.boundaries[m->rank];
    *sent += region * (nranks - 1);
    *received += m->n - region;
  }
  return ncclSuccess;
}

/* ---- statistics ------------------------------------------------------------------------------ */

ncclResult_t sparse_allreduce_statistics(sparse_allreduce_t handle,
                                         sparse_allreduce_statistics_t *statistics)
{
  const struct sparse_allreduce_handle *h = handle;
  SPARSE_TRY(sparse_wait(handle, statistics));
  const struct sparse_state *s = h->state;
  sparse_allreduce_statistics_t *out = statistics;
  memset(out, 0, sizeof(*out));
  out->step = h->step == 0 ? 0 : h->step - 1;
  out->k = h->m.k;
  out->capacity = h->m.capacity;
  out->dense = h->last.dense;
  out->boundaries = s->kept.boundaries;
  if (!h->last.there) return ncclSuccess; /* nothing has happened */
  SPARSE_TRY(count_words(h, &out->words_sent, &out->words_received));
  if (h->last.dense) {
    out->local = out->global = h->m.n;
    out->selected_tie = -1;
    return ncclSuccess;
  }
  out->local = s->offered_count;
  out->global = h->last.fell_back ? h->m.n : s->result_count;
  out->local_threshold = s->kept.local_threshold;
  out->global_threshold = s->kept.global_threshold;
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

ncclResult_t sparse_allreduce_mode(sparse_allreduce_t handle, sparse_mode_t *mode,
                                   const char **reason)
{
  SPARSE_TRY(sparse_usable(handle, handle));
  const sparse_mode_t counts = handle->alltoallv ? SPARSE_MODE_DEVICE_COUNTS : SPARSE_MODE_NCCL;
  if (mode != NULL) *mode = handle->onesided ? SPARSE_MODE_ONESIDED : counts;
  if (reason != NULL) *reason = handle->why;
  return ncclSuccess;
}

ncclResult_t sparse_allreduce_time_phases(sparse_allreduce_t handle, int on)
{
  SPARSE_TRY(sparse_usable(handle, handle));
  handle->time_phases = on != 0;
  return ncclSuccess;
}

ncclResult_t sparse_allreduce_phases(sparse_allreduce_t handle, sparse_allreduce_phases_t *phases)
{
  SPARSE_TRY(sparse_usable(handle, phases));
  if (handle->phase <= SPARSE_PHASES)
    return sparse_fail(ncclInvalidUsage, "the last step was not timed: call "
                                         "sparse_allreduce_time_phases before it, without a graph");
  float *out[SPARSE_PHASES] = {&phases->select, &phases->exchange, &phases->reduce, &phases->gather,
                               &phases->apply};
  SPARSE_CUDA(cudaEventSynchronize(handle->phases[SPARSE_PHASES]));
  for (int i = 0; i < SPARSE_PHASES; i++)
    SPARSE_CUDA(cudaEventElapsedTime(out[i], handle->phases[i], handle->phases[i + 1]));
  return ncclSuccess;
}
