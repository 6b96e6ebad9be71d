/* SPDX-License-Identifier: Apache-2.0 */
#include "version.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

bool version_has_simple(sparse_allreduce_algorithm_t algorithm)
{
  return algorithm == SPARSE_TOPKA || algorithm == SPARSE_OKTOPK;
}

size_t version_simple_bytes(size_t count, double density, int ranks)
{
  size_t capacity;
  sparse_allreduce_sizes(count, density, NULL, &capacity);
  return count * (3 * sizeof(float) + 3 * sizeof(struct sparse_pair) + 32) +
         (size_t)ranks * capacity * sizeof(struct sparse_pair) + ((size_t)64 << 20);
}

static void *allocate(size_t bytes)
{
  void *memory = malloc(bytes);
  if (!memory) launcher_fail(__FILE__, __LINE__, "malloc", "out of memory", NULL);
  return memory;
}

static void create_handle(struct version *v, const struct job *job, ncclComm_t comm, size_t count,
                          const sparse_allreduce_config_t *config)
{
  ncclResult_t result = sparse_allreduce_create(comm, count, config, &v->handle);
  if (result == ncclInvalidUsage) { /* on all ranks */
    if (job->me->rank == 0)
      fprintf(stderr, "sparse_allreduce: --exchange: %s; allowed: auto, sendrecv\n",
              sparse_allreduce_last_error());
    launcher_barrier(job->me);
    launcher_abort(EXIT_CANNOT_RUN);
  }
  if (result == ncclRemoteError) sleep(1); /* the rank that knows more speaks first */
  if (result != ncclSuccess)
    launcher_fail(__FILE__, __LINE__, "sparse_allreduce_create", ncclGetErrorString(result),
                  sparse_allreduce_last_error());
}

void version_create(struct version *v, const struct job *job, ncclComm_t comm, size_t count,
                    const sparse_allreduce_config_t *config, bool simple)
{
  *v = (struct version){.boundaries = allocate(((size_t)job->me->nranks + 1) * sizeof(uint64_t))};
  if (simple)
    v->simple = simple_create(comm, count, config);
  else
    create_handle(v, job, comm, count, config);
  if (!simple && config->result == SPARSE_RESULT_ENTRIES) v->update = update_create(count);
}

void version_destroy(struct version *v)
{
  if (v->simple) simple_destroy(v->simple);
  if (v->handle) SPARSECHECK(sparse_allreduce_destroy(v->handle));
  update_destroy(v->update);
  free(v->boundaries);
}

const char *version_mode(const struct version *v)
{
  static const char *const names[] = {
      [SPARSE_MODE_NCCL] = "send/recv",
      [SPARSE_MODE_DEVICE_COUNTS] = "device counts",
      [SPARSE_MODE_ONESIDED] = "one-sided",
  };
  sparse_mode_t mode;
  if (v->simple) return "simple";
  SPARSECHECK(sparse_allreduce_mode(v->handle, &mode));
  return names[mode];
}

const char *version_result(const struct version *v)
{
  return v->update ? "entries" : "dense";
}

void version_run(const struct version *v, const void *gradient, const float **result,
                 cudaStream_t stream)
{
  if (!v->simple) {
    SPARSECHECK(sparse_allreduce_run(v->handle, gradient, result, stream));
    if (v->update) SPARSECHECK(update_weights(v->update, v->handle, stream));
    return;
  }
  if (v->simple->config.algorithm == SPARSE_OKTOPK)
    simple_oktopk(v->simple, gradient, stream);
  else
    simple_topka(v->simple, gradient, stream);
  if (result) *result = v->simple->result;
}

/* ---- what a step left ------------------------------------------------------------------------ */

static struct step_left left_by_library(const struct version *v, const float *result,
                                        float *residual)
{
  struct step_left left = {.result = result, .boundaries = v->boundaries, .residual = residual};
  const uint64_t *count;
  SPARSECHECK(sparse_allreduce_statistics(v->handle, &left.statistics));
  SPARSECHECK(sparse_allreduce_boundaries(v->handle, v->boundaries));
  SPARSECHECK(sparse_allreduce_sparse_result(v->handle, &left.entries, &count));
  if (left.entries)
    CUDACHECK(cudaMemcpy(&left.count, count, sizeof left.count, cudaMemcpyDeviceToHost));
  if (residual) SPARSECHECK(sparse_allreduce_copy_residual(v->handle, residual));
  if (v->update) {
    left.result = update_dense(v->update, v->handle);
    left.weights = v->update->weights;
  }
  return left;
}

static struct step_left left_by_simple(const struct simple *s, const float *result, float *residual)
{
  struct step_left left = {.statistics = s->last,
                           .result = result,
                           .entries = s->global,
                           .count = s->last.global,
                           .boundaries = s->boundaries,
                           .residual = residual};
  left.statistics.k = s->k;
  left.statistics.capacity = s->capacity;
  left.statistics.local_threshold = s->local_threshold;
  left.statistics.global_threshold = s->global_threshold;
  memcpy(&left.statistics.selected_above, &s->rule.above, sizeof s->rule.above);
  left.statistics.selected_tie = s->rule.tie;
  CUDACHECK(cudaDeviceSynchronize());
  if (residual)
    CUDACHECK(cudaMemcpy(residual, s->acc, s->n * sizeof *s->acc, cudaMemcpyDeviceToHost));
  return left;
}

struct step_left version_left(const struct version *v, const float *result, float *residual)
{
  return v->simple ? left_by_simple(v->simple, result, residual)
                   : left_by_library(v, result, residual);
}

int version_check_async(const struct version *v, const struct job *job, const char *path,
                        uint64_t step)
{
  ncclResult_t result;
  if (v->simple) return EXIT_VERIFIED; /* a call that fails has ended the job */
  SPARSECHECK(sparse_allreduce_get_async_error(v->handle, &result));
  if (result == ncclSuccess) return EXIT_VERIFIED;
  if (result == ncclInvalidArgument) { /* every rank gets it */
    if (job->me->rank == 0)
      launcher_error("%s, step %llu: %s; allowed: finite ones, or --nonfinite drop", path,
                     (unsigned long long)step, sparse_allreduce_last_error());
    return EXIT_WRONG_DATA;
  }
  launcher_error("%s, step %llu: %s (%s)", path, (unsigned long long)step,
                 ncclGetErrorString(result), sparse_allreduce_last_error());
  launcher_abort(EXIT_FAILED_CALL);
}

/* ---- what a step hands to the next ----------------------------------------------------------- */

void *version_save(const struct version *v)
{
  if (v->simple) return NULL;
  void *state = allocate(sparse_allreduce_state_bytes(v->handle));
  SPARSECHECK(sparse_allreduce_save(v->handle, state));
  return state;
}

void version_load(const struct version *v, const void *state)
{
  if (v->handle) {
    SPARSECHECK(sparse_allreduce_load(v->handle, state));
    return;
  }
  struct simple *s = v->simple; /* a first step finds thresholds and regions of its own */
  s->steps = 0;
  CUDACHECK(cudaMemset(s->acc, 0, s->n * sizeof *s->acc));
  CUDACHECK(cudaDeviceSynchronize());
}

void version_restart(struct version *v, const struct job *job, ncclComm_t comm,
                     const sparse_allreduce_config_t *config)
{
  void *state = version_save(v);
  SPARSECHECK(sparse_allreduce_destroy(v->handle));
  launcher_barrier(job->me);
  create_handle(v, job, comm, job->count, config);
  version_load(v, state);
  free(state);
}
