/* SPDX-License-Identifier: Apache-2.0 */
/* A step: which kind comes next, and running it. The algorithms are in paths/. */
#include "handle.h"

#include <stdarg.h>
#include <stdio.h>

/* ---- errors ---------------------------------------------------------------------------------- */

static _Thread_local char last_error[1024];

const char *sparse_allreduce_last_error(void)
{
  return last_error;
}

ncclResult_t sparse_fail(ncclResult_t result, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  vsnprintf(last_error, sizeof(last_error), format, args);
  va_end(args);
  return result;
}

ncclResult_t sparse_fail_nccl(ncclResult_t result, const char *call)
{
  const char *reason = ncclGetLastError(NULL);
  const bool has = reason != NULL && *reason != '\0';
  return sparse_fail(result, "%s: %s%s%s", call, ncclGetErrorString(result), has ? ": " : "",
                     has ? reason : "");
}

ncclResult_t sparse_fail_alltoallv(ncclResult_t result)
{
  return sparse_fail(result, "%s", alltoallv_last_error());
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* Is the next step one of those that come every so many steps? 0: there are none. The first sparse
 * step is one of them. */
static bool is_due(const struct sparse_allreduce_handle *h, int interval)
{
  if (interval == 0) return false;
  return h->step == h->first_sparse || h->step % (uint64_t)interval == 0;
}

/* What the next step is. */
static struct sparse_step next_step(const struct sparse_allreduce_handle *h)
{
  if (!h->path->selects || h->step < h->first_sparse) return (struct sparse_step){.dense = true};
  if (h->path->intervals == NULL) return (struct sparse_step){0};
  const struct sparse_intervals intervals = h->path->intervals(&h->m.constants);
  return (struct sparse_step){
      .exact_local = is_due(h, intervals.exact_local),
      .exact_global = is_due(h, intervals.exact_global),
      .repartition = is_due(h, intervals.repartition),
  };
}

/* Such a step cannot be captured. */
static bool host_waits(const struct sparse_allreduce_handle *h)
{
  const enum sparse_host host = h->now.dense ? SPARSE_HOST_NEVER_WAITS : h->path->host;
  return host == SPARSE_HOST_WAITS || (host == SPARSE_HOST_MAY_WAIT && h->alltoallv == NULL);
}

ncclResult_t sparse_phase(struct sparse_allreduce_handle *h, enum sparse_phase phase,
                          cudaStream_t stream)
{
  if (!h->time_phases || h->capturing) return ncclSuccess;
  while (h->phase <= (int)phase) SPARSE_CUDA(cudaEventRecord(h->phases[h->phase++], stream));
  return ncclSuccess;
}

/* The one place where a path, and its way to exchange, is chosen. */
static sparse_path_t *path_of_step(const struct sparse_allreduce_handle *h)
{
  if (h->now.dense) return path_dense;
  return h->onesided ? h->path->run_onesided : h->path->run;
}

static ncclResult_t enqueue_step(struct sparse_allreduce_handle *h, const void *gradient,
                                 cudaStream_t stream)
{
  h->phase = 0;
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_SELECT, stream));
  if (!h->now.dense && h->result_dirty) SPARSE_TRY(ops_clear(&h->m, stream));
  SPARSE_TRY(path_of_step(h)(h, gradient, stream));
  /* what leaves the residual would do so in the next step, but the caller looks at it before */
  if (h->m.shared && !h->now.dense) SPARSE_TRY(ops_clear_pending(&h->m, stream));
  /* one-sided, it is among what ranks tell each other anyway */
  if (!h->now.dense && !h->onesided && h->m.config.nonfinite == SPARSE_NONFINITE_ERROR)
    SPARSE_TRY(exchange_nonfinite(h, stream));
  return sparse_phase(h, SPARSE_PHASES, stream);
}

/* Where the result of the step of h->now is going to be. */
static enum sparse_holds result_of(const struct sparse_step *now)
{
  return now->dense || now->fell_back ? SPARSE_HOLDS_DENSE : SPARSE_HOLDS_ENTRIES;
}

/* The step of h->now is on its way. */
static void count_step(struct sparse_allreduce_handle *h)
{
  h->holds = h->latest = result_of(&h->now);
  h->result_dirty = h->holds == SPARSE_HOLDS_DENSE && h->m.config.result == SPARSE_RESULT_DENSE;
  h->last = h->now;
  h->step++;
}

ncclResult_t sparse_allreduce_run(sparse_allreduce_t handle, const void *gradient,
                                  const float **result, cudaStream_t stream)
{
  struct sparse_allreduce_handle *h = handle;
  if (h == NULL) return sparse_fail(ncclInvalidArgument, "NULL handle");
  enum cudaStreamCaptureStatus status;
  SPARSE_CUDA(cudaStreamIsCapturing(stream, &status));
  h->capturing = status != cudaStreamCaptureStatusNone;
  h->now = next_step(h);
  if (gradient == NULL && h->now.dense)
    return sparse_fail(ncclInvalidArgument, "a dense step needs a gradient");
  if (h->capturing && host_waits(h))
    return sparse_fail(ncclInvalidUsage, "the host reads counts in this step: no capture");
  SPARSE_TRY(enqueue_step(h, gradient, stream));
  if (h->capturing) {
    h->captured = true; /* no event of ours says when a replay is over */
    h->latest = result_of(&h->now);
  } else {
    SPARSE_CUDA(cudaEventRecord(h->done, stream));
    count_step(h);
  }
  const bool entries = h->m.config.result == SPARSE_RESULT_ENTRIES;
  const bool dense = !entries || h->latest == SPARSE_HOLDS_DENSE;
  if (result != NULL) *result = dense ? h->m.dense : NULL;
  return ncclSuccess;
}

ncclResult_t sparse_allreduce_kind(sparse_allreduce_t handle, int *kind)
{
  if (handle == NULL || kind == NULL) return sparse_fail(ncclInvalidArgument, "NULL argument");
  const struct sparse_step next = next_step(handle);
  const bool clear = !next.dense && handle->result_dirty;
  *kind = next.dense | next.exact_local << 1 | next.exact_global << 2 | next.repartition << 3 |
          clear << 4;
  return ncclSuccess;
}

ncclResult_t sparse_allreduce_replayed(sparse_allreduce_t handle)
{
  if (handle == NULL) return sparse_fail(ncclInvalidArgument, "NULL argument");
  handle->now = next_step(handle);
  handle->phase = 0; /* graphs are not timed */
  count_step(handle);
  return ncclSuccess;
}

ncclResult_t sparse_clear_pending(struct sparse_allreduce_handle *h)
{
  SPARSE_TRY(sparse_wait(h));
  SPARSE_TRY(ops_clear_pending(&h->m, h->own));
  SPARSE_CUDA(cudaStreamSynchronize(h->own));
  return ncclSuccess;
}

ncclResult_t sparse_allreduce_residual(sparse_allreduce_t handle, float **residual)
{
  if (handle == NULL || residual == NULL) return sparse_fail(ncclInvalidArgument, "NULL argument");
  if (handle->m.residual != NULL) SPARSE_TRY(sparse_clear_pending(handle));
  handle->m.shared = true;
  *residual = handle->m.residual;
  return ncclSuccess;
}
