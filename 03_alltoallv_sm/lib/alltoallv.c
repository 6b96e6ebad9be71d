/* SPDX-License-Identifier: Apache-2.0 */
/* The AlltoAllV on the host: making a handle, registering buffers, checking arguments, and handing
 * an exchange to the kernel (alltoallv_lsa.h) and to send/recv (alltoallv_sendrecv.c). */
#include "alltoallv_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors ------------------------------------------------------------------------------- */

static _Thread_local char last_error[512];

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

static const char *unit_name(struct alltoallv_unit unit)
{
  return unit.rows ? "rows" : "elements";
}

ncclResult_t alltoallv_describe(const struct alltoallv_error *e, int base, int *source,
                                int *destination)
{
  *source = e->source < 0 ? -1 : e->source + base;
  *destination = e->destination < 0 ? -1 : e->destination + base;
  /* In what this rank counts in. The other one may count in something else: then in bytes. */
  const uint32_t unit = e->unit.bytes;
  const bool whole = unit > 0 && e->sent % unit == 0 && e->expected % unit == 0;
  const unsigned long long sent = whole ? e->sent / unit : e->sent;
  const unsigned long long expected = whole ? e->expected / unit : e->expected;
  const char *what = whole ? unit_name(e->unit) : "bytes";
  switch (e->kind) {
  case ALLTOALLV_ERROR_MISMATCH:
    return alltoallv_fail(ncclInvalidArgument,
                          "rank %d sends %llu %s to rank %d, which expects %llu", *source, sent,
                          what, *destination, expected);
  case ALLTOALLV_ERROR_KIND:
    return alltoallv_fail(ncclInvalidUsage, "ranks %d and %d made different calls", *source,
                          *destination);
  case ALLTOALLV_ERROR_CAPACITY:
    if (*source < 0)
      return alltoallv_fail(ncclInvalidArgument, "rank %d would receive %llu %s, %llu fit",
                            *destination, sent, what, expected);
    return alltoallv_fail(ncclInvalidArgument, "rank %d sends %llu %s to rank %d, where %llu fit",
                          *source, sent, what, *destination, expected);
  default:
    return alltoallv_fail(ncclRemoteError, "rank %d waited in vain for rank %d", *destination,
                          *source);
  }
}

/* The device writes the rest of a record before its kind. */
static bool has_error(const struct alltoallv_error *e)
{
  return __atomic_load_n(&e->kind, __ATOMIC_ACQUIRE) != ALLTOALLV_ERROR_NONE;
}

ncclResult_t alltoallv_get_async_error(alltoallv_t handle, ncclResult_t *result, int *source,
                                       int *destination)
{
  if (handle == NULL) return alltoallv_fail(ncclInvalidArgument, "NULL handle");
  ncclResult_t found = ncclSuccess;
  int from = -1, to = -1;
  struct alltoallv_errors *errors = handle->lsa != NULL ? alltoallv_lsa_errors(handle->lsa) : NULL;
  if (errors != NULL && has_error(&errors->timeout)) { /* stays */
    found = alltoallv_describe(&errors->timeout, handle->lsa_first, &from, &to);
  } else if (errors != NULL && has_error(&errors->counts)) {
    found = alltoallv_describe(&errors->counts, handle->lsa_first, &from, &to);
    __atomic_store_n(&errors->counts.kind, ALLTOALLV_ERROR_NONE, __ATOMIC_RELEASE);
  } else if (has_error(&handle->counts_error)) {
    found = alltoallv_describe(&handle->counts_error, 0, &from, &to);
    handle->counts_error.kind = ALLTOALLV_ERROR_NONE;
  }
  if (result != NULL) *result = found;
  if (source != NULL) *source = from;
  if (destination != NULL) *destination = to;
  return ncclSuccess;
}

/* ---- units -------------------------------------------------------------------------------- */

/* Bytes of an element; 0 if the type is unknown. */
static size_t type_size(ncclDataType_t datatype)
{
  switch (datatype) {
  case ncclInt8:
  case ncclUint8:
    return 1;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 24, 0)
  case ncclFloat8e4m3:
  case ncclFloat8e5m2:
    return 1;
#endif
  case ncclFloat16:
  case ncclBfloat16:
    return 2;
  case ncclInt32:
  case ncclUint32:
  case ncclFloat32:
    return 4;
  case ncclInt64:
  case ncclUint64:
  case ncclFloat64:
    return 8;
  default:
    return 0;
  }
}

static ncclResult_t make_unit(ncclDataType_t datatype, size_t row_elements,
                              struct alltoallv_unit *unit)
{
  const size_t element = type_size(datatype);
  if (element == 0) return alltoallv_fail(ncclInvalidArgument, "unknown data type");
  if (row_elements == 0)
    return alltoallv_fail(ncclInvalidArgument, "row_elements is 0; allowed: at least 1");
  if (row_elements > UINT32_MAX / element)
    return alltoallv_fail(ncclInvalidArgument,
                          "a row of %zu elements of %zu bytes; allowed: less than 4 GiB",
                          row_elements, element);
  unit->bytes = (uint32_t)(row_elements * element);
  unit->rows = row_elements > 1;
  return ncclSuccess;
}

/* ---- set up ------------------------------------------------------------------------------- */

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
  AGREE_WORDS
};

/* Pairs up to this size take the low-latency protocol: measured, see the README. */
static const size_t default_ll_threshold = 512 << 10;

/* Collective. Have all ranks got as far as this one? The first failure becomes everybody's. Why, a
 * rank that has failed itself knows from its own sentence; the others have the result in words. */
static ncclResult_t agree_on(struct alltoallv_handle *h, ncclResult_t result, const char *what)
{
  h->stage[0] = (uint64_t)result;
  ALLTOALLV_TRY(alltoallv_agree(h, 1));
  const bool own = result != ncclSuccess;
  for (int r = 0; r < h->n; r++) {
    result = (ncclResult_t)h->stage[r];
    if (result != ncclSuccess)
      return alltoallv_fail(result, "rank %d cannot %s: %s", own ? h->rank : r, what,
                            own ? last_error : ncclGetErrorString(result));
  }
  return ncclSuccess;
}

/* `first` is the first failure so far, whose sentence stays. */
static void destroy_lsa(struct alltoallv_handle *h, ncclResult_t *first)
{
  char before[sizeof(last_error)];
  memcpy(before, last_error, sizeof(before));
  const ncclResult_t result = alltoallv_lsa_destroy(h->lsa);
  h->lsa = NULL;
  if (*first != ncclSuccess)
    memcpy(last_error, before, sizeof(before));
  else if (result != ncclSuccess)
    *first = alltoallv_fail(result, "cleanup: memory of the kernel: %s", last_error);
}

/* Sets h->lsa, among the ranks that h->lsa_first and h->lsa_n say. Returns ncclInvalidUsage on all
 * ranks if there is no symmetric memory on one. */
static ncclResult_t make_lsa(struct alltoallv_handle *h)
{
  const alltoallv_config_t *c = &h->config;
  struct alltoallv_lsa_config lsa = {c->max_blocks, c->ll_threshold, c->first_call,
                                     c->timeout_seconds};
  /* The kernel and NCCL's must fit on the GPU side by side, since each waits for others. */
  if (h->lsa_n < h->n && (lsa.max_blocks == 0 || lsa.max_blocks > 64)) lsa.max_blocks = 64;
  /* A communicator of our own, also on one host: NCCL's send/recv goes wrong (wrong data, then a
   * hang; seen with 2.28.9) when the receive buffer is registered with its communicator and the
   * send buffer is not. So what we register must not be seen by the caller's send/recv. */
  ALLTOALLV_NCCLTRY(ncclCommSplit(h->comm, h->rank / h->lsa_n, h->rank, &h->lsa_comm, NULL));
  ncclResult_t result = alltoallv_lsa_create(h->lsa_comm, &lsa, &h->lsa);
  ALLTOALLV_TRY(agree_on(h, result, "set up the kernel"));
  return agree_on(h, alltoallv_lsa_connect(h->lsa), "share memory for the kernel");
}

static ncclResult_t choose_path(struct alltoallv_handle *h, ncclResult_t own_result)
{
  alltoallv_config_t *c = &h->config;
  const char *why = "asked for";
  int lsa_ranks = 0;
  if (own_result == ncclSuccess && c->method != ALLTOALLV_SENDRECV)
    lsa_ranks = alltoallv_lsa_ranks(h->comm, &why);

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
  if (h->lsa != NULL) destroy_lsa(h, &first);
  if (h->lsa_comm != NULL) {
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

/* ---- receive buffers ---------------------------------------------------------------------- */

static int find_window(const struct alltoallv_handle *h, const void *at)
{
  for (int id = 0; id < ALLTOALLV_MAX_WINDOWS; id++) {
    const struct alltoallv_window *w = &h->windows[id];
    if (w->base != NULL && (const char *)at >= w->base && (const char *)at < w->base + w->bytes)
      return id;
  }
  return -1;
}

ncclResult_t alltoallv_register(alltoallv_t handle, void *buff, size_t bytes)
{
  if (handle == NULL) return alltoallv_fail(ncclInvalidArgument, "NULL handle");
  int id = 0;
  while (id < ALLTOALLV_MAX_WINDOWS && handle->windows[id].base != NULL) id++;

  /* NCCL would hang or misbehave if ranks disagreed, so ask first. */
  handle->stage[0] = buff != NULL ? bytes : 0;
  handle->stage[1] = (uint64_t)id;
  handle->stage[2] = (uintptr_t)buff % 4096;
  ALLTOALLV_TRY(alltoallv_agree(handle, 3));
  for (int r = 0; r < handle->n; r++) {
    const uint64_t *other = handle->stage + 3 * r;
    if (other[0] == 0 || other[2] != 0)
      return alltoallv_fail(ncclInvalidArgument,
                            "rank %d registers nothing, or at no multiple of 4096 bytes", r);
    if (other[0] != handle->stage[0])
      return alltoallv_fail(ncclInvalidArgument, "rank %d registers %llu bytes, rank 0 %llu", r,
                            (unsigned long long)other[0], (unsigned long long)handle->stage[0]);
    if (other[1] != handle->stage[1] || other[1] == ALLTOALLV_MAX_WINDOWS)
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
  w->since = ++handle->registrations;
  return ncclSuccess;
}

ncclResult_t alltoallv_peer(alltoallv_t handle, const void *buff, int peer, void **address)
{
  if (handle == NULL || buff == NULL || address == NULL)
    return alltoallv_fail(ncclInvalidArgument, "NULL argument");
  if (peer < 0 || peer >= handle->n)
    return alltoallv_fail(ncclInvalidArgument, "there is no rank %d", peer);
  for (int id = 0; id < ALLTOALLV_MAX_WINDOWS; id++) {
    const struct alltoallv_window *w = &handle->windows[id];
    if (w->base != buff) continue;
    *address = alltoallv_is_local(handle, peer) ? w->peers[peer - handle->lsa_first] : NULL;
    return ncclSuccess;
  }
  return alltoallv_fail(ncclInvalidArgument, "the buffer is not registered");
}

ncclResult_t alltoallv_unregister(alltoallv_t handle, void *buff)
{
  if (handle == NULL) return alltoallv_fail(ncclInvalidArgument, "NULL handle");
  for (int id = 0; id < ALLTOALLV_MAX_WINDOWS; id++) {
    if (buff == NULL || handle->windows[id].base != buff) continue;
    handle->windows[id].base = NULL;
    return handle->lsa != NULL ? alltoallv_lsa_unregister(handle->lsa, id) : ncclSuccess;
  }
  return alltoallv_fail(ncclInvalidArgument, "the buffer is not registered");
}

/* ---- checking arguments ------------------------------------------------------------------- */

/* Where recvbuff lies: on the kernel's path it has to be registered, with room for `end` bytes.
 * `last` is the rank whose segment ends there, -1: recvcapacity. */
static ncclResult_t locate_recvbuff(const struct alltoallv_handle *h, void *recvbuff, uint64_t end,
                                    int last, struct alltoallv_exchange *ex)
{
  const int id = end > 0 ? find_window(h, recvbuff) : -1;
  ex->recv = recvbuff;
  ex->registered = id >= 0;
  ex->window = id >= 0 ? (uint32_t)id : 0;
  ex->window_offset = id >= 0 ? (uint64_t)(ex->recv - h->windows[id].base) : 0;
  if (h->lsa == NULL || end == 0) return ncclSuccess;
  if (id < 0) return alltoallv_fail(ncclInvalidUsage, "recvbuff is not registered");
  const uint64_t room = h->windows[id].bytes - ex->window_offset, unit = ex->unit.bytes;
  if (end <= room) return ncclSuccess;
  if (last < 0)
    return alltoallv_fail(
        ncclInvalidArgument, "recvcapacity is %llu %s, but the registered buffer ends after %llu",
        (unsigned long long)(end / unit), unit_name(ex->unit), (unsigned long long)(room / unit));
  return alltoallv_fail(ncclInvalidArgument,
                        "what comes from rank %d ends after %llu %s of recvbuff, but the "
                        "registered buffer ends after %llu",
                        last, (unsigned long long)(end / unit), unit_name(ex->unit),
                        (unsigned long long)(room / unit));
}

static int by_begin(const void *a, const void *b)
{
  const struct alltoallv_span *x = a, *y = b;
  return (x->begin > y->begin) - (x->begin < y->begin);
}

/* Segments of the receive buffer in any order; empty ones do not matter. */
static ncclResult_t refuse_overlap(struct alltoallv_handle *h, const struct alltoallv_exchange *ex)
{
  int spans = 0;
  for (int p = 0; p < h->n; p++) {
    const struct alltoallv_pair *pair = &ex->pairs[p];
    if (pair->recv_bytes > 0)
      h->spans[spans++] =
          (struct alltoallv_span){pair->recv_offset, pair->recv_offset + pair->recv_bytes, p};
  }
  qsort(h->spans, (size_t)spans, sizeof(*h->spans), by_begin);
  for (int i = 1; i < spans; i++)
    if (h->spans[i].begin < h->spans[i - 1].end)
      return alltoallv_fail(ncclInvalidUsage,
                            "what comes from ranks %d and %d overlaps in recvbuff",
                            h->spans[i - 1].rank, h->spans[i].rank);
  return ncclSuccess;
}

/* A segment in bytes: displacement NULL means behind the one before, which ends at *packed. False
 * if it overflows. */
static bool segment(size_t count, const size_t *displacement, uint32_t unit, uint64_t *packed,
                    uint64_t *bytes, uint64_t *offset, uint64_t *end)
{
  *offset = *packed;
  if (__builtin_mul_overflow(count, (size_t)unit, bytes) ||
      (displacement != NULL && __builtin_mul_overflow(*displacement, (size_t)unit, offset)) ||
      __builtin_add_overflow(*offset, *bytes, end))
    return false;
  *packed = *end;
  return true;
}

ncclResult_t alltoallv_make_exchange(struct alltoallv_handle *h, const void *sendbuff,
                                     const size_t sendcounts[], const size_t sdispls[],
                                     void *recvbuff, const size_t recvcounts[],
                                     const size_t rdispls[], size_t row_elements,
                                     ncclDataType_t datatype, struct alltoallv_exchange *ex)
{
  ALLTOALLV_TRY(make_unit(datatype, row_elements, &ex->unit));
  if (sendcounts == NULL || recvcounts == NULL)
    return alltoallv_fail(ncclInvalidArgument, "NULL array of counts");

  uint64_t send_begin = UINT64_MAX, send_end = 0, recv_begin = UINT64_MAX, recv_end = 0;
  uint64_t send_packed = 0, recv_packed = 0;
  const uint32_t unit = ex->unit.bytes;
  int last = -1;
  bool ascending = true;
  for (int p = 0; p < h->n; p++) {
    struct alltoallv_pair *pair = &ex->pairs[p];
    uint64_t end;
    if (!segment(sendcounts[p], sdispls != NULL ? &sdispls[p] : NULL, unit, &send_packed,
                 &pair->send_bytes, &pair->send_offset, &end))
      return alltoallv_fail(ncclInvalidArgument, "what goes to rank %d overflows", p);
    if (pair->send_bytes > 0) {
      if (pair->send_offset < send_begin) send_begin = pair->send_offset;
      if (end > send_end) send_end = end;
    }
    if (!segment(recvcounts[p], rdispls != NULL ? &rdispls[p] : NULL, unit, &recv_packed,
                 &pair->recv_bytes, &pair->recv_offset, &end))
      return alltoallv_fail(ncclInvalidArgument, "what comes from rank %d overflows", p);
    if (pair->recv_bytes > 0) {
      if (pair->recv_offset < recv_end) ascending = false;
      if (pair->recv_offset < recv_begin) recv_begin = pair->recv_offset;
      if (end > recv_end) recv_end = end, last = p;
    }
  }
  if ((send_end > 0 && sendbuff == NULL) || (recv_end > 0 && recvbuff == NULL))
    return alltoallv_fail(ncclInvalidArgument, "NULL buffer");
  ex->send = sendbuff;
  ALLTOALLV_TRY(locate_recvbuff(h, recvbuff, recv_end, last, ex));
  const uintptr_t send = (uintptr_t)sendbuff, recv = (uintptr_t)recvbuff;
  if (send_end > 0 && recv_end > 0 && send + send_begin < recv + recv_end &&
      recv + recv_begin < send + send_end)
    return alltoallv_fail(ncclInvalidUsage, "send and receive ranges overlap");
  return ascending ? ncclSuccess : refuse_overlap(h, ex);
}

/* ---- counts ------------------------------------------------------------------------------- */

ncclResult_t alltoallv_counts(const size_t sendcounts[], size_t recvcounts[], alltoallv_t handle)
{
  if (handle == NULL) return alltoallv_fail(ncclInvalidArgument, "NULL handle");
  const size_t n = (size_t)handle->n, words = 1 + n; /* are my arguments right?; my counts */
  const bool wrong = sendcounts == NULL || recvcounts == NULL;
  handle->stage[0] = wrong;
  if (!wrong) memcpy(handle->stage + 1, sendcounts, n * sizeof(*sendcounts));
  ALLTOALLV_TRY(alltoallv_agree(handle, words)); /* also if mine are wrong: the others wait */
  for (size_t r = 0; r < n; r++)
    if (handle->stage[r * words] != 0)
      return alltoallv_fail(ncclInvalidArgument, "rank %zu passes NULL", r);
  for (size_t r = 0; r < n; r++)
    recvcounts[r] = handle->stage[r * words + 1 + (size_t)handle->rank];
  return ncclSuccess;
}

/* ---- exchanges ---------------------------------------------------------------------------- */

static ncclResult_t is_capturing(cudaStream_t stream, bool *capturing)
{
  enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  ALLTOALLV_CUDATRY(cudaStreamIsCapturing(stream, &status));
  *capturing = status != cudaStreamCaptureStatusNone;
  return ncclSuccess;
}

ncclResult_t alltoallv_order(struct alltoallv_handle *h, cudaStream_t stream, bool *capturing)
{
  if (h->lsa != NULL && has_error(&alltoallv_lsa_errors(h->lsa)->timeout))
    return alltoallv_fail(ncclRemoteError, "the handle has timed out before");
  ALLTOALLV_TRY(is_capturing(stream, capturing));
  if (*capturing) { /* the caller orders the launches of the graph */
    bool another = false;
    if (h->captured_exists && stream != h->captured_stream)
      ALLTOALLV_TRY(is_capturing(h->captured_stream, &another));
    if (another)
      return alltoallv_fail(ncclInvalidUsage,
                            "two streams capture exchanges of one handle at the same time");
    h->captured_exists = true;
    h->captured_stream = stream;
    return ncclSuccess;
  }
  if (h->last_exists && stream != h->last_stream) {
    bool busy = false;
    ALLTOALLV_TRY(is_capturing(h->last_stream, &busy));
    if (busy)
      return alltoallv_fail(ncclInvalidUsage,
                            "the stream of the exchange before is being captured: "
                            "this one cannot wait for it");
    ALLTOALLV_CUDATRY(cudaEventRecord(h->last_done, h->last_stream));
    ALLTOALLV_CUDATRY(cudaStreamWaitEvent(stream, h->last_done, 0));
  }
  h->last_exists = true;
  h->last_stream = stream;
  h->captured_exists = false; /* that stream need not exist any more */
  return ncclSuccess;
}

void alltoallv_fill_call(const struct alltoallv_handle *h, const struct alltoallv_exchange *ex,
                         struct alltoallv_lsa_call *call)
{
  call->kind = ALLTOALLV_KIND_HOST;
  call->send = ex->send;
  call->recv = ex->recv;
  call->window = ex->window;
  call->window_offset = ex->window_offset;
  call->unit = ex->unit;
  memcpy(call->pairs, ex->pairs + h->lsa_first, (size_t)h->lsa_n * sizeof(*ex->pairs));
}

ncclResult_t alltoallv_fork(struct alltoallv_handle *h, cudaStream_t stream)
{
  ALLTOALLV_CUDATRY(cudaEventRecord(h->fork, stream));
  ALLTOALLV_CUDATRY(cudaStreamWaitEvent(h->side_stream, h->fork, 0));
  return ncclSuccess;
}

ncclResult_t alltoallv_join(struct alltoallv_handle *h, cudaStream_t stream)
{
  ALLTOALLV_CUDATRY(cudaEventRecord(h->join, h->side_stream));
  ALLTOALLV_CUDATRY(cudaStreamWaitEvent(stream, h->join, 0));
  return ncclSuccess;
}

ncclResult_t alltoallv_exchange(struct alltoallv_handle *h, const struct alltoallv_exchange *ex,
                                bool capturing, cudaStream_t stream)
{
  if (h->lsa == NULL) return alltoallv_sendrecv(h, ex, capturing, stream);

  bool remote = h->lsa_n < h->n;
  ncclResult_t result = ncclSuccess;
  if (remote) { /* the slower part first, beside the kernel */
    ALLTOALLV_TRY(alltoallv_fork(h, stream));
    result = alltoallv_sendrecv(h, ex, capturing, h->side_stream);
  }
  struct alltoallv_lsa_call call;
  alltoallv_fill_call(h, ex, &call);
  ncclResult_t launched = alltoallv_lsa_launch(h->lsa, &call, stream);
  if (remote) ALLTOALLV_TRY(alltoallv_join(h, stream));
  ALLTOALLV_TRY(launched);
  return result;
}

ncclResult_t alltoallv_rows(const void *sendbuff, const size_t sendcounts[], const size_t sdispls[],
                            void *recvbuff, const size_t recvcounts[], const size_t rdispls[],
                            size_t row_elements, ncclDataType_t datatype, alltoallv_t handle,
                            cudaStream_t stream)
{
  if (handle == NULL) return alltoallv_fail(ncclInvalidArgument, "NULL handle");
  struct alltoallv_exchange ex = {.pairs = handle->pairs};
  bool capturing;
  ALLTOALLV_TRY(alltoallv_make_exchange(handle, sendbuff, sendcounts, sdispls, recvbuff, recvcounts,
                                        rdispls, row_elements, datatype, &ex));
  ALLTOALLV_TRY(alltoallv_order(handle, stream, &capturing));
  return alltoallv_exchange(handle, &ex, capturing, stream);
}

ncclResult_t alltoallv(const void *sendbuff, const size_t sendcounts[], const size_t sdispls[],
                       void *recvbuff, const size_t recvcounts[], const size_t rdispls[],
                       ncclDataType_t datatype, alltoallv_t handle, cudaStream_t stream)
{
  return alltoallv_rows(sendbuff, sendcounts, sdispls, recvbuff, recvcounts, rdispls, 1, datatype,
                        handle, stream);
}

ncclResult_t alltoallv_device_counts_rows(const void *sendbuff, const size_t *sendcounts,
                                          const size_t *sdispls, void *recvbuff,
                                          size_t recvcapacity, size_t *recvcounts, size_t *rdispls,
                                          alltoallv_layout_t layout, size_t row_elements,
                                          ncclDataType_t datatype, alltoallv_t handle,
                                          cudaStream_t stream)
{
  if (handle == NULL) return alltoallv_fail(ncclInvalidArgument, "NULL handle");
  struct alltoallv_exchange ex = {.send = sendbuff, .pairs = handle->pairs};
  struct alltoallv_lsa_call call;
  uint64_t bytes;
  bool capturing;
  ALLTOALLV_TRY(make_unit(datatype, row_elements, &ex.unit));
  if (sendcounts == NULL || recvcounts == NULL)
    return alltoallv_fail(ncclInvalidArgument, "NULL array of counts");
  if (layout != ALLTOALLV_PACKED && layout != ALLTOALLV_SLOTS)
    return alltoallv_fail(ncclInvalidArgument, "unknown layout");
  if (layout == ALLTOALLV_SLOTS && rdispls == NULL)
    return alltoallv_fail(ncclInvalidArgument, "rdispls NULL; allowed: with ALLTOALLV_PACKED only");
  if (__builtin_mul_overflow(recvcapacity, (size_t)ex.unit.bytes, &bytes))
    return alltoallv_fail(ncclInvalidArgument, "recvcapacity overflows");
  if (sendbuff == NULL || (bytes > 0 && recvbuff == NULL))
    return alltoallv_fail(ncclInvalidArgument, "NULL buffer");
  ALLTOALLV_TRY(locate_recvbuff(handle, recvbuff, bytes, -1, &ex));
  ALLTOALLV_TRY(alltoallv_order(handle, stream, &capturing));

  call.kind = layout == ALLTOALLV_SLOTS ? ALLTOALLV_KIND_SLOTS : ALLTOALLV_KIND_PACKED;
  call.send = ex.send;
  call.recv = ex.recv;
  call.window = ex.window;
  call.window_offset = ex.window_offset;
  call.unit = ex.unit;
  call.capacity = recvcapacity;
  call.sendcounts = sendcounts;
  call.sdispls = sdispls;
  call.recvcounts = recvcounts;
  call.rdispls = rdispls;
  if (handle->lsa != NULL && handle->lsa_n == handle->n)
    return alltoallv_lsa_launch(handle->lsa, &call, stream);
  if (capturing)
    return alltoallv_fail(ncclInvalidUsage,
                          "device counts cannot be captured on the send/recv path");
  return alltoallv_sendrecv_device_counts(handle, &ex, &call, stream);
}

ncclResult_t alltoallv_device_counts(const void *sendbuff, const size_t *sendcounts,
                                     const size_t *sdispls, void *recvbuff, size_t recvcapacity,
                                     size_t *recvcounts, size_t *rdispls, alltoallv_layout_t layout,
                                     ncclDataType_t datatype, alltoallv_t handle,
                                     cudaStream_t stream)
{
  return alltoallv_device_counts_rows(sendbuff, sendcounts, sdispls, recvbuff, recvcapacity,
                                      recvcounts, rdispls, layout, 1, datatype, handle, stream);
}
