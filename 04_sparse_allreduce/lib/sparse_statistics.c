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
  } else if (h->onesided) {
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
  out->global = h->last.fell_back ? h->m.n : s->result_count - s->result_flags;
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
