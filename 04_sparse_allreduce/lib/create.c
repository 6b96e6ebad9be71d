/* SPDX-License-Identifier: Apache-2.0 */
/* Making a handle, on all ranks or on none, and freeing it. */
#include "handle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* More candidates than a rank may offer mean fewer passes over the residual. Where the list of what
 * is offered has not the memory of all ranks' lists (make_onesided), it gets some more, up to 32
 * MiB.
 */
static size_t spare_room(const struct sparse_allreduce_handle *h)
{
  const struct sparse_memory *m = &h->m;
  const size_t most = 4 << 20;
  if (h->path->run_onesided == NULL) return 0;
  return m->capacity < most ? (m->capacity + 3) / 4 * 4 : most;
}

static ncclResult_t allocate_lists(struct sparse_allreduce_handle *h)
{
  struct sparse_memory *m = &h->m;
  const size_t list = (size_t)m->nranks * m->list_room * sizeof(struct sparse_pair);
  const bool apart = h->path->own_messages; /* `gathered` is an allocation of its own */
  const size_t lists = apart ? 2 : 3;
  h->lists_bytes = sparse_lists_bytes(m, lists, spare_room(h));
  SPARSE_NCCL(ncclMemAlloc((void **)&m->lists, h->lists_bytes));
  if (apart) SPARSE_NCCL(ncclMemAlloc((void **)&m->gathered, list));
  sparse_lay_out_lists(m, lists, spare_room(h));
  SPARSE_CUDA(cudaMemset(m->flags, 0, sizeof(*m->flags)));
  return ncclSuccess;
}

/* Can a step leave a dense result? Else there is no memory for one. */
static bool may_be_dense(const struct sparse_allreduce_handle *h)
{
  const sparse_allreduce_config_t *c = &h->m.config;
  return c->result == SPARSE_RESULT_DENSE || c->warmup_steps > 0 || h->path->may_be_dense;
}

/* Memory whose size depends on nothing but the arguments, so that a rank can tell before it
 * allocates anything whether it will fit. */
static ncclResult_t allocate(struct sparse_allreduce_handle *h)
{
  struct sparse_memory *m = &h->m;
  const size_t nranks = (size_t)m->nranks, bytes = m->n * sizeof(float);
  const size_t dense = (m->n + SPARSE_SECTOR - 1) / SPARSE_SECTOR * SPARSE_SECTOR * sizeof(float);
  const size_t scratch = ops_scratch_bytes(m->n, m->nranks, m->capacity);
  if (may_be_dense(h)) {
    SPARSE_CUDA(cudaMalloc((void **)&m->dense, dense));
    SPARSE_CUDA(cudaMemset(m->dense, 0, dense));
  }
  SPARSE_CUDA(cudaEventCreateWithFlags(&h->done, cudaEventDisableTiming));
  for (int i = 0; i <= SPARSE_PHASES; i++) SPARSE_CUDA(cudaEventCreate(&h->phases[i]));
  SPARSE_TRY(ops_load());
  if (!h->path->selects) return ncclSuccess;

  SPARSE_CUDA(cudaStreamCreateWithFlags(&h->own, cudaStreamNonBlocking));

  SPARSE_CUDA(cudaMalloc((void **)&m->residual, bytes));
  SPARSE_CUDA(cudaMemset(m->residual, 0, bytes));
  SPARSE_CUDA(cudaMalloc(&m->scratch, scratch));
  SPARSE_CUDA(cudaMemset(m->scratch, 0, scratch));
  const size_t counts = (nranks + 1) * nranks * sizeof(uint64_t);
  SPARSE_CUDA(cudaMalloc((void **)&m->matrix, counts));
  return allocate_lists(h);
}

static ncclResult_t initial_state(struct sparse_allreduce_handle *h)
{
  const struct sparse_memory *m = &h->m;
  struct sparse_state *s = h->state;
  memset(s, 0, sizeof(*s));
  s->guess = -1;
  s->guess_ratio = h->path->guess_ratio > 0 ? h->path->guess_ratio : SPARSE_GUESS_RATIO;
  s->always_list = SPARSE_FROM_LIST;
  s->whole[1] = m->n;
  for (int p = 0; p < m->nranks; p++) {
    s->list_displs[p] = (uint64_t)p * m->list_room;
    s->boundaries[p] = (uint64_t)p * (m->n / (size_t)m->nranks);
  }
  s->boundaries[m->nranks] = m->n;
  SPARSE_CUDA(cudaMemcpy(m->state, s, sizeof(*s), cudaMemcpyHostToDevice));
  /* A kernel that needs more local memory than any before waits for all that runs on its GPU, and
   * that may be a kernel that waits for another rank of this process. So the one that needs most
   * runs now, over empty lists. */
  if (h->path->selects) SPARSE_TRY(reduce_lists(m, m->received, sparse_reduced(m), 0));
  /* Of lists that always have k entries; of the tree, this rank's and that of a peer. */
  const bool tree = h->path->own_messages;
  for (int p = 0; p < m->nranks; p++) {
    s->ones[p] = 1;
    s->send_counts[p] = m->k;
    s->received_counts[p] = tree && p > 1 ? 0 : m->k;
    s->received_displs[p] = (uint64_t)p * (tree ? (uint64_t)(m->received - m->offered) : m->k);
  }
  s->result_count = m->k;
  SPARSE_CUDA(cudaMemcpy(m->state, s, sizeof(*s), cudaMemcpyHostToDevice));
  SPARSE_CUDA(cudaEventRecord(h->done, 0));
  SPARSE_CUDA(cudaDeviceSynchronize());
  return ncclSuccess;
}

/* Collective: values[i] becomes the largest of all ranks' values[i]. Allocates and frees nothing:
 * freeing may wait for other GPUs of the process, and those may be waiting for this rank. Steps of
 * other handles must be over: their kernels wait for other ranks, and might leave NCCL's no room.
 */
static ncclResult_t largest_of_all(struct sparse_allreduce_handle *h, uint64_t *values, size_t n)
{
  uint64_t *device = h->m.state->boundaries; /* not in use yet, or not any more */
  const size_t bytes = n * sizeof(*values);
  SPARSE_CUDA(cudaDeviceSynchronize());
  SPARSE_CUDA(cudaMemcpy(device, values, bytes, cudaMemcpyHostToDevice));
  SPARSE_NCCL(ncclAllReduce(device, device, n, ncclUint64, ncclMax, h->comm, 0));
  SPARSE_CUDA(cudaMemcpy(values, device, bytes, cudaMemcpyDeviceToHost));
  return ncclSuccess;
}

/* A number that differs where count or configuration differ (FNV-1a over the fields). `result` is
 * not among them: neither checkpoints nor other ranks depend on it. */
uint64_t sparse_fingerprint(size_t count, const sparse_allreduce_config_t *c)
{
  const double fields[] = {(double)count,
                           (double)c->algorithm,
                           (double)c->preset,
                           c->density,
                           (double)c->gradient_type,
                           (double)c->warmup_steps,
                           c->gaussian_sa_threshold,
                           c->gtopk_exact_residual,
                           c->throttle,
                           (double)c->balance,
                           (double)c->nonfinite,
                           (double)c->exchange,
                           c->timeout_seconds};
  uint64_t hash = 14695981039346656037u;
  const unsigned char *byte = (const unsigned char *)fields;
  for (size_t i = 0; i < sizeof(fields); i++) hash = (hash ^ byte[i]) * 1099511628211u;
  return hash;
}

/* Collective: has every rank a process of its own? */
static ncclResult_t own_processes(struct sparse_allreduce_handle *h, bool *own)
{
  const struct sparse_memory *m = &h->m;
  uint64_t process = (uint64_t)getpid(), *all = h->counts;
  SPARSE_CUDA(cudaMemcpy(m->matrix + m->rank, &process, sizeof(process), cudaMemcpyHostToDevice));
  SPARSE_NCCL(ncclAllGather(m->matrix + m->rank, m->matrix, 1, ncclUint64, h->comm, 0));
  SPARSE_CUDA(cudaMemcpy(all, m->matrix, (size_t)m->nranks * sizeof(*all), cudaMemcpyDeviceToHost));
  *own = true;
  for (int p = 0; p < m->nranks; p++)
    for (int q = 0; q < p; q++) *own = *own && all[p] != all[q];
  return ncclSuccess;
}

/* Ok-Topk goes without messages: ranks read and write each other's lists. An owner's sums are read
 * while its next step may be selecting, so they have a list of their own. What a rank offers lies
 * at its place of the received list, which is the last one and so has the spare room after it. Not
 * where a process has several GPUs: its kernels would wait for each other while it still launches
 * some. */
static ncclResult_t make_onesided(struct sparse_allreduce_handle *h)
{
  struct sparse_memory *m = &h->m;
  bool own = false;
  SPARSE_TRY(own_processes(h, &own));
  if (!own) return ncclSuccess;
  for (int p = 0; p < m->nranks; p++) {
    void *lists;
    SPARSE_ALLTOALLV(alltoallv_peer(h->alltoallv, m->lists, p, &lists));
    char *received = (char *)lists + ((const char *)m->received - m->lists);
    h->state->peers[p] = lists;
    h->state->list_at[p] = (struct sparse_pair *)received + sparse_list_place(m, p, m->rank);
    h->state->list_displs[p] = sparse_list_place(m, m->rank, p);
  }
  h->onesided = true;
  m->offered = m->received + sparse_list_place(m, m->rank, m->rank);
  m->room = m->capacity + spare_room(h);
  SPARSE_CUDA(cudaMemcpy(m->state, h->state, sizeof(*h->state), cudaMemcpyHostToDevice));
  SPARSE_CUDA(cudaDeviceSynchronize());
  return ncclSuccess;
}

/* Without NCCL's messages where that is possible and wanted: counts on the device, and one-sided
 * where the path can. The AlltoAllV chooses for all ranks together, and it must be able to reach
 * all ranks: its host-synchronised way would be no better than ours. */
static ncclResult_t make_exchange(struct sparse_allreduce_handle *h)
{
  const sparse_exchange_t wanted = h->m.config.exchange;
  if (wanted == SPARSE_EXCHANGE_SENDRECV || !h->path->selects || h->path->own_messages)
    return ncclSuccess;
  int reach = 0;
  const char *why = "";
  alltoallv_config_t config = ALLTOALLV_CONFIG_INITIALIZER;
  config.method = wanted == SPARSE_EXCHANGE_ONESIDED ? ALLTOALLV_LSA : ALLTOALLV_AUTO;
  config.timeout_seconds = h->m.config.timeout_seconds;
  ncclResult_t result = alltoallv_init(h->comm, &config, &h->alltoallv);
  if (result != ncclSuccess) {
    h->alltoallv = NULL;
    if (result != ncclInvalidUsage) return sparse_fail_alltoallv(result);
    why = alltoallv_last_error();
  } else {
    alltoallv_info(h->alltoallv, &reach, &why);
  }
  if (reach == h->m.nranks) {
    result = alltoallv_register(h->alltoallv, h->m.lists, h->lists_bytes);
    if (result != ncclSuccess)
      sparse_fail_alltoallv(result);
    else if (h->path->run_onesided != NULL)
      result = make_onesided(h);
    if (result == ncclSuccess) return result;
  } else if (wanted == SPARSE_EXCHANGE_ONESIDED) {
    result = sparse_fail(ncclInvalidUsage, "exchange ONESIDED is not possible here: %s", why);
  } else {
    const char *reason = strstr(why, ": "); /* after "send/recv" */
    snprintf(h->why, sizeof(h->why), "%s", reason != NULL ? reason + 2 : why);
  }
  if (h->alltoallv != NULL) alltoallv_destroy(h->alltoallv);
  h->alltoallv = NULL;
  return result;
}

static void keep_first(cudaError_t *first, cudaError_t error)
{
  if (*first == cudaSuccess) *first = error;
}

static ncclResult_t free_list(void *memory)
{
  return memory != NULL ? ncclMemFree(memory) : ncclSuccess;
}

/* Frees everything, whatever fails, and returns the first failure. */
static ncclResult_t release(struct sparse_allreduce_handle *h)
{
  const struct sparse_memory *m = &h->m;
  void *const memory[] = {m->matrix, m->scratch, m->state, m->residual, m->dense};
  const ncclResult_t apart =
      free_list(h->path != NULL && h->path->own_messages ? m->gathered : NULL);
  const ncclResult_t lists = free_list(m->lists);
  cudaError_t first = cudaSuccess;
  for (size_t i = 0; i < sizeof(memory) / sizeof(*memory); i++)
    keep_first(&first, cudaFree(memory[i]));
  if (h->done != NULL) keep_first(&first, cudaEventDestroy(h->done));
  for (int i = 0; i <= SPARSE_PHASES; i++)
    if (h->phases[i] != NULL) keep_first(&first, cudaEventDestroy(h->phases[i]));
  if (h->own != NULL) keep_first(&first, cudaStreamDestroy(h->own));
  free(h->state);
  free(h->counts);
  free(h);
  const ncclResult_t freed = lists != ncclSuccess ? lists : apart;
  if (freed != ncclSuccess) return sparse_fail_nccl(freed, "ncclMemFree");
  if (first != cudaSuccess)
    return sparse_fail(ncclUnhandledCudaError, "cleanup: %s", cudaGetErrorString(first));
  return ncclSuccess;
}

/* The sizes that everything is derived from. */
static void set_sizes(struct sparse_memory *m, size_t count)
{
  m->n = count;
  m->t = (size_t)((double)count * m->config.density);
  sparse_allreduce_sizes(count, m->config.density, &m->k, &m->capacity);
  m->list_room = (m->capacity + 3) / 4 * 4; /* lists start at multiples of 16 bytes */
  m->room = m->nranks > 1 ? 2 * m->capacity : m->capacity;
  m->z = sparse_normal_tail(m->config.density / 2);
}

ncclResult_t sparse_allreduce_check(const sparse_allreduce_config_t *config, size_t count,
                                    int ranks)
{
  if (config == NULL) return sparse_fail(ncclInvalidArgument, "NULL argument");
  struct sparse_constants constants;
  sparse_constants_init(&constants, config->preset);
  const char *error = sparse_config_error(config, &constants, count, ranks);
  return error == NULL ? ncclSuccess : sparse_fail(ncclInvalidArgument, "%s", error);
}

ncclResult_t sparse_allreduce_create_with(ncclComm_t comm, size_t count,
                                          const sparse_allreduce_config_t *config,
                                          const struct sparse_constants *constants,
                                          sparse_allreduce_t *handle)
{
  if (comm == NULL || config == NULL || handle == NULL)
    return sparse_fail(ncclInvalidArgument, "NULL argument");
  *handle = NULL;
  struct sparse_allreduce_handle *h = calloc(1, sizeof(*h));
  if (h == NULL) return sparse_fail(ncclSystemError, "out of memory");
  h->comm = h->m.comm = comm;
  /* The fields of another version's configuration are elsewhere, or not there. */
  if (config->size == sizeof(*config)) h->m.config = *config;
  h->m.constants = *constants;
  ncclResult_t result = ncclCommUserRank(comm, &h->m.rank);
  if (result == ncclSuccess) result = ncclCommCount(comm, &h->m.nranks);
  if (result != ncclSuccess) {
    sparse_fail_nccl(result, "communicator");
    release(h);
    return result;
  }
  /* What it takes to tell the other ranks that something else has failed. */
  const size_t nranks = (size_t)h->m.nranks;
  h->state = calloc(1, sizeof(*h->state));
  h->counts = calloc((nranks + 1) * nranks, sizeof(*h->counts));
  if (h->state == NULL || h->counts == NULL ||
      cudaMalloc((void **)&h->m.state, sizeof(*h->m.state)) != cudaSuccess) {
    release(h);
    return sparse_fail(ncclSystemError, "out of memory");
  }
  char wrong[1024] = "";
  const char *error = sparse_config_error(config, constants, count, h->m.nranks);
  if (error != NULL) {
    result = sparse_fail(ncclInvalidArgument, "%s", error);
  } else {
    h->path = sparse_path_of(h->m.config.algorithm);
    set_sizes(&h->m, count);
    result = allocate(h);
  }
  if (result != ncclSuccess) snprintf(wrong, sizeof(wrong), "%s", sparse_allreduce_last_error());
  /* All ranks must have got this far, with the same arguments, or all leave. */
  const uint64_t mine = sparse_fingerprint(count, &h->m.config);
  uint64_t all[3] = {result != ncclSuccess, mine, ~mine};
  const ncclResult_t talk = largest_of_all(h, all, 3);
  if (result != ncclSuccess)
    sparse_fail(result, "%s", wrong);
  else if (talk != ncclSuccess)
    result = talk;
  else if (all[0])
    result = sparse_fail(ncclRemoteError, "another rank failed to create its handle");
  else if (all[1] != ~all[2])
    result = sparse_fail(ncclInvalidArgument, "count or configuration differ between ranks");
  if (result == ncclSuccess) result = initial_state(h);
  if (result == ncclSuccess) result = make_exchange(h);
  if (result != ncclSuccess) {
    snprintf(wrong, sizeof(wrong), "%s", sparse_allreduce_last_error());
    release(h);
    return sparse_fail(result, "%s", wrong);
  }
  h->first_sparse = (uint64_t)h->m.config.warmup_steps;
  *handle = h;
  return ncclSuccess;
}

ncclResult_t sparse_allreduce_create(ncclComm_t comm, size_t count,
                                     const sparse_allreduce_config_t *config,
                                     sparse_allreduce_t *handle)
{
  if (config == NULL) return sparse_fail(ncclInvalidArgument, "NULL argument");
  struct sparse_constants constants;
  sparse_constants_init(&constants, config->preset);
  return sparse_allreduce_create_with(comm, count, config, &constants, handle);
}

/* A rank that is still in its last step may be reading from this one. After a timeout there is
 * nobody to wait for. */
static ncclResult_t wait_for_readers(struct sparse_allreduce_handle *h)
{
  uint64_t nothing = 0;
  SPARSE_TRY(sparse_read_state(h));
  return h->state->late ? ncclSuccess : largest_of_all(h, &nothing, 1);
}

ncclResult_t sparse_allreduce_destroy(sparse_allreduce_t handle)
{
  if (handle == NULL) return sparse_fail(ncclInvalidArgument, "NULL argument");
  ncclResult_t waited = sparse_wait(handle);
  ncclResult_t exchange = ncclSuccess;
  if (waited == ncclSuccess && handle->onesided) waited = wait_for_readers(handle);
  if (handle->alltoallv != NULL) {
    exchange = alltoallv_unregister(handle->alltoallv, handle->m.lists);
    if (exchange == ncclRemoteError) { /* a late rank may still write there */
      handle->m.lists = NULL;
      exchange = ncclSuccess;
    }
    const ncclResult_t destroyed = alltoallv_destroy(handle->alltoallv);
    if (exchange == ncclSuccess) exchange = destroyed;
    if (exchange != ncclSuccess) sparse_fail_alltoallv(exchange);
  }
  const ncclResult_t released = release(handle);
  if (waited != ncclSuccess) return waited;
  return exchange != ncclSuccess ? exchange : released;
}
