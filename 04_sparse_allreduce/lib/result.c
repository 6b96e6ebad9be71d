/* SPDX-License-Identifier: Apache-2.0 */
/* What callers may ask about the last step: its entries, errors, words, statistics. */
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
 * Of 32 bits, that this rank sent to others in the last step by the algorithm, whatever the
 * exchange. One-sided, a rank may also send candidates that a raised threshold does not choose,
 * fewer sums move in exact steps (choose_sent()), and nothing is evened out. */

/* The gather of all sums, and what this rank sends before that to even them out. */
static ncclResult_t count_gather(const struct sparse_allreduce_handle *h, uint64_t *entries)
{
  const struct sparse_memory *m = &h->m;
  const int rank = m->rank;
  uint64_t counts[SPARSE_MAX_RANKS], from[SPARSE_MAX_RANKS + 1], to[SPARSE_MAX_RANKS + 1], first;
  memcpy(counts, h->state->gathered_counts, sizeof(counts));
  if (h->onesided && h->last.exact_global) { /* how many sums each rank chose from */
    SPARSE_CUDA(cudaMemcpy(counts, m->flags->reduced, sizeof(counts), cudaMemcpyDeviceToHost));
    for (int p = 0; p < m->nranks; p++) counts[p] = (uint32_t)counts[p];
  }
  exchange_shares(h, counts, from, to);
  *entries += counts[rank] - exchange_overlap(&from[rank], &to[rank], &first) +
              (to[rank + 1] - to[rank]) * (uint64_t)(m->nranks - 1);
  return ncclSuccess;
}

static ncclResult_t count_words(const struct sparse_allreduce_handle *h, uint64_t *words)
{
  const struct sparse_memory *m = &h->m;
  const struct sparse_state *s = h->state;
  const uint64_t others = (uint64_t)m->nranks - 1;
  uint64_t entries = 0;
  if (h->last.dense) { /* every element, as a ring moves them */
    *words = 2 * m->n * others / (others + 1);
    return ncclSuccess;
  }
  if (h->path->sums == SPARSE_SUMS_UP_A_TREE) { /* to the next rank up, or from the root to all */
    entries = m->rank == 0 ? m->k * others : m->k;
  } else if (h->path->sums == SPARSE_SUMS_AT_ALL) {
    entries = s->offered_count * others;
  } else { /* lists to owners, their sums to every rank */
    for (int p = 0; p < m->nranks; p++)
      if (p != m->rank) entries += s->region_counts[p];
    if (!h->last.fell_back) SPARSE_TRY(count_gather(h, &entries));
  }
  *words = 2 * entries;
  if (h->last.fell_back) /* a region of the vector to every rank */
    *words += (s->kept.boundaries[m->rank + 1] - s->kept.boundaries[m->rank]) * others;
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
  SPARSE_TRY(count_words(h, &out->words_sent));
  if (h->last.dense) {
    out->local = out->global = h->m.n;
    return ncclSuccess;
  }
  out->local = s->offered_count;
  out->global = h->last.fell_back ? h->m.n : s->result_count;
  out->local_threshold = s->kept.local_threshold;
  out->global_threshold = s->kept.global_threshold;
  out->gaussian_threshold = s->gaussian_threshold;
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
