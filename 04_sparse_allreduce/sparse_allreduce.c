/* SPDX-License-Identifier: Apache-2.0 */
/* The handle of a sparse allreduce: its memory, what kind of step comes next, and what callers may
 * ask. The algorithms are in path_*.c. */
#include "sparse_internal.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors -------------------------------------------------------------------------------------
 */

static _Thread_local char last_error[256];

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

/* ---- create -------------------------------------------------------------------------------------
 */

static sparse_path_t *const paths[SPARSE_ALGORITHMS] = {
    [SPARSE_DENSE] = path_dense,
    [SPARSE_TOPKA] = path_topka,
    [SPARSE_TOPKA2] = path_topka,
    [SPARSE_TOPKAOPT] = path_topkaopt,
    [SPARSE_GTOPK] = path_gtopk,
    [SPARSE_OKTOPK] = path_oktopk,
    [SPARSE_TOPKSA] = path_topksa,
    [SPARSE_GAUSSIANK] = path_gaussiank,
    [SPARSE_GAUSSIANKCONCAT] = path_gaussiank,
    [SPARSE_GAUSSIANKSA] = path_gaussiansa,
};

/* Memory whose size depends on nothing but the arguments, so that a rank can tell before it
 * allocates anything whether it will fit. */
static ncclResult_t allocate(struct sparse_allreduce_handle *h)
{
  struct sparse_memory *m = &h->m;
  const size_t nranks = (size_t)m->nranks, bytes = m->n * sizeof(float);
  const size_t scratch = ops_scratch_bytes(m->n, m->nranks, m->capacity);
  const size_t list = nranks * m->slot * sizeof(struct sparse_pair);
  SPARSE_CUDA(cudaMalloc((void **)&m->dense, bytes));
  SPARSE_CUDA(cudaMemset(m->dense, 0, bytes));
  SPARSE_CUDA(cudaMalloc((void **)&m->state, sizeof(*m->state)));
  SPARSE_CUDA(cudaMemset(m->state, 0, sizeof(*m->state)));
  SPARSE_CUDA(cudaMallocHost((void **)&h->state, sizeof(*h->state)));
  SPARSE_CUDA(cudaEventCreateWithFlags(&h->done, cudaEventDisableTiming));
  for (int i = 0; i <= SPARSE_PHASES; i++) SPARSE_CUDA(cudaEventCreate(&h->phases[i]));
  if (m->config.algorithm == SPARSE_DENSE) return ncclSuccess;

  SPARSE_CUDA(cudaMalloc((void **)&m->residual, bytes));
  SPARSE_CUDA(cudaMemset(m->residual, 0, bytes));
  SPARSE_CUDA(cudaMalloc(&m->scratch, scratch));
  SPARSE_CUDA(cudaMemset(m->scratch, 0, scratch));
  const size_t counts = (nranks + 1) * nranks * sizeof(uint64_t);
  SPARSE_CUDA(cudaMalloc((void **)&m->matrix, counts));
  SPARSE_CUDA(cudaMallocHost((void **)&h->counts, counts));
  h->lists_bytes = 3 * list;
  SPARSE_NCCL(ncclMemAlloc((void **)&h->lists, h->lists_bytes));
  m->offered = (struct sparse_pair *)h->lists;
  m->received = m->offered + nranks * m->slot;
  m->gathered = m->received + nranks * m->slot;
  SPARSE_TRY(ops_load());
  return ncclSuccess;
}

static ncclResult_t initial_state(struct sparse_allreduce_handle *h)
{
  const struct sparse_memory *m = &h->m;
  struct sparse_state *s = h->state;
  memset(s, 0, sizeof(*s));
  s->guess = -1;
  s->always_list = SPARSE_FROM_LIST;
  s->whole[1] = m->n;
  for (int p = 0; p < m->nranks; p++) {
    s->slot_displs[p] = (uint64_t)p * m->slot;
    s->boundaries[p] = (uint64_t)p * (m->n / (size_t)m->nranks);
  }
  s->boundaries[m->nranks] = m->n;
  SPARSE_CUDA(cudaMemcpy(m->state, s, sizeof(*s), cudaMemcpyHostToDevice));
  SPARSE_CUDA(cudaEventRecord(h->done, 0));
  SPARSE_CUDA(cudaDeviceSynchronize());
  return ncclSuccess;
}

/* Collective: 0 on all ranks if `code` is 0 on all, else the largest. Every rank must get here. */
static ncclResult_t agree(struct sparse_allreduce_handle *h, uint64_t value, uint64_t *largest)
{
  uint64_t *device;
  cudaStream_t stream;
  SPARSE_CUDA(cudaStreamCreate(&stream));
  SPARSE_CUDA(cudaMalloc((void **)&device, sizeof(*device)));
  SPARSE_CUDA(cudaMemcpy(device, &value, sizeof(value), cudaMemcpyHostToDevice));
  SPARSE_NCCL(ncclAllReduce(device, device, 1, ncclUint64, ncclMax, h->comm, stream));
  SPARSE_CUDA(cudaStreamSynchronize(stream));
  SPARSE_CUDA(cudaMemcpy(largest, device, sizeof(*largest), cudaMemcpyDeviceToHost));
  SPARSE_CUDA(cudaFree(device));
  SPARSE_CUDA(cudaStreamDestroy(stream));
  return ncclSuccess;
}

/* A number that differs where count or configuration differ (FNV-1a over the fields). */
static uint64_t fingerprint(size_t count, const sparse_allreduce_config_t *c)
{
  const double fields[] = {(double)count,
                           (double)c->algorithm,
                           c->density,
                           (double)c->gradient_type,
                           (double)c->warmup_steps,
                           c->local_interval,
                           c->global_interval,
                           c->repartition_interval,
                           c->raise_steps,
                           c->raise_above.num,
                           c->raise_above.den,
                           c->raise_factor,
                           c->local_band.low.num,
                           c->local_band.low.den,
                           c->local_band.high.num,
                           c->local_band.high.den,
                           c->local_band.low_factor,
                           c->local_band.high_factor,
                           c->global_band.low.num,
                           c->global_band.low.den,
                           c->global_band.high.num,
                           c->global_band.high.den,
                           c->global_band.low_factor,
                           c->global_band.high_factor,
                           c->correction.lower_below.num,
                           c->correction.lower_below.den,
                           c->correction.lower_until.num,
                           c->correction.lower_until.den,
                           c->correction.raise_above.num,
                           c->correction.raise_above.den,
                           c->correction.lower_factor,
                           c->correction.raise_factor,
                           c->correction.lower_steps,
                           c->correction.raise_steps,
                           c->gaussian_sa_threshold,
                           c->gtopk_exact_residual,
                           c->throttle,
                           (double)c->balance,
                           (double)c->nonfinite,
                           (double)c->exchange};
  uint64_t hash = 14695981039346656037u;
  const unsigned char *byte = (const unsigned char *)fields;
  for (size_t i = 0; i < sizeof(fields); i++) hash = (hash ^ byte[i]) * 1099511628211u;
  return hash;
}

/* One-sided where it is possible and wanted. The AlltoAllV chooses for all ranks together, and it
 * must be able to reach all ranks: its host-synchronised way would be no better than ours. */
static ncclResult_t make_exchange(struct sparse_allreduce_handle *h)
{
  const sparse_exchange_t wanted = h->m.config.exchange;
  const sparse_allreduce_algorithm_t a = h->m.config.algorithm;
  if (wanted == SPARSE_EXCHANGE_SENDRECV || a == SPARSE_DENSE) return ncclSuccess;
  int reach = 0;
  const char *why;
  ncclResult_t result = alltoallv_init(h->comm, NULL, &h->alltoallv);
  if (result != ncclSuccess) {
    h->alltoallv = NULL;
    return sparse_fail(result, "%s", alltoallv_last_error());
  }
  alltoallv_method(h->alltoallv, NULL, &why);
  alltoallv_reach(h->alltoallv, &reach);
  if (reach == h->m.nranks) {
    result = alltoallv_register(h->alltoallv, h->lists, h->lists_bytes);
    return result == ncclSuccess ? result : sparse_fail(result, "%s", alltoallv_last_error());
  }
  char reason[160];
  snprintf(reason, sizeof(reason), "%s", why);
  alltoallv_destroy(h->alltoallv);
  h->alltoallv = NULL;
  if (wanted == SPARSE_EXCHANGE_ONESIDED)
    return sparse_fail(ncclInvalidUsage, "no one-sided exchange here: %s", reason);
  return ncclSuccess;
}

static void release(struct sparse_allreduce_handle *h)
{
  struct sparse_memory *m = &h->m;
  if (h->lists) ncclMemFree(h->lists);
  for (int i = 0; i <= SPARSE_PHASES; i++)
    if (h->phases[i]) cudaEventDestroy(h->phases[i]);
  if (h->done) cudaEventDestroy(h->done);
  cudaFreeHost(h->state);
  cudaFreeHost(h->counts);
  cudaFree(m->matrix);
  cudaFree(m->scratch);
  cudaFree(m->state);
  cudaFree(m->residual);
  cudaFree(m->dense);
  free(h);
}

/* The sizes that everything is derived from. */
static void set_sizes(struct sparse_memory *m, size_t count)
{
  m->n = count;
  m->t = (size_t)((double)count * m->config.density);
  m->k = m->t > 1 ? m->t : 1;
  m->capacity = 2 * m->k > 4096 ? 2 * m->k : 4096;
  if (m->capacity > count) m->capacity = count;
  m->slot = m->capacity + 1;
  m->z = sparse_normal_quantile(1 - m->config.density / 2);
}

ncclResult_t sparse_allreduce_create(ncclComm_t comm, size_t count,
                                     const sparse_allreduce_config_t *config,
                                     sparse_allreduce_t *handle)
{
  if (comm == NULL || config == NULL || handle == NULL)
    return sparse_fail(ncclInvalidArgument, "NULL argument");
  *handle = NULL;
  struct sparse_allreduce_handle *h = calloc(1, sizeof(*h));
  if (h == NULL) return sparse_fail(ncclSystemError, "out of memory");
  h->comm = comm;
  h->m.config = *config;
  ncclResult_t result = ncclCommUserRank(comm, &h->m.rank);
  if (result == ncclSuccess) result = ncclCommCount(comm, &h->m.nranks);
  if (result != ncclSuccess) {
    release(h);
    return sparse_fail(result, "communicator: %s", ncclGetErrorString(result));
  }
  char wrong[256] = "";
  const char *error = sparse_config_error(config, count, h->m.nranks);
  if (error != NULL) {
    result = sparse_fail(ncclInvalidArgument, "%s", error);
  } else {
    set_sizes(&h->m, count);
    result = allocate(h);
  }
  if (result != ncclSuccess) snprintf(wrong, sizeof(wrong), "%s", last_error);
  /* All ranks must have got this far, with the same arguments, or all leave. */
  const uint64_t mine = fingerprint(count, config);
  uint64_t failed = result != ncclSuccess, most = 0, least = 0;
  ncclResult_t talk = agree(h, failed, &failed);
  if (talk == ncclSuccess) talk = agree(h, mine, &most);
  if (talk == ncclSuccess) talk = agree(h, ~mine, &least);
  if (talk != ncclSuccess)
    result = talk;
  else if (result != ncclSuccess)
    sparse_fail(result, "%s", wrong);
  else if (failed)
    result = sparse_fail(ncclRemoteError, "another rank failed to create its handle");
  else if (most != ~least)
    result = sparse_fail(ncclInvalidArgument, "count or configuration differ between ranks");
  if (result == ncclSuccess) result = initial_state(h);
  if (result == ncclSuccess) result = make_exchange(h);
  if (result != ncclSuccess) {
    release(h);
    return result;
  }
  h->first_sparse = (uint64_t)config->warmup_steps;
  h->result_clean = true;
  *handle = h;
  return ncclSuccess;
}

ncclResult_t sparse_allreduce_destroy(sparse_allreduce_t handle)
{
  if (handle == NULL) return sparse_fail(ncclInvalidArgument, "NULL argument");
  cudaError_t error = cudaEventSynchronize(handle->done);
  ncclResult_t result = ncclSuccess;
  if (handle->alltoallv != NULL) {
    alltoallv_unregister(handle->alltoallv, handle->lists);
    result = alltoallv_destroy(handle->alltoallv);
    if (result != ncclSuccess) sparse_fail(result, "%s", alltoallv_last_error());
  }
  release(handle);
  if (error != cudaSuccess)
    return sparse_fail(ncclUnhandledCudaError, "last step: %s", cudaGetErrorString(error));
  return result;
}

/* ---- a step -------------------------------------------------------------------------------------
 */

/* The host knows what kind of step this is: it only depends on the step's number. */
static void plan_step(struct sparse_allreduce_handle *h)
{
  const sparse_allreduce_config_t *c = &h->m.config;
  const bool first = h->step == h->first_sparse;
  h->dense = c->algorithm == SPARSE_DENSE || h->step < h->first_sparse;
  const bool scheduled = c->algorithm == SPARSE_OKTOPK || c->algorithm == SPARSE_TOPKAOPT;
  h->exact_local = !h->dense && (!scheduled || first || h->step % (uint64_t)c->local_interval == 0);
  const bool oktopk = !h->dense && c->algorithm == SPARSE_OKTOPK;
  h->exact_global = oktopk && (first || h->step % (uint64_t)c->global_interval == 0);
  h->repartition = oktopk && (first || h->step % (uint64_t)c->repartition_interval == 0);
  h->fell_back = false;
}

ncclResult_t sparse_phase(struct sparse_allreduce_handle *h, enum sparse_phase phase,
                          cudaStream_t stream)
{
  if (!h->time_phases) return ncclSuccess;
  while (h->phase <= (int)phase) SPARSE_CUDA(cudaEventRecord(h->phases[h->phase++], stream));
  return ncclSuccess;
}

/* The dense result becomes zero: by undoing the entries of the step before, if they are known. */
static ncclResult_t clear_result(struct sparse_allreduce_handle *h, cudaStream_t stream)
{
  if (h->result_clean) return ncclSuccess;
  h->result_clean = true;
  if (h->has_result) return ops_undo(&h->m, SPARSE_THEN_NOTHING, stream);
  SPARSE_CUDA(cudaMemsetAsync(h->m.dense, 0, h->m.n * sizeof(float), stream));
  return ncclSuccess;
}

ncclResult_t sparse_allreduce_run(sparse_allreduce_t handle, const void *gradient,
                                  const float **result, cudaStream_t stream)
{
  struct sparse_allreduce_handle *h = handle;
  if (h == NULL) return sparse_fail(ncclInvalidArgument, "NULL handle");
  plan_step(h);
  if (gradient == NULL && h->dense)
    return sparse_fail(ncclInvalidArgument, "a dense step needs a gradient");
  h->phase = 0;
  SPARSE_TRY(sparse_phase(h, SPARSE_PHASE_SELECT, stream));
  if (h->dense) {
    SPARSE_TRY(path_dense(h, gradient, stream));
  } else {
    SPARSE_TRY(clear_result(h, stream));
    h->has_result = true;
    h->result_clean = false;
    SPARSE_TRY(paths[h->m.config.algorithm](h, gradient, stream));
  }
  if (h->time_phases)
    while (h->phase <= SPARSE_PHASES) SPARSE_CUDA(cudaEventRecord(h->phases[h->phase++], stream));
  SPARSE_CUDA(cudaEventRecord(h->done, stream));
  h->step++;
  if (result != NULL) *result = h->m.dense;
  return ncclSuccess;
}

ncclResult_t sparse_allreduce_sparse_result(sparse_allreduce_t handle,
                                            const struct sparse_pair **pairs,
                                            const uint64_t **count)
{
  if (handle == NULL || pairs == NULL || count == NULL)
    return sparse_fail(ncclInvalidArgument, "NULL argument");
  *pairs = handle->has_result ? handle->m.gathered : NULL;
  *count = handle->has_result ? &handle->m.state->result_count : NULL;
  return ncclSuccess;
}

ncclResult_t sparse_allreduce_residual(sparse_allreduce_t handle, float **residual)
{
  if (handle == NULL || residual == NULL) return sparse_fail(ncclInvalidArgument, "NULL argument");
  *residual = handle->m.residual;
  return ncclSuccess;
}

/* The state of the last step, on the host. */
static ncclResult_t read_state(struct sparse_allreduce_handle *h)
{
  SPARSE_CUDA(cudaEventSynchronize(h->done));
  SPARSE_CUDA(cudaMemcpy(h->state, h->m.state, sizeof(*h->state), cudaMemcpyDeviceToHost));
  return ncclSuccess;
}

ncclResult_t sparse_allreduce_get_async_error(sparse_allreduce_t handle, ncclResult_t *result)
{
  if (handle == NULL || result == NULL) return sparse_fail(ncclInvalidArgument, "NULL argument");
  *result = ncclSuccess;
  SPARSE_TRY(read_state(handle));
  if (handle->alltoallv != NULL) {
    int source, destination;
    if (alltoallv_get_async_error(handle->alltoallv, result, &source, &destination) != ncclSuccess)
      return sparse_fail(ncclInternalError, "%s", alltoallv_last_error());
    if (*result != ncclSuccess) return sparse_fail(ncclSuccess, "%s", alltoallv_last_error());
  }
  if (handle->m.config.nonfinite == SPARSE_NONFINITE_ERROR && !handle->dense &&
      handle->state->nonfinite) {
    *result = ncclInvalidArgument;
    sparse_fail(*result, "a gradient has elements that are not finite");
  }
  return ncclSuccess;
}

/* ---- what happened ------------------------------------------------------------------------------
 */

static uint64_t sum_of_others(const struct sparse_memory *m, const uint64_t *counts)
{
  uint64_t sum = 0;
  for (int p = 0; p < m->nranks; p++)
    if (p != m->rank) sum += counts[p];
  return sum;
}

/* Words of 32 bits that the step moved between this rank and others. */
static void count_words(const struct sparse_allreduce_handle *h, uint64_t *sent, uint64_t *received)
{
  const struct sparse_memory *m = &h->m;
  const struct sparse_state *s = h->state;
  const uint64_t others = (uint64_t)m->nranks - 1;
  *sent = *received = 0;
  if (h->dense) {
    *sent = *received = 2 * m->n * others / (uint64_t)m->nranks;
    return;
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
    if (h->fell_back) {
      const uint64_t region = s->boundaries[m->rank + 1] - s->boundaries[m->rank];
      *sent += region * others;
      *received += m->n - region;
    } else {
      *sent += 2 * s->reduced_count * others;
      *received += 2 * (s->gathered_total - s->reduced_count);
    }
    break;
  default:
    *sent = 2 * s->offered_count * others;
    *received = 2 * sum_of_others(m, s->received_counts);
  }
}

ncclResult_t sparse_allreduce_statistics(sparse_allreduce_t handle,
                                         sparse_allreduce_statistics_t *statistics)
{
  if (handle == NULL || statistics == NULL)
    return sparse_fail(ncclInvalidArgument, "NULL argument");
  const struct sparse_allreduce_handle *h = handle;
  SPARSE_TRY(read_state(handle));
  const struct sparse_state *s = h->state;
  sparse_allreduce_statistics_t *out = statistics;
  memset(out, 0, sizeof(*out));
  out->step = h->step == 0 ? 0 : h->step - 1;
  out->k = h->m.k;
  out->capacity = h->m.capacity;
  out->dense = h->dense;
  count_words(h, &out->words_sent, &out->words_received);
  if (h->dense) {
    out->local = out->global = h->m.n;
    out->selected_tie = -1;
    return ncclSuccess;
  }
  out->local = s->offered_count;
  out->global = h->fell_back ? h->m.n : s->global_count;
  out->local_threshold = s->local_threshold;
  out->global_threshold = s->global_threshold;
  out->gaussian_threshold = s->gaussian_threshold;
  const bool all = s->selection.above < 0; /* by a negative threshold */
  out->selected_above = all ? 0 : (uint32_t)s->selection.above;
  out->selected_tie = all ? (int64_t)h->m.n - 1 : s->selection.tie;
  out->exact_local = h->exact_local;
  out->exact_global = h->exact_global;
  out->repartitioned = h->repartition;
  out->overflowed = s->overflowed != 0;
  out->fell_back = h->fell_back;
  return ncclSuccess;
}

ncclResult_t sparse_allreduce_boundaries(sparse_allreduce_t handle, uint64_t *boundaries)
{
  if (handle == NULL || boundaries == NULL)
    return sparse_fail(ncclInvalidArgument, "NULL argument");
  SPARSE_TRY(read_state(handle));
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
  if (!handle->time_phases)
    return sparse_fail(ncclInvalidUsage, "sparse_allreduce_time_phases comes first");
  float *out[SPARSE_PHASES] = {&phases->select, &phases->exchange, &phases->reduce, &phases->gather,
                               &phases->apply};
  SPARSE_CUDA(cudaEventSynchronize(handle->phases[SPARSE_PHASES]));
  for (int i = 0; i < SPARSE_PHASES; i++)
    SPARSE_CUDA(cudaEventElapsedTime(out[i], handle->phases[i], handle->phases[i + 1]));
  return ncclSuccess;
}

/* ---- checkpoints --------------------------------------------------------------------------------
 */

/* What a saved state begins with; the kept part of sparse_state and the residual follow. */
struct saved {
  char magic[8];
  uint64_t fingerprint, rank, nranks, step;
};
static const char MAGIC[8] = "SPARSE1";

static size_t kept_bytes(void)
{
  return offsetof(struct sparse_state, levels);
}

static struct saved saved_header(const struct sparse_allreduce_handle *h)
{
  struct saved saved = {.fingerprint = fingerprint(h->m.n, &h->m.config),
                        .rank = (uint64_t)h->m.rank,
                        .nranks = (uint64_t)h->m.nranks,
                        .step = h->step};
  memcpy(saved.magic, MAGIC, sizeof(MAGIC));
  return saved;
}

size_t sparse_allreduce_state_bytes(sparse_allreduce_t handle)
{
  if (handle == NULL) return 0;
  const size_t residual = handle->m.residual != NULL ? handle->m.n * sizeof(float) : 0;
  return sizeof(struct saved) + kept_bytes() + residual;
}

ncclResult_t sparse_allreduce_save(sparse_allreduce_t handle, void *state)
{
  if (handle == NULL || state == NULL) return sparse_fail(ncclInvalidArgument, "NULL argument");
  char *to = state;
  const struct saved saved = saved_header(handle);
  SPARSE_TRY(read_state(handle));
  memcpy(to, &saved, sizeof(saved));
  memcpy(to += sizeof(saved), handle->state, kept_bytes());
  if (handle->m.residual != NULL)
    SPARSE_CUDA(cudaMemcpy(to + kept_bytes(), handle->m.residual, handle->m.n * sizeof(float),
                           cudaMemcpyDeviceToHost));
  return ncclSuccess;
}

ncclResult_t sparse_allreduce_load(sparse_allreduce_t handle, const void *state)
{
  if (handle == NULL || state == NULL) return sparse_fail(ncclInvalidArgument, "NULL argument");
  const char *from = state;
  struct saved saved, own = saved_header(handle);
  memcpy(&saved, from, sizeof(saved));
  own.step = saved.step;
  if (memcmp(&saved, &own, sizeof(own)) != 0)
    return sparse_fail(ncclInvalidArgument,
                       "not a state of a handle with this count, configuration, rank and ranks");
  from += sizeof(saved);
  SPARSE_CUDA(cudaEventSynchronize(handle->done));
  SPARSE_CUDA(cudaMemcpy(handle->m.state, from, kept_bytes(), cudaMemcpyHostToDevice));
  if (handle->m.residual != NULL)
    SPARSE_CUDA(cudaMemcpy(handle->m.residual, from + kept_bytes(), handle->m.n * sizeof(float),
                           cudaMemcpyHostToDevice));
  handle->step = saved.step;
  return ncclSuccess;
}
