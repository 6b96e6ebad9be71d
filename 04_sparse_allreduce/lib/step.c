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

void sparse_say(const char *format, ...)
{
  va_list args;
  va_start(args, format);
  vsnprintf(last_error, sizeof(last_error), format, args);
  va_end(args);
}

ncclResult_t sparse_fail_nccl(ncclResult_t result, const char *call)
{
  const char *reason = ncclGetLastError(NULL);
  const bool has = reason != NULL && *reason != '\0';
  return sparse_fail(result, "%s: %s%s%s", call, ncclGetErrorString(result), has ? ": " : "",
                     has ? reason : "");
}

ncclResult_t sparse_alltoallv(ncclResult_t result)
{
  return result == ncclSuccess ? result : sparse_fail(result, "%s", alltoallv_last_error());
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* Is the next step one of those that come every `interval` steps? The first sparse step is, and the
 * first one with another density. */
static bool is_due(const struct sparse_allreduce_handle *h, int interval)
{
  return h->step == h->exact_step || h->step % (uint64_t)interval == 0;
}

/* What the next step is. */
static struct sparse_step next_step(const struct sparse_allreduce_handle *h)
{
  const struct sparse_constants *c = &h->m.constants;
  const bool adapts = h->m.adapts, reuses = h->m.select == SPARSE_SELECT_REUSED;
  if (h->m.select == SPARSE_SELECT_NOTHING || h->step < (uint64_t)h->m.config.warmup_steps)
    return (struct sparse_step){.there = true, .dense = true};
  return (struct sparse_step){
      .there = true,
      .exact_local = reuses && is_due(h, adapts ? c->local_interval : c->topkaopt_interval),
      .exact_global = adapts && is_due(h, c->global_interval),
      .repartition = adapts && is_due(h, c->repartition_interval),
  };
}

/* Such a step cannot be captured. */
static bool host_waits(const struct sparse_allreduce_handle *h)
{
  const bool counts = sparse_varies(h->path) && h->alltoallv == NULL;
  return !h->now.dense && (h->path->falls_back || counts);
}

static sparse_step_t *step_function(const struct sparse_allreduce_handle *h)
{
  if (h->now.dense) return step_dense;
  if (h->path->sums == SPARSE_SUMS_UP_A_TREE) return step_up_a_tree;
  return h->onesided ? step_onesided : step_of_lists;
}

ncclResult_t sparse_allreduce_run(sparse_allreduce_t handle, const void *gradient,
                                  const float **result, cudaStream_t stream)
{
  struct sparse_allreduce_handle *h = handle;
  SPARSE_TRY(sparse_usable(h, h));
  enum cudaStreamCaptureStatus status;
  SPARSE_CUDA(cudaStreamIsCapturing(stream, &status));
  const bool capturing = status != cudaStreamCaptureStatusNone;
  h->now = next_step(h);
  if (gradient == NULL && h->now.dense)
    return sparse_fail(ncclInvalidArgument, "a dense step needs a gradient");
  if (capturing && host_waits(h))
    return sparse_fail(ncclInvalidUsage, "cannot be captured: the host reads counts in this step");
  SPARSE_TRY(step_function(h)(h, gradient, stream));
  /* one-sided, ranks exchange it anyway */
  if (!h->now.dense && !h->onesided && h->m.config.nonfinite == SPARSE_NONFINITE_ERROR)
    SPARSE_TRY(exchange_nonfinite(h, stream));
  h->latest = h->now;
  if (!capturing) {
    h->last = h->now;
    h->step++;
  }
  const bool dense = h->m.config.result == SPARSE_RESULT_DENSE || sparse_is_dense(h->now);
  if (result != NULL) *result = dense ? h->m.dense : NULL;
  return ncclSuccess;
}

ncclResult_t sparse_allreduce_kind(sparse_allreduce_t handle, int *kind)
{
  SPARSE_TRY(sparse_usable(handle, kind));
  const struct sparse_step next = next_step(handle);
  *kind = next.dense | next.exact_local << 1 | next.exact_global << 2 | next.repartition << 3;
  return ncclSuccess;
}

ncclResult_t sparse_allreduce_replayed(sparse_allreduce_t handle)
{
  SPARSE_TRY(sparse_usable(handle, handle));
  handle->last = handle->latest = next_step(handle);
  handle->step++;
  return ncclSuccess;
}

ncclResult_t sparse_allreduce_residual(sparse_allreduce_t handle, float **residual)
{
  SPARSE_TRY(sparse_wait(handle, residual));
  *residual = handle->m.residual;
  if (*residual == NULL) return ncclSuccess;
  SPARSE_TRY(ops_clear_pending(&handle->m, handle->own));
  SPARSE_CUDA(cudaDeviceSynchronize());
  return ncclSuccess;
}
