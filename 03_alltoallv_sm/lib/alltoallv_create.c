/* SPDX-License-Identifier: Apache-2.0 */
/* Making a handle: what all ranks have to agree on first, which way the bytes will go, and freeing
 * it again. */
#include "alltoallv_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ncclResult_t alltoallv_agree(struct alltoallv_handle *h, size_t words)
{
  size_t bytes = words * sizeof(uint64_t);
  uint64_t *mine = h->stage_device, *all = h->stage_device + words;
  ALLTOALLV_CUDATRY(
      cudaMemcpyAsync(mine, h->stage, bytes, cudaMemcpyHostToDevice, h->stage_stream));
  ALLTOALLV_NCCLTRY(ncclAllGather(mine, all, bytes, ncclUint8, h->comm, h->stage_stream));
  ALLTOALLV_CUDATRY(cudaMemcpyAsync(h->stage, all, bytes * (size_t)h->n, cudaMemcpyDeviceToHost,
                                    h->stage_stream));
  ALLTOALLV_CUDATRY(cudaStreamSynchronize(h->stage_stream));
  return ncclSuccess;
}

static ncclResult_t check_config(const alltoallv_config_t *c)
{
  if (c->size != sizeof(*c))
    return alltoallv_fail(ncclInvalidArgument,
                          "config.size is %zu; allowed: %zu, from ALLTOALLV_CONFIG_INITIALIZER of "
                          "this version's alltoallv.h",
                          c->size, sizeof(*c));
  if (c->method < ALLTOALLV_AUTO || c->method > ALLTOALLV_COPY_ENGINE)
    return alltoallv_fail(ncclInvalidArgument, "config.method %d is unknown", (int)c->method);
  if (!(c->timeout_seconds >= 0) || c->timeout_seconds > 1e9)
    return alltoallv_fail(ncclInvalidArgument, "config.timeout_seconds is not in 0 to 1e9");
  if (c->max_blocks != 0 && c->max_blocks < 2)
    return alltoallv_fail(ncclInvalidArgument, "config.max_blocks %d is below 2", c->max_blocks);
  if (c->ll_threshold != ALLTOALLV_DEFAULT && c->ll_threshold > ((size_t)16 << 20))
    return alltoallv_fail(ncclInvalidArgument, "config.ll_threshold is above 16 MiB");
  return ncclSuccess;
}

/* What this rank brings along, for the others to compare. */
enum {
  AGREE_ERROR,
  AGREE_METHOD,
  AGREE_CHECK,
  AGREE_THRESHOLD,
  AGREE_CALL,
  AGREE_LSA,
  AGREE_GPU, /* its PCI id, as text */
  AGREE_WORDS = AGREE_GPU + ALLTOALLV_PCI_ID / sizeof(uint64_t)
};

/* Pairs up to this size take the low-latency protocol. Above it, copying out of the scratch memory
 * costs more than the wait for the header that it saves. */
static const size_t default_ll_threshold = 512 << 10;

ncclResult_t alltoallv_agree_on(struct alltoallv_handle *h, ncclResult_t result, const char *what)
{
  const bool own = result != ncclSuccess;
  h->stage[0] = (uint64_t)result;
  ALLTOALLV_TRY(alltoallv_agree(h, 1));
  for (int r = 0; r < h->n; r++) {
    result = (ncclResult_t)h->stage[r];
    if (result != ncclSuccess)
      return alltoallv_fail(result, "rank %d cannot %s: %s", own ? h->rank : r, what,
                            own ? alltoallv_last_error() : ncclGetErrorString(result));
  }
  return ncclSuccess;
}

/* `first` is the first failure so far, whose sentence stays. */
static void destroy_lsa(struct alltoallv_handle *h, ncclResult_t *first)
{
  char before[ALLTOALLV_SENTENCE];
  memcpy(before, alltoallv_last_error(), sizeof(before));
  const ncclResult_t result = alltoallv_lsa_destroy(h->lsa);
  h->lsa = NULL;
  if (*first != ncclSuccess)
    (void)alltoallv_fail(*first, "%s", before);
  else if (result != ncclSuccess)
    *first = alltoallv_fail(result, "cleanup: memory of the kernel: %s", alltoallv_last_error());
}

/* Sets h->lsa, among the ranks that h->lsa_first and h->lsa_n say. Returns ncclInvalidUsage on all
 * ranks if there is no symmetric memory on one. */
static ncclResult_t make_lsa(struct alltoallv_handle *h)
{
  const alltoallv_config_t *c = &h->config;
  struct alltoallv_lsa_config lsa = {c->max_blocks, c->ll_threshold, c->first_call,
                                     c->timeout_seconds};
  /* The kernel and NCCL's must fit on the GPU side by side, since each waits for others. 64 leave
   * half of a large GPU to NCCL, and fill the links all the same. */
  if (h->lsa_n < h->n && (lsa.max_blocks == 0 || lsa.max_blocks > 64)) lsa.max_blocks = 64;
  /* A communicator of our own, also on one host: NCCL's send/recv goes wrong (wrong data, then a
   * hang; seen with 2.28.9) when the receive buffer is registered with its communicator and the
   * send buffer is not. So what we register must not be seen by the caller's send/recv. */
  ALLTOALLV_NCCLTRY(ncclCommSplit(h->comm, h->rank / h->lsa_n, h->rank, &h->lsa_comm, NULL));
  ncclResult_t result = alltoallv_lsa_create(h->lsa_comm, &lsa, &h->lsa);
  ALLTOALLV_TRY(alltoallv_agree_on(h, result, "set up the kernel"));
  return alltoallv_agree_on(h, alltoallv_lsa_connect(h->lsa), "share memory for the kernel");
}

/* The worst way in which any rank reaches another one of its host. After the agreement whose words
 * are in h->stage. */
static ncclResult_t worst_link(struct alltoallv_handle *h, int device, int lsa_ranks,
                               enum alltoallv_link *worst)
{
  const int first = h->rank / lsa_ranks * lsa_ranks;
  *worst = ALLTOALLV_LINK_NVLINK;
  for (int p = first; p < first + lsa_ranks; p++) {
    const uint64_t *words = h->stage + p * AGREE_WORDS;
    const enum alltoallv_link link = alltoallv_lsa_link(device, (const char *)(words + AGREE_GPU));
    if (link > *worst) *worst = link;
  }
  h->stage[0] = *worst;
  ALLTOALLV_TRY(alltoallv_agree(h, 1));
  for (int r = 0; r < h->n; r++)
    if (h->stage[r] > *worst) *worst = (enum alltoallv_link)h->stage[r];
  return ncclSuccess;
}

static ncclResult_t choose_path(struct alltoallv_handle *h, ncclResult_t own_result)
{
  alltoallv_config_t *c = &h->config;
  const char *why = "asked for";
  int lsa_ranks = 0, device = 0;
  if (own_result == ncclSuccess && c->method != ALLTOALLV_SENDRECV)
    lsa_ranks = alltoallv_lsa_ranks(h->comm, &why);
  if (ncclCommCuDevice(h->comm, &device) != ncclSuccess ||
      cudaDeviceGetPCIBusId((char *)(h->stage + AGREE_GPU), ALLTOALLV_PCI_ID, device) !=
          cudaSuccess)
    lsa_ranks = 0, why = "CUDA does not say which GPU this is";

  h->stage[AGREE_ERROR] = (uint64_t)own_result;
  h->stage[AGREE_METHOD] = (uint64_t)c->method;
  h->stage[AGREE_CHECK] = c->check_counts != 0;
  h->stage[AGREE_THRESHOLD] = c->ll_threshold;
  h->stage[AGREE_CALL] = c->first_call;
  h->stage[AGREE_LSA] = (uint64_t)lsa_ranks;
  ALLTOALLV_TRY(alltoallv_agree(h, AGREE_WORDS));
  if (own_result != ncclSuccess) return own_result;
  for (int r = 0; r < h->n; r++) {
    const uint64_t *other = h->stage + r * AGREE_WORDS;
    if (other[AGREE_ERROR] != ncclSuccess)
      return alltoallv_fail((ncclResult_t)other[AGREE_ERROR],
                            other[AGREE_ERROR] == ncclInvalidArgument
                                ? "rank %d has a wrong configuration"
                                : "rank %d cannot allocate what a handle needs",
                            r);
    if (other[AGREE_METHOD] != (uint64_t)c->method ||
        other[AGREE_CHECK] != (uint64_t)(c->check_counts != 0) ||
        other[AGREE_THRESHOLD] != c->ll_threshold || other[AGREE_CALL] != c->first_call)
      return alltoallv_fail(ncclInvalidArgument, "rank %d has another configuration", r);
    if (other[AGREE_LSA] < (uint64_t)lsa_ranks) {
      lsa_ranks = (int)other[AGREE_LSA];
      if (lsa_ranks == 0) why = "the kernel cannot run on another rank";
    }
  }
  if (lsa_ranks == 1 && h->n > 1) {
    lsa_ranks = 0;
    why = "no two GPUs share a host";
  } else if (lsa_ranks > ALLTOALLV_MAX_LSA_RANKS) {
    lsa_ranks = 0;
    why = "more GPUs share memory than the kernel is made for";
  }
  if (lsa_ranks > 1) {
    enum alltoallv_link link;
    ALLTOALLV_TRY(worst_link(h, device, lsa_ranks, &link));
    if (link == ALLTOALLV_LINK_PCIE)
      lsa_ranks = 0, why = "a GPU is reached over PCIe, where the kernel's counters cannot add";
    else if (link == ALLTOALLV_LINK_UNKNOWN && c->method == ALLTOALLV_AUTO)
      lsa_ranks = 0, why = "a process does not see whether another one's GPU is on NVLink";
  }

  h->lsa_n = lsa_ranks;
  if (lsa_ranks > 0) {
    h->lsa_first = h->rank / lsa_ranks * lsa_ranks;
    ncclResult_t result = make_lsa(h);
    if (result != ncclSuccess && h->lsa != NULL) destroy_lsa(h, &result);
    /* Without symmetric memory there is another way; a failure is a failure. */
    if (result == ncclInvalidUsage)
      why = "the communicator has no symmetric memory";
    else if (result != ncclSuccess)
      return result;
  }

  if (h->lsa == NULL) {
    if (c->method == ALLTOALLV_LSA || c->method == ALLTOALLV_COPY_ENGINE)
      return alltoallv_fail(ncclInvalidUsage, "the kernel cannot be used: %s", why);
    h->method = ALLTOALLV_SENDRECV;
    snprintf(h->why, sizeof(h->why), "send/recv: %s", why);
    return ncclSuccess;
  }
  h->method = c->method == ALLTOALLV_COPY_ENGINE ? ALLTOALLV_COPY_ENGINE : ALLTOALLV_LSA;
  if (h->lsa_n == h->n)
    snprintf(h->why, sizeof(h->why), "one-sided kernel among %d ranks", h->n);
  else
    snprintf(h->why, sizeof(h->why),
             "one-sided kernel among the %d ranks of a host, send/recv between hosts", h->lsa_n);
  return ncclSuccess;
}

static ncclResult_t allocate(struct alltoallv_handle *h)
{
  h->pairs = calloc((size_t)h->n, sizeof(*h->pairs));
  h->spans = calloc((size_t)h->n, sizeof(*h->spans));
  if (h->pairs == NULL || h->spans == NULL) return alltoallv_fail(ncclSystemError, "out of memory");
  ALLTOALLV_CUDATRY(cudaStreamCreateWithFlags(&h->side_stream, cudaStreamNonBlocking));
  ALLTOALLV_CUDATRY(cudaEventCreateWithFlags(&h->fork, cudaEventDisableTiming));
  ALLTOALLV_CUDATRY(cudaEventCreateWithFlags(&h->join, cudaEventDisableTiming));
  ALLTOALLV_CUDATRY(cudaEventCreateWithFlags(&h->last_done, cudaEventDisableTiming));
  return ncclSuccess;
}

/* What fails on this rank is told to the others, or they would wait for it. That takes the stage,
 * so it comes first. */
static ncclResult_t make_handle(struct alltoallv_handle *h, ncclResult_t config_result)
{
  ALLTOALLV_NCCLTRY(ncclCommUserRank(h->comm, &h->rank));
  ALLTOALLV_NCCLTRY(ncclCommCount(h->comm, &h->n));
  size_t stage = ((size_t)h->n + 1) * alltoallv_stage_words(h->n) * sizeof(uint64_t);
  ALLTOALLV_CUDATRY(cudaMallocHost((void **)&h->stage, stage));
  ALLTOALLV_CUDATRY(cudaMalloc((void **)&h->stage_device, stage));
  ALLTOALLV_CUDATRY(cudaStreamCreateWithFlags(&h->stage_stream, cudaStreamNonBlocking));
  return choose_path(h, config_result == ncclSuccess ? allocate(h) : config_result);
}

static void keep_first_cuda(ncclResult_t *first, cudaError_t error, const char *what)
{
  if (*first == ncclSuccess && error != cudaSuccess)
    *first =
        alltoallv_fail(ncclUnhandledCudaError, "cleanup: %s: %s", what, cudaGetErrorString(error));
}

/* Frees everything, whatever fails, and returns the first failure; `first` is one from before. */
static ncclResult_t free_handle(struct alltoallv_handle *h, ncclResult_t first)
{
  const cudaEvent_t events[] = {h->last_done, h->join, h->fork};
  const cudaStream_t streams[] = {h->side_stream, h->stage_stream};
  /* After a timeout a late peer may still write into our scratch memory: it stays. */
  const bool leave = alltoallv_has_timed_out(h);
  if (h->lsa != NULL && !leave) destroy_lsa(h, &first);
  if (h->lsa_comm != NULL && !leave) {
    const ncclResult_t result = ncclCommDestroy(h->lsa_comm);
    if (first == ncclSuccess && result != ncclSuccess)
      first = alltoallv_fail(result, "cleanup: communicator: %s", alltoallv_nccl_reason(result));
  }
  for (size_t i = 0; i < sizeof(events) / sizeof(*events); i++)
    if (events[i] != NULL) keep_first_cuda(&first, cudaEventDestroy(events[i]), "event");
  for (size_t i = 0; i < sizeof(streams) / sizeof(*streams); i++)
    if (streams[i] != NULL) keep_first_cuda(&first, cudaStreamDestroy(streams[i]), "stream");
  if (h->stage_device != NULL) keep_first_cuda(&first, cudaFree(h->stage_device), "cudaFree");
  if (h->stage != NULL) keep_first_cuda(&first, cudaFreeHost(h->stage), "cudaFreeHost");
  free(h->pairs);
  free(h->spans);
  free(h);
  return first;
}

ncclResult_t alltoallv_init(ncclComm_t comm, const alltoallv_config_t *config, alltoallv_t *handle)
{
  static const alltoallv_config_t defaults = ALLTOALLV_CONFIG_INITIALIZER;
  if (comm == NULL || handle == NULL) return alltoallv_fail(ncclInvalidArgument, "NULL argument");
  *handle = NULL;
  struct alltoallv_handle *h = calloc(1, sizeof(*h));
  if (h == NULL) return alltoallv_fail(ncclSystemError, "out of memory");
  h->comm = comm;
  h->config = defaults;
  ncclResult_t result = config != NULL ? check_config(config) : ncclSuccess;
  if (config != NULL && result == ncclSuccess) h->config = *config;
  if (h->config.ll_threshold == ALLTOALLV_DEFAULT) h->config.ll_threshold = default_ll_threshold;
  if (h->config.first_call == 0) h->config.first_call = 1;
  result = make_handle(h, result);
  if (result != ncclSuccess) return free_handle(h, result);
  *handle = h;
  return ncclSuccess;
}

ncclResult_t alltoallv_destroy(alltoallv_t handle)
{
  if (handle == NULL) return alltoallv_fail(ncclInvalidArgument, "NULL handle");
  ncclResult_t first = ncclSuccess;
  /* of any stream, launches of graphs included; freeing memory waits for the device anyway */
  keep_first_cuda(&first, cudaDeviceSynchronize(), "the last exchange");
  return free_handle(handle, first);
}

ncclResult_t alltoallv_method(alltoallv_t handle, alltoallv_method_t *method, const char **why)
{
  if (handle == NULL) return alltoallv_fail(ncclInvalidArgument, "NULL handle");
  if (method != NULL) *method = handle->method;
  if (why != NULL) *why = handle->why;
  return ncclSuccess;
}

ncclResult_t alltoallv_reach(alltoallv_t handle, int *ranks)
{
  if (handle == NULL || ranks == NULL) return alltoallv_fail(ncclInvalidArgument, "NULL argument");
  *ranks = handle->lsa == NULL ? 0 : handle->lsa_n;
  return ncclSuccess;
}
