/* SPDX-License-Identifier: Apache-2.0 */
/* Making a handle, on all ranks or on none, and freeing it. */
#include "handle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(sizeof(sparse_allreduce_config_t) ==
                   sizeof(size_t) + 2 * sizeof(long) + 2 * sizeof(double) + 8 * sizeof(int),
               "configurations are compared as bytes: they may not have padding");

/* Room for more candidates than a rank may offer means fewer passes over the residual. One-sided,
 * where it is not that of all ranks' lists (make_onesided), the list gets up to 32 MiB more. */
static size_t spare_room(const struct sparse_allreduce_handle *h)
{
  const size_t most = 4 << 20;
  if (!h->m.adapts) return 0;
  return h->m.list_room < most ? h->m.list_room : most;
}

/* The x above which a standard normal variable lies with this probability, to the last digits, by
 * bisection on the C library's erfc. */
static double normal_tail(double probability)
{
  double low = 0, high = 40;
  for (int i = 0; i < 200; i++) {
    const double middle = (low + high) / 2;
    if (erfc(middle / sqrt(2)) / 2 > probability)
      low = middle;
    else
      high = middle;
  }
  return low;
}

/* What follows from a density, but for the capacity: lists and scratch memory have that size. */
static void use_density(struct sparse_allreduce_handle *h, double density)
{
  struct sparse_memory *m = &h->m;
  h->density = density;
  m->t = (size_t)((double)m->n * density);
  m->z = normal_tail(density / 2);
  sparse_allreduce_sizes(m->n, density, &m->k, NULL);
}

/* On the host's side of the state: lists that always have k entries, of all ranks; in the tree of
 * this rank, where it is offered, and of a peer. */
static void expect_k_entries(struct sparse_allreduce_handle *h)
{
  const struct sparse_memory *m = &h->m;
  struct sparse_state *s = h->state;
  const bool tree = h->path->sums == SPARSE_SUMS_UP_A_TREE;
  const uint64_t lists = tree ? 2 : (uint64_t)m->nranks;
  const uint64_t apart = tree ? (uint64_t)(m->received - m->offered) : m->k;
  for (uint64_t p = 0; p < lists; p++) {
    s->send_counts[p] = s->received_counts[p] = m->k;
    s->received_displs[p] = p * apart;
  }
  s->result_count = m->k;
}

/* The sizes that everything is derived from. */
static void set_sizes(struct sparse_allreduce_handle *h, size_t count)
{
  struct sparse_memory *m = &h->m;
  m->n = count;
  use_density(h, m->config.density);
  h->exact_step = (uint64_t)m->config.warmup_steps;
  sparse_allreduce_sizes(count, m->config.density, NULL, &m->capacity);
  m->list_room = (m->capacity + 3) / 4 * 4; /* lists start at multiples of 16 bytes */
  m->room = m->nranks > 1 ? 2 * m->capacity : m->capacity;
  if (m->config.timeout_seconds == 0) m->config.timeout_seconds = SPARSE_DEFAULT_TIMEOUT;
  m->select = h->path->select;
  m->adapts = h->path->choice == SPARSE_SUMS_FOLLOWED;
  if (!m->adapts) m->constants.raise_steps = 0;
}

static ncclResult_t allocate_zeros(void **memory, size_t bytes)
{
  SPARSE_CUDA(cudaMalloc(memory, bytes));
  SPARSE_CUDA(cudaMemset(*memory, 0, bytes));
  return ncclSuccess;
}

/* Memory whose size depends only on the arguments, so that a rank knows whether it fits before the
 * others need it. What peers access is one allocation, the lists.
 *
 * In a graph NCCL maps the whole allocation that a buffer lies in. Before 2.29.2, if ncclSend or
 * ncclRecv came first, a collective takes that for mapped and gets address 0 (NVIDIA/nccl issue
 * 1859). So a collective's buffers are not among the lists if ncclSend and ncclRecv use these. */
static ncclResult_t allocate(struct sparse_allreduce_handle *h)
{
  struct sparse_memory *m = &h->m;
  const bool selects = m->select != SPARSE_SELECT_NOTHING;
  const bool tree = h->path->sums == SPARSE_SUMS_UP_A_TREE;
  const size_t nranks = (size_t)m->nranks, list = nranks * m->list_room;
  const size_t dense = (m->n + SPARSE_SECTOR - 1) / SPARSE_SECTOR * SPARSE_SECTOR * sizeof(float);
  const size_t scratch = ops_scratch_bytes(m->n, m->nranks, m->capacity);
  if (m->config.result == SPARSE_RESULT_DENSE || m->config.warmup_steps > 0 || !selects ||
      h->path->falls_back)
    SPARSE_TRY(allocate_zeros((void **)&m->dense, dense));
  SPARSE_TRY(ops_load());
  if (!selects) return ncclSuccess;
  SPARSE_TRY(allocate_zeros((void **)&m->residual, m->n * sizeof(float)));
  SPARSE_TRY(allocate_zeros(&m->scratch, scratch));
  if (tree) SPARSE_TRY(allocate_zeros((void **)&m->gathered, list * sizeof(*m->gathered)));

  /* the lists one after the other, the last one with spare room, flags, histograms, begins */
  const size_t lists = (tree ? 1 : 2) * list, entries = lists + list + spare_room(h);
  h->lists_bytes = entries * sizeof(*m->received) + sizeof(*m->flags) +
                   2 * nranks * sizeof(*m->histograms) + SPARSE_UNITS(m->n) * sizeof(uint32_t);
  SPARSE_NCCL(ncclMemAlloc((void **)&m->lists, h->lists_bytes));
  m->reduced = m->offered = (struct sparse_pair *)m->lists;
  if (!tree) m->gathered = m->reduced + list;
  m->received = m->reduced + lists;
  m->flags = (struct sparse_flags *)(m->reduced + entries);
  m->histograms = (uint32_t(*)[SPARSE_BINS])(m->flags + 1);
  m->unit_begins = m->histograms[2 * nranks];
  SPARSE_CUDA(cudaMemset(m->flags, 0, sizeof(*m->flags)));
  return ncclSuccess;
}

/* Copies the state to the device, where nothing is running. */
static ncclResult_t write_state(struct sparse_allreduce_handle *h)
{
  SPARSE_CUDA(
      cudaMemcpyAsync(h->m.state, h->state, sizeof(*h->state), cudaMemcpyHostToDevice, h->own));
  SPARSE_CUDA(cudaDeviceSynchronize());
  return ncclSuccess;
}

static ncclResult_t initial_state(struct sparse_allreduce_handle *h)
{
  const struct sparse_memory *m = &h->m;
  struct sparse_state *s = h->state;
  /* A kernel that needs more local memory than all before it waits for everything on its GPU,
   * perhaps for a kernel that waits for another rank. So the one that needs most runs now. */
  SPARSE_CUDA(cudaMemsetAsync(m->state, 0, sizeof(*s), h->own));
  if (m->select != SPARSE_SELECT_NOTHING)
    SPARSE_TRY(ops_reduce(m, m->received, SPARSE_FROM_RANK_0, SPARSE_SUMS_NONZERO,
                          sparse_reduced(m), h->own));
  s->kept.guess = -1;
  s->kept.guess_ratio = 0.9; /* adapts to how many candidates are found */
  s->fixed.whole[1] = m->n;
  sparse_uniform_regions(m, s);
  for (int p = 0; p < m->nranks; p++) {
    s->fixed.list_displs[p] = (uint64_t)p * m->list_room;
    s->fixed.ones[p] = 1;
  }
  expect_k_entries(h);
  return write_state(h);
}

/* oktopk needs no messages then: ranks read and write each other's lists. An owner's sums are read
 * while its next step may be selecting, so they have a list of their own. What a rank offers lies
 * at its place of the received list, the last one, which has the spare room after it. A process
 * with several GPUs cannot do this: its kernels would wait for ones not launched yet. */
static ncclResult_t make_onesided(struct sparse_allreduce_handle *h)
{
  struct sparse_memory *m = &h->m;
  for (int p = 0; p < m->nranks; p++) {
    void *lists;
    SPARSE_TRY(sparse_alltoallv(alltoallv_peer(h->alltoallv, m->lists, p, &lists)));
    char *received = (char *)lists + ((const char *)m->received - m->lists);
    h->state->fixed.peers[p] = lists;
    h->state->fixed.list_at[p] = (struct sparse_pair *)received + sparse_list_place(m, p, m->rank);
    h->state->fixed.list_displs[p] = sparse_list_place(m, m->rank, p);
  }
  h->onesided = true;
  m->offered = m->received + sparse_list_place(m, m->rank, m->rank);
  m->room = m->capacity + spare_room(h);
  return write_state(h);
}

/* Avoids NCCL's messages where that is possible and wanted: counts on the device, and one-sided if
 * the path can. The AlltoAllV chooses for all ranks together. It must reach all ranks, because its
 * host-synchronized way would be no better than ours. */
static ncclResult_t make_exchange(struct sparse_allreduce_handle *h, bool own_processes)
{
  if (h->m.config.exchange == SPARSE_EXCHANGE_SENDRECV || h->m.select == SPARSE_SELECT_NOTHING ||
      h->path->sums == SPARSE_SUMS_UP_A_TREE)
    return ncclSuccess;
  int reach = 0;
  const char *why = "";
  const alltoallv_config_t config = {.timeout_seconds = h->m.config.timeout_seconds};
  ncclResult_t result = alltoallv_create(h->comm, &config, &h->alltoallv);
  if (result == ncclSuccess) {
    alltoallv_info(h->alltoallv, &reach, &why);
  } else {
    h->alltoallv = NULL;
    if (result != ncclInvalidUsage) return sparse_alltoallv(result);
    why = alltoallv_last_error();
  }
  if (reach == h->m.nranks) {
    result = sparse_alltoallv(alltoallv_register(h->alltoallv, h->m.lists, h->lists_bytes));
    if (result == ncclSuccess && h->m.adapts && own_processes && ops_onesided != NULL)
      result = make_onesided(h);
    if (result == ncclSuccess) return result;
  } else {
    const char *reason = strstr(why, ": "); /* after "send/recv" */
    snprintf(h->why, sizeof(h->why), "%s", reason != NULL ? reason + 2 : why);
    result = ncclSuccess;
  }
  if (h->alltoallv != NULL) alltoallv_destroy(h->alltoallv);
  h->alltoallv = NULL;
  return result;
}

ncclResult_t sparse_change_density(struct sparse_allreduce_handle *h, double density)
{
  use_density(h, density);
  expect_k_entries(h);
  h->last = h->latest = (struct sparse_step){0};
  return write_state(h);
}

ncclResult_t sparse_allreduce_set_density(sparse_allreduce_t handle, double density)
{
  struct sparse_allreduce_handle *h = handle;
  float *residual;
  SPARSE_TRY(sparse_allreduce_residual(h, &residual)); /* what was sent leaves it */
  SPARSE_TRY(sparse_read_state(h));
  sparse_allreduce_config_t config = h->m.config;
  if (!(density <= config.density))
    return sparse_fail(ncclInvalidArgument, "density must be at most the configured one, %g",
                       config.density);
  config.density = density;
  SPARSE_TRY(sparse_allreduce_check(&config, h->m.n, h->m.nranks));
  if (h->step > h->exact_step) h->exact_step = h->step;
  return sparse_change_density(h, density);
}

/* Frees everything, whatever fails. */
static ncclResult_t release(struct sparse_allreduce_handle *h)
{
  const struct sparse_memory *m = &h->m;
  const bool apart = h->path != NULL && h->path->sums == SPARSE_SUMS_UP_A_TREE;
  void *const memory[] = {m->dense, m->residual, m->scratch, apart ? m->gathered : NULL, m->state};
  const ncclResult_t lists = m->lists != NULL ? ncclMemFree(m->lists) : ncclSuccess;
  bool freed = true;
  for (size_t i = 0; i < sizeof(memory) / sizeof(*memory); i++)
    freed &= cudaFree(memory[i]) == cudaSuccess;
  if (h->own != NULL) freed &= cudaStreamDestroy(h->own) == cudaSuccess;
  free(h->state);
  free(h->counts);
  free(h);
  if (lists != ncclSuccess) return sparse_fail_nccl(lists, "ncclMemFree");
  if (freed) return ncclSuccess;
  return sparse_fail(ncclUnhandledCudaError, "cleanup: %s", cudaGetErrorString(cudaGetLastError()));
}

/* Allocates what is needed to report to the other ranks that something else failed. */
static ncclResult_t allocate_counts(struct sparse_allreduce_handle *h)
{
  struct sparse_memory *m = &h->m;
  SPARSE_NCCL(ncclCommUserRank(h->comm, &m->rank));
  SPARSE_NCCL(ncclCommCount(h->comm, &m->nranks));
  SPARSE_CUDA(cudaStreamCreateWithFlags(&h->own, cudaStreamNonBlocking));
  const size_t counts = (size_t)(m->nranks + 2) * (size_t)m->nranks * sizeof(uint64_t);
  h->state = calloc(1, sizeof(*h->state));
  h->counts = calloc(1, counts);
  if (h->state == NULL || h->counts == NULL) return sparse_fail(ncclSystemError, "out of memory");
  SPARSE_CUDA(cudaMalloc((void **)&m->state, sizeof(*m->state) + counts));
  m->matrix = (uint64_t *)(m->state + 1);
  return ncclSuccess;
}

/* Collective: have all ranks come here with the same arguments? Has each a process of its own? This
 * allocates and frees nothing: freeing may wait for other GPUs of the process, and those may wait
 * for this rank. Steps of other handles must be over: their kernels wait for other ranks, and might
 * leave NCCL's no room. */
static ncclResult_t agree(struct sparse_allreduce_handle *h, ncclResult_t mine, size_t count,
                          bool *own_processes)
{
  enum { FAILED, ARGUMENTS, PROCESS, WORDS };
  sparse_allreduce_config_t config = h->m.config;
  config.result = SPARSE_RESULT_DENSE; /* result may differ */
  const uint64_t words[WORDS] = {[FAILED] = mine != ncclSuccess,
                                 [ARGUMENTS] = sparse_hash(count, &config, sizeof(config)),
                                 [PROCESS] = (uint64_t)getpid()};
  bool failed = false, differ = false;
  SPARSE_CUDA(cudaDeviceSynchronize());
  uint64_t *own = h->m.matrix + h->m.rank * WORDS; /* where the others will be */
  SPARSE_CUDA(cudaMemcpyAsync(own, words, sizeof(words), cudaMemcpyHostToDevice, h->own));
  SPARSE_TRY(exchange_counts(h, own, WORDS, h->own));
  *own_processes = true;
  for (int p = 0; p < h->m.nranks; p++) {
    const uint64_t *theirs = h->counts + p * WORDS;
    failed |= theirs[FAILED] != 0;
    differ |= theirs[ARGUMENTS] != words[ARGUMENTS];
    for (int q = 0; q < p; q++) *own_processes &= theirs[PROCESS] != h->counts[q * WORDS + PROCESS];
  }
  if (mine != ncclSuccess) return mine;
  if (failed) return sparse_fail(ncclRemoteError, "another rank failed to create its handle");
  if (differ)
    return sparse_fail(ncclInvalidArgument, "the count or the configuration differs between ranks");
  return ncclSuccess;
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
  h->comm = comm;
  /* The fields of another version's configuration are elsewhere, or not there. */
  if (config->size == sizeof(*config)) h->m.config = *config;
  if (constants != NULL)
    h->m.constants = *constants;
  else
    sparse_constants_init(&h->m.constants, config->preset);
  bool own_processes = false;
  ncclResult_t result = allocate_counts(h);
  if (result == ncclSuccess) {
    result = sparse_allreduce_check(config, count, h->m.nranks);
    if (result == ncclSuccess) {
      h->path = sparse_path_of(h->m.config.algorithm);
      set_sizes(h, count);
      result = allocate(h);
    }
    result = agree(h, result, count, &own_processes);
  }
  if (result == ncclSuccess) result = initial_state(h);
  if (result == ncclSuccess) result = make_exchange(h, own_processes);
  if (result == ncclSuccess)
    *handle = h;
  else
    release(h);
  return result;
}

ncclResult_t sparse_allreduce_create(ncclComm_t comm, size_t count,
                                     const sparse_allreduce_config_t *config,
                                     sparse_allreduce_t *handle)
{
  return sparse_allreduce_create_with(comm, count, config, NULL, handle);
}

ncclResult_t sparse_allreduce_destroy(sparse_allreduce_t handle)
{
  struct sparse_allreduce_handle *h = handle;
  if (h == NULL) return sparse_fail(ncclInvalidArgument, "NULL argument");
  ncclResult_t first = sparse_read_state(h);
  /* A rank in its last step may be reading from this one. After a timeout it waits for none. */
  if (first == ncclSuccess && h->onesided && !h->state->progress.late) first = exchange_barrier(h);
  if (h->alltoallv != NULL) {
    ncclResult_t result = alltoallv_unregister(h->alltoallv, h->m.lists);
    if (result == ncclRemoteError) { /* a late rank may still write there */
      h->m.lists = NULL;
      result = ncclSuccess;
    }
    const ncclResult_t destroyed = alltoallv_destroy(h->alltoallv);
    if (first == ncclSuccess) first = sparse_alltoallv(result != ncclSuccess ? result : destroyed);
  }
  const ncclResult_t released = release(h);
  return first != ncclSuccess ? first : released;
}
