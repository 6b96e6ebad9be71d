/* SPDX-License-Identifier: Apache-2.0 */
/* Handles: what all ranks have to agree on, which way the bytes will go, registered buffers, and
 * what went wrong. */
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors ------------------------------------------------------------------------------- */

static _Thread_local char last_error[ALLTOALLV_SENTENCE];

const char *alltoallv_last_error(void)
{
  return last_error;
}

ncclResult_t alltoallv_fail(ncclResult_t result, const char *format, ...)
{
  char sentence[sizeof(last_error)];
  va_list args;
  va_start(args, format);
  vsnprintf(sentence, sizeof(sentence), format, args);
  va_end(args);
  for (char *c = sentence; *c != '\0'; c++) /* one line, whatever NCCL has written */
    if (*c == '\n') *c = ' ';
  memcpy(last_error, sentence, sizeof(last_error));
  return result;
}

const char *alltoallv_nccl_reason(ncclResult_t result)
{
  const char *said = ncclGetLastError(NULL);
  return said != NULL && *said != '\0' ? said : ncclGetErrorString(result);
}

/* The device writes the rest of a record before its kind. */
static bool has_error(const struct alltoallv_error *e)
{
  return __atomic_load_n(&e->kind, __ATOMIC_ACQUIRE) != ALLTOALLV_ERROR_NONE;
}

bool alltoallv_has_timed_out(const struct alltoallv_handle *h)
{
  const struct alltoallv_errors *e = h->lsa != NULL ? alltoallv_lsa_errors(h->lsa) : NULL;
  return e != NULL && has_error(&e->timeout); /* NULL: creating the kernel's side has failed */
}

void alltoallv_report(struct alltoallv_error *record, int kind, int source, int destination,
                      uint64_t sent, uint64_t expected, uint32_t element)
{
  if (has_error(record)) return;
  *record = (struct alltoallv_error){0, source, destination, sent, expected, element};
  __atomic_store_n(&record->kind, kind, __ATOMIC_RELEASE);
}

/* The sentence for an error, and its result. */
static ncclResult_t describe(const struct alltoallv_error *e, int source, int destination)
{
  /* In what this rank counts in. The other one may count in something else: then in bytes. */
  const uint32_t element = e->element;
  const bool whole = element > 0 && e->sent % element == 0 && e->expected % element == 0;
  const unsigned long long sent = whole ? e->sent / element : e->sent;
  const unsigned long long expected = whole ? e->expected / element : e->expected;
  const char *what = whole ? "elements" : "bytes";
  switch (e->kind) {
  case ALLTOALLV_ERROR_MISMATCH:
    return alltoallv_fail(ncclInvalidArgument,
                          "rank %d sends %llu %s to rank %d, which expects %llu", source, sent,
                          what, destination, expected);
  case ALLTOALLV_ERROR_KIND:
    return alltoallv_fail(ncclInvalidUsage, "ranks %d and %d made different calls", source,
                          destination);
  case ALLTOALLV_ERROR_CAPACITY:
    if (source < 0)
      return alltoallv_fail(ncclInvalidArgument, "rank %d would receive %llu %s, %llu fit",
                            destination, sent, what, expected);
    return alltoallv_fail(ncclInvalidArgument, "rank %d sends %llu %s to rank %d, where %llu fit",
                          source, sent, what, destination, expected);
  default:
    return alltoallv_fail(ncclRemoteError, "rank %d waited in vain for rank %d", destination,
                          source);
  }
}

ncclResult_t alltoallv_get_async_error(alltoallv_t handle, ncclResult_t *result, int *source,
                                       int *destination)
{
  if (handle == NULL) return alltoallv_fail(ncclInvalidArgument, "NULL handle");
  struct alltoallv_errors *errors = handle->lsa != NULL ? alltoallv_lsa_errors(handle->lsa) : NULL;
  struct alltoallv_error *e = &handle->counts_error;
  int first = 0, from = -1, to = -1; /* first: the rank that the record's rank 0 is */
  if (errors != NULL && (has_error(&errors->timeout) || has_error(&errors->counts))) {
    e = has_error(&errors->timeout) ? &errors->timeout : &errors->counts;
    first = handle->lsa_first;
  }
  ncclResult_t found = ncclSuccess;
  if (has_error(e)) {
    if (e->source >= 0) from = e->source + first;
    if (e->destination >= 0) to = e->destination + first;
    found = describe(e, from, to);
    if (e->kind != ALLTOALLV_ERROR_TIMEOUT) /* which stays */
      __atomic_store_n(&e->kind, ALLTOALLV_ERROR_NONE, __ATOMIC_RELEASE);
  }
  if (result != NULL) *result = found;
  if (source != NULL) *source = from;
  if (destination != NULL) *destination = to;
  return ncclSuccess;
}

/* ---- agreeing ----------------------------------------------------------------------------- */

ncclResult_t alltoallv_agree(struct alltoallv_handle *h, size_t words)
{
  const size_t bytes = words * sizeof(uint64_t);
  uint64_t *mine = h->words_device, *all = h->words_device + words;
  ALLTOALLV_CUDATRY(
      cudaMemcpyAsync(mine, h->words, bytes, cudaMemcpyHostToDevice, h->words_stream));
  ALLTOALLV_NCCLTRY(ncclAllGather(mine, all, bytes, ncclUint8, h->comm, h->words_stream));
  ALLTOALLV_CUDATRY(cudaMemcpyAsync(h->words, all, bytes * (size_t)h->n, cudaMemcpyDeviceToHost,
                                    h->words_stream));
  ALLTOALLV_CUDATRY(cudaStreamSynchronize(h->words_stream));
  return ncclSuccess;
}

/* Collective. Have all ranks got as far as this one? The first failure becomes everybody's. Why, a
 * rank that has failed itself knows from its own sentence; the others have the result in words. */
static ncclResult_t agree_on(struct alltoallv_handle *h, ncclResult_t result, const char *what)
{
  const bool own = result != ncclSuccess;
  h->words[0] = (uint64_t)result;
  ALLTOALLV_TRY(alltoallv_agree(h, 1));
  for (int r = 0; r < h->n; r++) {
    result = (ncclResult_t)h->words[r];
    if (result != ncclSuccess)
      return alltoallv_fail(result, "rank %d cannot %s: %s", own ? h->rank : r, what,
                            own ? alltoallv_last_error() : ncclGetErrorString(result));
  }
  return ncclSuccess;
}

/* ---- making a handle ---------------------------------------------------------------------- */

/* Pairs up to this size take the low-latency protocol. Above it, copying out of the scratch memory
 * costs more than the wait for the header that it saves. */
static const size_t default_ll_threshold = 512 << 10;

static ncclResult_t check_config(const alltoallv_config_t *c)
{
  if (c->size != sizeof(*c))
    return alltoallv_fail(ncclInvalidArgument,
                          "config.size is %zu; allowed: %zu, from ALLTOALLV_CONFIG_INITIALIZER of "
                          "this version's alltoallv.h",
                          c->size, sizeof(*c));
  if (c->method < ALLTOALLV_AUTO || c->method > ALLTOALLV_LSA)
    return alltoallv_fail(ncclInvalidArgument, "config.method %d is unknown; allowed: 0 to 2",
                          (int)c->method);
  if (!(c->timeout_seconds >= 0) || c->timeout_seconds > 1e9)
    return alltoallv_fail(ncclInvalidArgument, "config.timeout_seconds is %g; allowed: 0 to 1e9",
                          c->timeout_seconds);
  if (c->max_blocks != 0 && c->max_blocks < 2)
    return alltoallv_fail(ncclInvalidArgument, "config.max_blocks is %d; allowed: 0, or at least 2",
                          c->max_blocks);
  return ncclSuccess;
}

/* Sets h->lsa, among the ranks that h->lsa_first and h->lsa_n say. Returns ncclInvalidUsage on all
 * ranks if there is no symmetric memory on one. */
static ncclResult_t make_lsa(struct alltoallv_handle *h, uint32_t first_epoch)
{
  struct alltoallv_lsa_config lsa = {h->config.max_blocks, h->ll_threshold, first_epoch,
                                     h->config.timeout_seconds};
  /* The kernel and NCCL's must fit on the GPU side by side, since each waits for others. 64 leave
   * half of a large GPU to NCCL, and fill the links all the same. */
  if (h->lsa_n < h->n && (lsa.max_blocks == 0 || lsa.max_blocks > 64)) lsa.max_blocks = 64;
  /* A communicator of our own, also on one host: NCCL's send/recv goes wrong (wrong data, then a
   * hang; seen with 2.28.9) when the receive buffer is registered with its communicator and the
   * send buffer is not. So what we register must not be seen by the caller's send/recv. */
  ALLTOALLV_NCCLTRY(ncclCommSplit(h->comm, h->rank / h->lsa_n, h->rank, &h->lsa_comm, NULL));
  ncclResult_t result = alltoallv_lsa_create(h->lsa_comm, &lsa, &h->lsa);
  ALLTOALLV_TRY(agree_on(h, result, "set up the kernel"));
  return agree_on(h, alltoallv_lsa_connect(h->lsa), "share memory for the kernel");
}

/* What this rank brings along, for the others to compare. */
enum {
  AGREE_ERROR,
  AGREE_METHOD,
  AGREE_LSA,
  AGREE_GPU, /* its PCI id, as text */
  AGREE_WORDS = AGREE_GPU + ALLTOALLV_PCI_ID / sizeof(uint64_t)
};

/* The worst way in which any rank reaches another one of its host. After the agreement whose words
 * are in h->words. */
static ncclResult_t worst_link(struct alltoallv_handle *h, int device, int lsa_ranks,
                               enum alltoallv_link *worst)
{
  const int first = h->rank / lsa_ranks * lsa_ranks;
  *worst = ALLTOALLV_LINK_NVLINK;
  for (int p = first; p < first + lsa_ranks; p++) {
    const uint64_t *words = h->words + p * AGREE_WORDS;
    const enum alltoallv_link link = alltoallv_lsa_link(device, (const char *)(words + AGREE_GPU));
    if (link > *worst) *worst = link;
  }
  h->words[0] = *worst;
  ALLTOALLV_TRY(alltoallv_agree(h, 1));
  for (int r = 0; r < h->n; r++)
    if (h->words[r] > *worst) *worst = (enum alltoallv_link)h->words[r];
  return ncclSuccess;
}

/* Among how many ranks the kernel can run, the same on all ranks: in h->lsa_n. 0: `why` not. */
static ncclResult_t agree_on_ranks(struct alltoallv_handle *h, ncclResult_t own_result,
                                   const char **why)
{
  const alltoallv_method_t method = h->config.method;
  enum alltoallv_link link;
  int lsa_ranks = 0, device = 0;
  *why = "asked for";
  if (own_result == ncclSuccess && method != ALLTOALLV_SENDRECV)
    lsa_ranks = alltoallv_lsa_ranks(h->comm, why);
  if (ncclCommCuDevice(h->comm, &device) != ncclSuccess ||
      cudaDeviceGetPCIBusId((char *)(h->words + AGREE_GPU), ALLTOALLV_PCI_ID, device) !=
          cudaSuccess)
    lsa_ranks = 0, *why = "CUDA does not say which GPU this is";

  h->words[AGREE_ERROR] = (uint64_t)own_result;
  h->words[AGREE_METHOD] = (uint64_t)method;
  h->words[AGREE_LSA] = (uint64_t)lsa_ranks;
  ALLTOALLV_TRY(alltoallv_agree(h, AGREE_WORDS));
  if (own_result != ncclSuccess) return own_result;
  for (int r = 0; r < h->n; r++) {
    const uint64_t *other = h->words + r * AGREE_WORDS;
    if (other[AGREE_ERROR] != ncclSuccess)
      return alltoallv_fail((ncclResult_t)other[AGREE_ERROR],
                            other[AGREE_ERROR] == ncclInvalidArgument
                                ? "rank %d has a wrong configuration"
                                : "rank %d cannot allocate what a handle needs",
                            r);
    if (other[AGREE_METHOD] != (uint64_t)method)
      return alltoallv_fail(ncclInvalidArgument, "config.method is %d here and %d on rank %d",
                            (int)method, (int)other[AGREE_METHOD], r);
    if (other[AGREE_LSA] < (uint64_t)lsa_ranks) {
      lsa_ranks = (int)other[AGREE_LSA];
      if (lsa_ranks == 0) *why = "the kernel cannot run on another rank";
    }
  }
  if (lsa_ranks == 1 && h->n > 1) {
    lsa_ranks = 0, *why = "no two GPUs share a host";
  } else if (lsa_ranks > ALLTOALLV_MAX_LSA_RANKS) {
    lsa_ranks = 0, *why = "more GPUs share memory than the kernel is made for";
  } else if (lsa_ranks > 1) {
    ALLTOALLV_TRY(worst_link(h, device, lsa_ranks, &link));
    if (link == ALLTOALLV_LINK_PCIE)
      lsa_ranks = 0, *why = "a GPU is reached over PCIe, where the kernel's counters cannot add";
    else if (link == ALLTOALLV_LINK_UNKNOWN && method == ALLTOALLV_AUTO)
      lsa_ranks = 0, *why = "a process does not see whether another one's GPU is on NVLink";
  }
  h->lsa_n = lsa_ranks;
  return ncclSuccess;
}

static ncclResult_t choose_path(struct alltoallv_handle *h, ncclResult_t own_result,
                                uint32_t first_epoch)
{
  const char *why;
  ALLTOALLV_TRY(agree_on_ranks(h, own_result, &why));
  if (h->lsa_n > 0) {
    h->lsa_first = h->rank / h->lsa_n * h->lsa_n;
    const ncclResult_t result = make_lsa(h, first_epoch);
    /* Without symmetric memory there is another way; a failure is a failure. */
    if (result != ncclSuccess && result != ncclInvalidUsage) return result;
    if (result == ncclInvalidUsage) {
      if (h->lsa != NULL) (void)alltoallv_lsa_destroy(h->lsa);
      h->lsa = NULL, h->lsa_n = 0, why = "the communicator has no symmetric memory";
    }
  }
  if (h->lsa == NULL && h->config.method == ALLTOALLV_LSA)
    return alltoallv_fail(ncclInvalidUsage, "the kernel cannot be used: %s", why);
  if (h->lsa == NULL)
    snprintf(h->why, sizeof(h->why), "send/recv: %s", why);
  else if (h->lsa_n == h->n)
    snprintf(h->why, sizeof(h->why), "one-sided kernel among %d ranks", h->n);
  else
    snprintf(h->why, sizeof(h->why),
             "one-sided kernel among the %d ranks of a host, send/recv between hosts", h->lsa_n);
  return ncclSuccess;
}

static ncclResult_t allocate(struct alltoallv_handle *h)
{
  h->pairs = calloc((size_t)h->n, sizeof(*h->pairs));
  if (h->pairs == NULL) return alltoallv_fail(ncclSystemError, "out of memory");
  ALLTOALLV_CUDATRY(cudaStreamCreateWithFlags(&h->side_stream, cudaStreamNonBlocking));
  ALLTOALLV_CUDATRY(cudaEventCreateWithFlags(&h->fork, cudaEventDisableTiming));
  ALLTOALLV_CUDATRY(cudaEventCreateWithFlags(&h->join, cudaEventDisableTiming));
  ALLTOALLV_CUDATRY(cudaEventCreateWithFlags(&h->last_done, cudaEventDisableTiming));
  return ncclSuccess;
}

/* What fails on this rank is told to the others, or they would wait for it. That takes the words,
 * so they come first. */
static ncclResult_t make_handle(struct alltoallv_handle *h, ncclResult_t config_result,
                                uint32_t first_epoch)
{
  ALLTOALLV_NCCLTRY(ncclCommUserRank(h->comm, &h->rank));
  ALLTOALLV_NCCLTRY(ncclCommCount(h->comm, &h->n));
  size_t words = ((size_t)h->n + 1) * alltoallv_most_words(h->n) * sizeof(uint64_t);
  ALLTOALLV_CUDATRY(cudaMallocHost((void **)&h->words, words));
  ALLTOALLV_CUDATRY(cudaMalloc((void **)&h->words_device, words));
  ALLTOALLV_CUDATRY(cudaStreamCreateWithFlags(&h->words_stream, cudaStreamNonBlocking));
  return choose_path(h, config_result == ncclSuccess ? allocate(h) : config_result, first_epoch);
}

/* Frees everything, whatever fails, and returns the first failure; `before` is one from before,
 * whose sentence stays. */
static ncclResult_t free_handle(struct alltoallv_handle *h, ncclResult_t before)
{
  char sentence[ALLTOALLV_SENTENCE];
  ncclResult_t first = ncclSuccess;
  memcpy(sentence, alltoallv_last_error(), sizeof(sentence));
  /* After a timeout a late peer may still write into our scratch memory: it stays. */
  const bool leave = alltoallv_has_timed_out(h);
  if (h->lsa != NULL && !leave && (first = alltoallv_lsa_destroy(h->lsa)) != ncclSuccess)
    (void)alltoallv_fail(first, "cleanup: memory of the kernel: %s", alltoallv_last_error());
  if (h->lsa_comm != NULL && !leave) {
    const ncclResult_t result = ncclCommDestroy(h->lsa_comm);
    if (first == ncclSuccess && result != ncclSuccess)
      first = alltoallv_fail(result, "cleanup: communicator: %s", alltoallv_nccl_reason(result));
  }
  const cudaError_t errors[] = {
      h->last_done != NULL ? cudaEventDestroy(h->last_done) : cudaSuccess,
      h->join != NULL ? cudaEventDestroy(h->join) : cudaSuccess,
      h->fork != NULL ? cudaEventDestroy(h->fork) : cudaSuccess,
      h->side_stream != NULL ? cudaStreamDestroy(h->side_stream) : cudaSuccess,
      h->words_stream != NULL ? cudaStreamDestroy(h->words_stream) : cudaSuccess,
      cudaFree(h->words_device),
      h->words != NULL ? cudaFreeHost(h->words) : cudaSuccess,
  };
  for (size_t i = 0; i < sizeof(errors) / sizeof(*errors); i++)
    if (first == ncclSuccess && errors[i] != cudaSuccess)
      first = alltoallv_fail(ncclUnhandledCudaError, "cleanup: %s", cudaGetErrorString(errors[i]));
  free(h->pairs);
  free(h);
  return before != ncclSuccess ? alltoallv_fail(before, "%s", sentence) : first;
}

ncclResult_t alltoallv_init_with(ncclComm_t comm, const alltoallv_config_t *config,
                                 size_t ll_threshold, uint32_t first_epoch, alltoallv_t *handle)
{
  static const alltoallv_config_t defaults = ALLTOALLV_CONFIG_INITIALIZER;
  if (comm == NULL || handle == NULL) return alltoallv_fail(ncclInvalidArgument, "NULL argument");
  *handle = NULL;
  struct alltoallv_handle *h = calloc(1, sizeof(*h));
  if (h == NULL) return alltoallv_fail(ncclSystemError, "out of memory");
  h->comm = comm;
  h->config = config != NULL ? *config : defaults;
  h->ll_threshold = ll_threshold;
  ncclResult_t result = make_handle(h, check_config(&h->config), first_epoch);
  if (result != ncclSuccess) return free_handle(h, result);
  *handle = h;
  return ncclSuccess;
}

ncclResult_t alltoallv_init(ncclComm_t comm, const alltoallv_config_t *config, alltoallv_t *handle)
{
  return alltoallv_init_with(comm, config, default_ll_threshold, 1, handle);
}

ncclResult_t alltoallv_destroy(alltoallv_t handle)
{
  if (handle == NULL) return alltoallv_fail(ncclInvalidArgument, "NULL handle");
  /* of any stream, launches of graphs included; freeing memory waits for the device anyway */
  const cudaError_t last = cudaDeviceSynchronize();
  return free_handle(handle, last == cudaSuccess
                                 ? ncclSuccess
                                 : alltoallv_fail(ncclUnhandledCudaError, "the last exchange: %s",
                                                  cudaGetErrorString(last)));
}

ncclResult_t alltoallv_info(alltoallv_t handle, int *ranks, const char **why)
{
  if (handle == NULL) return alltoallv_fail(ncclInvalidArgument, "NULL handle");
  if (ranks != NULL) *ranks = handle->lsa_n;
  if (why != NULL) *why = handle->why;
  return ncclSuccess;
}

/* ---- receive buffers that the peers can write --------------------------------------------- */

ncclResult_t alltoallv_register(alltoallv_t handle, void *buff, size_t bytes)
{
  if (handle == NULL) return alltoallv_fail(ncclInvalidArgument, "NULL handle");
  int id = 0;
  while (id < ALLTOALLV_MAX_WINDOWS && handle->windows[id].base != NULL) id++;

  /* NCCL would hang or misbehave if ranks disagreed, so ask first. */
  handle->words[0] = buff != NULL ? bytes : 0;
  handle->words[1] = (uint64_t)id;
  handle->words[2] = (uintptr_t)buff % 4096;
  ALLTOALLV_TRY(alltoallv_agree(handle, 3));
  for (int r = 0; r < handle->n; r++) {
    const uint64_t *other = handle->words + 3 * r;
    if (other[0] == 0) return alltoallv_fail(ncclInvalidArgument, "rank %d registers nothing", r);
    if (other[2] != 0)
      return alltoallv_fail(ncclInvalidArgument,
                            "rank %d registers at %llu bytes after a multiple of 4096; allowed: 0",
                            r, (unsigned long long)other[2]);
    if (other[0] != handle->words[0])
      return alltoallv_fail(ncclInvalidArgument, "rank %d registers %llu bytes, rank 0 %llu", r,
                            (unsigned long long)other[0], (unsigned long long)handle->words[0]);
    if (other[1] != handle->words[1] || other[1] == ALLTOALLV_MAX_WINDOWS)
      return alltoallv_fail(ncclInvalidUsage,
                            other[1] == ALLTOALLV_MAX_WINDOWS
                                ? "more than %d buffers are registered"
                                : "ranks have registered different buffers (%d)",
                            ALLTOALLV_MAX_WINDOWS);
  }

  struct alltoallv_window *w = &handle->windows[id];
  if (handle->lsa != NULL)
    ALLTOALLV_TRY(agree_on(handle, alltoallv_lsa_register(handle->lsa, id, buff, bytes, w->peers),
                           "register the buffer"));
  w->base = buff;
  w->bytes = bytes;
  return ncclSuccess;
}

/* The number of the window that begins there, or -1 with the sentence. */
static int find_window(alltoallv_t handle, const void *buff)
{
  for (int id = 0; id < ALLTOALLV_MAX_WINDOWS && buff != NULL; id++)
    if (handle->windows[id].base == buff) return id;
  (void)alltoallv_fail(ncclInvalidArgument, "the buffer is not registered");
  return -1;
}

ncclResult_t alltoallv_peer(alltoallv_t handle, const void *buff, int peer, void **address)
{
  if (handle == NULL || buff == NULL || address == NULL)
    return alltoallv_fail(ncclInvalidArgument, "NULL argument");
  if (peer < 0 || peer >= handle->n)
    return alltoallv_fail(ncclInvalidArgument, "there is no rank %d", peer);
  const int id = find_window(handle, buff);
  if (id < 0) return ncclInvalidArgument;
  *address =
      alltoallv_is_local(handle, peer) ? handle->windows[id].peers[peer - handle->lsa_first] : NULL;
  return ncclSuccess;
}

ncclResult_t alltoallv_unregister(alltoallv_t handle, void *buff)
{
  if (handle == NULL) return alltoallv_fail(ncclInvalidArgument, "NULL handle");
  const int id = find_window(handle, buff);
  if (id < 0) return ncclInvalidArgument;
  /* When my exchanges are over, all that peers store here has arrived. */
  ALLTOALLV_CUDATRY(cudaDeviceSynchronize());
  if (alltoallv_has_timed_out(handle))
    return alltoallv_fail(ncclRemoteError, "the handle has timed out: a late rank may still write "
                                           "into the buffer, so do not free it");
  handle->windows[id].base = NULL;
  return handle->lsa != NULL ? alltoallv_lsa_unregister(handle->lsa, id) : ncclSuccess;
}
