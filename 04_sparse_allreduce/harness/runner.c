/* SPDX-License-Identifier: Apache-2.0 */
#include "program.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const float SCALE = -0.1f; /* minus the learning rate; no power of 2, so that it rounds */

static float *device_vector(size_t count)
{
  float *vector;
  CUDACHECK(cudaMalloc((void **)&vector, count * sizeof *vector));
  CUDACHECK(cudaMemset(vector, 0, count * sizeof *vector));
  CUDACHECK(cudaDeviceSynchronize());
  return vector;
}

static void create_handle(struct runner *r)
{
  const ncclResult_t result = sparse_allreduce_create_with(r->job->comm, r->count, &r->config,
                                                           r->job->constants, &r->handle);
  if (result == ncclRemoteError) sleep(1); /* the rank with the reason reports it first */
  CHECK_NCCL_RESULT(result, "sparse_allreduce_create", sparse_allreduce_last_error());
}

void runner_create(struct runner *r, const struct job *job, size_t count,
                   const sparse_allreduce_config_t *config, bool simple, bool updates)
{
  *r = (struct runner){.job = job, .count = count, .config = *config};
  if (!simple)
    create_handle(r);
  else
    r->simple = simple_create(job->comm, job->me, count, config);
  if (config->result == SPARSE_RESULT_ENTRIES) r->dense = device_vector(count);
  if (updates) r->weights = device_vector(count);
}

void runner_destroy(struct runner *r)
{
  simple_destroy(r->simple);
  if (r->handle) SPARSECHECK(sparse_allreduce_destroy(r->handle));
  CUDACHECK(cudaFree(r->weights));
  CUDACHECK(cudaFree(r->dense));
  launcher_barrier(r->job->me); /* ranks may be threads of one process */
}

const char *runner_mode(const struct runner *r, const char **reason)
{
  static const char *const names[] = {
      [SPARSE_MODE_NCCL] = "send/recv",
      [SPARSE_MODE_DEVICE_COUNTS] = "device counts",
      [SPARSE_MODE_ONESIDED] = "one-sided",
  };
  sparse_mode_t mode = SPARSE_MODE_NCCL;
  *reason = "";
  if (r->handle) SPARSECHECK(sparse_allreduce_mode(r->handle, &mode, reason));
  if (r->config.algorithm == SPARSE_DENSE) return "allreduce";
  return r->simple ? "simple" : names[mode];
}

float runner_updated(float weight, float result)
{
  return simple_add(fmaf(SCALE, result, weight), 0);
}

ncclResult_t runner_step(struct runner *r, const void *gradient)
{
  const cudaStream_t stream = r->job->stream;
  if (r->simple) {
    simple_step(r->simple, gradient, stream);
    return ncclSuccess;
  }
  const ncclResult_t code = sparse_allreduce_run(r->handle, gradient, &r->result, stream);
  return code == ncclSuccess ? runner_update(r) : code;
}

ncclResult_t runner_update(const struct runner *r)
{
  if (!r->weights) return ncclSuccess;
  return sparse_allreduce_add(r->handle, SCALE, r->weights, r->job->stream);
}

/* What a step left. */
static void read_simple(struct runner *r)
{
  const struct simple *s = r->simple;
  CUDACHECK(cudaDeviceSynchronize());
  if (s->nonfinite > 0 && r->config.nonfinite == SPARSE_NONFINITE_ERROR)
    snprintf(r->reason, sizeof r->reason, "the gradient is not finite in %zu of its elements",
             s->nonfinite);
  r->last = s->last;
  r->result = s->result;
  r->entries = s->last.dense || s->last.fell_back ? NULL : s->global;
  r->nentries = s->last.global;
}

static void read_library(struct runner *r)
{
  const uint64_t *count;
  ncclResult_t result;
  SPARSECHECK(sparse_allreduce_get_async_error(r->handle, &result));
  if (result != ncclInvalidArgument) /* which every rank gets */
    CHECK_NCCL_RESULT(result, "sparse_allreduce_run", sparse_allreduce_last_error());
  else
    snprintf(r->reason, sizeof r->reason, "%s", sparse_allreduce_last_error());
  SPARSECHECK(sparse_allreduce_statistics(r->handle, &r->last));
  SPARSECHECK(sparse_allreduce_sparse_result(r->handle, &r->entries, &count));
  if (r->entries)
    CUDACHECK(cudaMemcpy(&r->nentries, count, sizeof r->nentries, cudaMemcpyDeviceToHost));
  if (r->dense) {
    CUDACHECK(cudaMemset(r->dense, 0, r->count * sizeof *r->dense));
    SPARSECHECK(sparse_allreduce_add(r->handle, 1, r->dense, 0));
    r->result = r->dense;
  }
  CUDACHECK(cudaDeviceSynchronize());
}

void runner_read(struct runner *r)
{
  *r->reason = '\0';
  (r->simple ? read_simple : read_library)(r);
}

int runner_finish(struct runner *r)
{
  const struct rank *me = r->job->me;
  runner_read(r);
  if (*r->reason && (r->simple || me->rank == 0)) /* the library's is the same on all ranks */
    launcher_error("%s, step %llu: %s; allowed: finite elements, or --nonfinite drop",
                   simple_paths[r->config.algorithm].name, (unsigned long long)r->last.step,
                   r->reason);
  return launcher_agree(me, *r->reason ? EXIT_WRONG_DATA : EXIT_VERIFIED);
}

void runner_residual(const struct runner *r, float *host)
{
  float *residual = r->simple ? r->simple->acc : NULL;
  if (r->handle) SPARSECHECK(sparse_allreduce_residual(r->handle, &residual));
  if (residual)
    CUDACHECK(cudaMemcpy(host, residual, r->count * sizeof *host, cudaMemcpyDeviceToHost));
  else
    memset(host, 0, r->count * sizeof *host);
}

/* ---- what a step hands to the next ----------------------------------------------------------- */

void *runner_save(const struct runner *r)
{
  if (r->simple) return NULL;
  void *state = launcher_allocate(sparse_allreduce_state_bytes(r->handle));
  SPARSECHECK(sparse_allreduce_save(r->handle, state));
  return state;
}

void runner_load(const struct runner *r, const void *state)
{
  if (r->simple)
    simple_reset(r->simple);
  else
    SPARSECHECK(sparse_allreduce_load(r->handle, state));
}
