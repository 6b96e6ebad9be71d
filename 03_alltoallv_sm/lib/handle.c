/* SPDX-License-Identifier: Apache-2.0 */
/* Handles: what all ranks have to agree on, which path the bytes will take, registered buffers, and
 * what went wrong. */
#include "alltoallv_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors ------------------------------------------------------------------------------- */

static _Thread_local char last_error[ALLTOALLV_TEXT];

const char *alltoallv_last_error(void)
{
  return last_error;
}

ncclResult_t alltoallv_fail(ncclResult_t result, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  vsnprintf(last_error, sizeof(last_error), format, args);
  va_end(args);
  for (char *c = last_error; *c != '\0'; c++) /* one line, whatever NCCL has written */
    if (*c == '\n') *c = ' ';
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

static bool has_timed_out(const struct alltoallv_handle *h)
{
  return h->errors != NULL && has_error(&h->errors->timeout);
}

ncclResult_t alltoallv_check_timeout(const struct alltoallv_handle *h)
{
  if (!has_timed_out(h)) return ncclSuccess;
  return alltoallv_fail(ncclRemoteError, "the handle has timed out before: a late rank may still "
                                         "write into its buffers, so do not free them");
}

/* The sentence for an error, and its result. */
static ncclResult_t describe(const struct alltoallv_error *e)
{
  const int source = e->source, destination = e->destination;
  /* In what this rank counts in. The other one may count in something else: then in bytes. */
  const bool whole = e->sent % e->element == 0 && e->expected % e->element == 0;
  const unsigned long long sent = whole ? e->sent / e->element : e->sent;
  const unsigned long long expected = whole ? e->expected / e->element : e->expected;
  const char *what = whole ? "elements" : "bytes";
  char where[40] = ""; /* with send/recv exchanges have no numbers */
  const uint32_t number = e->epoch - ALLTOALLV_FIRST_EPOCH + 1;
  if (e->epoch != 0) snprintf(where, sizeof(where), " (exchange %u)", number);
  if (e->kind == ALLTOALLV_ERROR_KIND)
    return alltoallv_fail(ncclInvalidUsage, "ranks %d and %d made different calls%s", source,
                          destination, where);
  if (e->kind == ALLTOALLV_ERROR_TIMEOUT)
    return alltoallv_fail(ncclRemoteError, "rank %d timed out waiting for rank %d%s", destination,
                          source, where);
  if (source < 0)
    return alltoallv_fail(ncclInvalidArgument, "rank %d would receive %llu %s, %llu fit%s",
                          destination, sent, what, expected, where);
  return alltoallv_fail(ncclInvalidArgument,
                        e->kind == ALLTOALLV_ERROR_CAPACITY
                            ? "rank %d sends %llu %s to rank %d, where %llu fit%s"
                            : "rank %d sends %llu %s to rank %d, which expects %llu%s",
                        source, sent, what, destination, expected, where);
}

ncclResult_t alltoallv_get_async_error(alltoallv_t handle, ncclResult_t *result, int *source,
                                       int *destination)
{
  if (handle == NULL) return alltoallv_fail(ncclInvalidArgument, "NULL handle");
  struct alltoallv_errors *errors = handle->errors;
  struct alltoallv_error *e = has_error(&errors->timeout) ? &errors->timeout : &errors->counts;
  const ncclResult_t found = has_error(e) ? describe(e) : ncclSuccess;
  if (result != NULL) *result = found;
  if (source != NULL) *source = found != ncclSuccess ? e->source : -1;
  if (destination != NULL) *destination = found != ncclSuccess ? e->destination : -1;
  if (found != ncclSuccess && found != ncclRemoteError) /* a timeout stays */
    __atomic_store_n(&e->kind, ALLTOALLV_ERROR_NONE, __ATOMIC_RELEASE);
  return ncclSuccess;
}

/* ---- agreeing ----------------------------------------------------------------------------- */

ncclResult_t alltoallv_agree(struct alltoallv_handle *h, size_t words)
{
  uint64_t *mine = h->words + (size_t)h->rank * words;
  ALLTOALLV_TRY(alltoallv_check_timeout(h)); /* NCCL would wait for the late rank without end */
  memmove(mine, h->words, words * sizeof(*mine));
  ALLTOALLV_NCCLTRY(
      ncclAllGather(mine, h->words, words * sizeof(*mine), ncclUint8, h->comm, h->words_stream));
  ALLTOALLV_CUDATRY(cudaStreamSynchronize(h->words_stream));
  return ncclSuccess;
}

/* Collective. Every rank gives its result so far and a text about itself; afterwards h->words has
 * the answers of all. The first failure becomes that of all ranks, with its reason. `same`: texts
 * must not differ. */
static ncclResult_t agree_on(struct alltoallv_handle *h, ncclResult_t result, const char *what,
                             const char *text, bool same)
{
  struct alltoallv_answer *all = (struct alltoallv_answer *)h->words;
  *all = (struct alltoallv_answer){.result = (uint64_t)result,
                                   .max_blocks = (uint64_t)h->config.max_blocks,
                                   .method = (uint64_t)h->config.method};
  snprintf(all->text, sizeof(all->text), "%s", result == ncclSuccess ? text : last_error);
  ALLTOALLV_TRY(alltoallv_agree(h, sizeof(*all) / sizeof(uint64_t)));
  for (int r = 0; r < h->n; r++) {
    if (all[r].result != ncclSuccess)
      return alltoallv_fail((ncclResult_t)all[r].result, "rank %d cannot %s: %s", r, what,
                            all[r].text);
    if (same && strcmp(all[r].text, all[0].text) != 0)
      return alltoallv_fail(ncclInvalidArgument, "ranks 0 and %d cannot %s: %s, but %s", r, what,
                            all[0].text, all[r].text);
  }
  return ncclSuccess;
}

/* ---- making a handle ---------------------------------------------------------------------- */

/* What is this rank's own; `gpu` becomes the PCI id of its GPU. */
static ncclResult_t find_device(struct alltoallv_handle *h, int *device, char *gpu)
{
  alltoallv_config_t *c = &h->config;
  if (c->method < ALLTOALLV_AUTO || c->method > ALLTOALLV_LSA || !(c->timeout_seconds <= 1e9) ||
      c->max_blocks < 0 || c->max_blocks == 1)
    return alltoallv_fail(ncclInvalidArgument,
                          "config.method %d, timeout_seconds %g, max_blocks %d; allowed: 0 to 2, "
                          "up to 1e9, 0 or at least 2",
                          (int)c->method, c->timeout_seconds, c->max_blocks);
  if (c->timeout_seconds == 0) c->timeout_seconds = 60;
  ALLTOALLV_CUDATRY(cudaEventCreateWithFlags(&h->last_done, cudaEventDisableTiming));
  ALLTOALLV_NCCLTRY(ncclCommCuDevice(h->comm, device));
  ALLTOALLV_CUDATRY(cudaDeviceGetPCIBusId(gpu, ALLTOALLV_TEXT, *device));
  return ncclSuccess;
}

/* Can the kernel run? why_not becomes "", or the reason of the first rank that has one. h->words:
 * the answers of all ranks with their GPUs. */
static ncclResult_t agree_on_path(struct alltoallv_handle *h, int device, char *why_not)
{
  const struct alltoallv_answer *all = (const struct alltoallv_answer *)h->words;
  alltoallv_config_t *c = &h->config;
  int blocks = 0;
  const char *mine = "as requested";
  if (c->method != ALLTOALLV_SENDRECV) mine = alltoallv_lsa_why_not(h, device, all, &blocks);
  if (c->max_blocks == 0 || c->max_blocks > blocks) c->max_blocks = blocks;
  ALLTOALLV_TRY(agree_on(h, ncclSuccess, "choose the path", mine, false));
  why_not[0] = '\0';
  for (int r = h->n - 1; r >= 0; r--) {
    if (all[r].method != all[0].method)
      return alltoallv_fail(ncclInvalidArgument,
                            "ranks 0 and %d pass different values of config.method", r);
    if (all[r].text[0] != '\0') strcpy(why_not, all[r].text);
    if (all[r].max_blocks < (uint64_t)c->max_blocks) c->max_blocks = (int)all[r].max_blocks;
  }
  return ncclSuccess;
}

/* Collective: memory of this rank becomes a window. */
static ncclResult_t open_window(struct alltoallv_handle *h, struct alltoallv_window *w)
{
  ALLTOALLV_NCCLTRY(
      ncclCommWindowRegister(h->lsa_comm, w->base, w->bytes, &w->window, NCCL_WIN_COLL_SYMMETRIC));
  if (w->window == NULL)
    return alltoallv_fail(ncclInvalidUsage, "NCCL did not create a window for the buffer");
  return alltoallv_lsa_peers(h, w);
}

static ncclResult_t close_window(struct alltoallv_handle *h, struct alltoallv_window *w)
{
  const ncclWindow_t window = w->window;
  memset(w, 0, sizeof(*w));
  return window != NULL ? ncclCommWindowDeregister(h->lsa_comm, window) : ncclSuccess;
}

/* Where there is symmetric memory: the scratch memory, which the peers write, and after it this
 * rank's own state. */
static ncclResult_t make_scratch(struct alltoallv_handle *h)
{
  struct alltoallv_window *w = &h->scratch;
  struct alltoallv_state first = {0};
  const size_t mailboxes = 3 * (size_t)h->n * alltoallv_mailbox_bytes(h->ll_bytes);
  for (int b = 0; b < ALLTOALLV_MAX_BLOCKS; b++) first.block[b].epoch = ALLTOALLV_FIRST_EPOCH - 1;
  ALLTOALLV_TRY(alltoallv_lsa_probe(h));
  w->bytes = mailboxes + sizeof(first);
  ALLTOALLV_NCCLTRY(ncclMemAlloc((void **)&w->base, w->bytes));
  h->state = (struct alltoallv_state *)(w->base + mailboxes);
  ALLTOALLV_CUDATRY(cudaMemset(w->base, 0, mailboxes));
  ALLTOALLV_CUDATRY(cudaMemcpy(h->state, &first, sizeof(first), cudaMemcpyHostToDevice));
  ALLTOALLV_CUDATRY(cudaDeviceSynchronize()); /* before a peer can reach it */
  return ncclSuccess;
}

/* Frees the kernel's side. */
static ncclResult_t free_lsa(struct alltoallv_handle *h)
{
  char *scratch = h->scratch.base;
  h->state = NULL;
  ALLTOALLV_NCCLTRY(close_window(h, &h->scratch));
  if (scratch != NULL) ALLTOALLV_NCCLTRY(ncclMemFree(scratch));
  if (h->lsa_comm != NULL) ALLTOALLV_NCCLTRY(ncclCommDestroy(h->lsa_comm));
  h->lsa_comm = NULL;
  return ncclSuccess;
}

/* Sets h->state. Returns ncclInvalidUsage on all ranks if there is no symmetric memory on one.
 *
 * With a communicator of our own: NCCL's send/recv goes wrong (wrong data, then a hang; seen with
 * 2.28.9) when the receive buffer is registered with its communicator and the send buffer is not.
 * So what we register must not be seen by the caller's send/recv. */
static ncclResult_t make_lsa(struct alltoallv_handle *h)
{
  ALLTOALLV_NCCLTRY(ncclCommSplit(h->comm, 0, h->rank, &h->lsa_comm, NULL));
  ALLTOALLV_TRY(agree_on(h, make_scratch(h), "set up the kernel", "", false));
  return agree_on(h, open_window(h, &h->scratch), "share memory", "", false);
}

/* The others have to hear of a failure on this rank, or they would wait for it. Telling them uses
 * h->words, so these are allocated first. */
static ncclResult_t make_handle(struct alltoallv_handle *h)
{
  char text[ALLTOALLV_TEXT] = ""; /* this rank's GPU; then why the kernel cannot run */
  int device = 0;
  ALLTOALLV_NCCLTRY(ncclCommUserRank(h->comm, &h->rank));
  ALLTOALLV_NCCLTRY(ncclCommCount(h->comm, &h->n));
  h->ll_bytes = alltoallv_lsa_lines(h->n);
  const size_t n = (size_t)h->n;
  const size_t bytes =
      sizeof(*h->errors) + n * sizeof(*h->pairs) + (n + 1) * (n + 67) * sizeof(*h->words);
  ALLTOALLV_CUDATRY(
      cudaHostAlloc((void **)&h->errors, bytes, cudaHostAllocMapped | cudaHostAllocPortable));
  memset(h->errors, 0, bytes);
  h->pairs = (struct alltoallv_pair *)(h->errors + 1);
  h->words = (uint64_t *)(h->pairs + n);
  ALLTOALLV_CUDATRY(cudaStreamCreateWithFlags(&h->words_stream, cudaStreamNonBlocking));
  ALLTOALLV_TRY(agree_on(h, find_device(h, &device, text), "make a handle", text, false));
  ALLTOALLV_TRY(agree_on_path(h, device, text));

  if (text[0] == '\0') {
    const ncclResult_t result = make_lsa(h);
    snprintf(h->why, sizeof(h->why), "one-sided kernel among %d ranks", h->n);
    /* Without symmetric memory there is another way; a failure is a failure. */
    if (result != ncclInvalidUsage) return result;
    strcpy(text, "the communicator has no symmetric memory");
    (void)free_lsa(h);
  }
  snprintf(h->why, sizeof(h->why), "send/recv: %s", text);
  if (h->config.method != ALLTOALLV_LSA) return ncclSuccess;
  return alltoallv_fail(ncclInvalidUsage, "the kernel cannot be used: %s", text);
}

/* After a timeout a late peer may still write into our scratch memory: it stays. */
static ncclResult_t free_handle(struct alltoallv_handle *h)
{
  const ncclResult_t result = has_timed_out(h) ? ncclSuccess : free_lsa(h);
  if (h->last_done != NULL) (void)cudaEventDestroy(h->last_done);
  if (h->words_stream != NULL) (void)cudaStreamDestroy(h->words_stream);
  (void)cudaFreeHost(h->errors);
  free(h);
  return result;
}

ncclResult_t alltoallv_create(ncclComm_t comm, const alltoallv_config_t *config,
                              alltoallv_t *handle)
{
  if (comm == NULL || handle == NULL) return alltoallv_fail(ncclInvalidArgument, "NULL argument");
  *handle = NULL;
  struct alltoallv_handle *h = calloc(1, sizeof(*h));
  if (h == NULL) return alltoallv_fail(ncclSystemError, "out of memory");
  h->comm = comm;
  if (config != NULL) h->config = *config;
  const ncclResult_t result = make_handle(h);
  if (result == ncclSuccess)
    *handle = h;
  else
    (void)free_handle(h);
  return result;
}

ncclResult_t alltoallv_destroy(alltoallv_t handle)
{
  if (handle == NULL) return alltoallv_fail(ncclInvalidArgument, "NULL handle");
  /* of any stream, launches of graphs included; freeing memory waits for the device anyway */
  const cudaError_t last = cudaDeviceSynchronize();
  const ncclResult_t result = free_handle(handle);
  ALLTOALLV_CHECK(cudaError_t, last, "the last exchange", ncclUnhandledCudaError,
                  cudaGetErrorString(code));
  return result;
}

ncclResult_t alltoallv_info(alltoallv_t handle, int *ranks, const char **why)
{
  if (handle == NULL) return alltoallv_fail(ncclInvalidArgument, "NULL handle");
  if (ranks != NULL) *ranks = handle->state != NULL ? handle->n : 0;
  if (why != NULL) *why = handle->why;
  return ncclSuccess;
}

/* ---- receive buffers that the peers can write --------------------------------------------- */

ncclResult_t alltoallv_register(alltoallv_t handle, void *buff, size_t bytes)
{
  static const char what[] = "register the buffer";
  if (handle == NULL) return alltoallv_fail(ncclInvalidArgument, "NULL handle");
  ncclResult_t result = ncclSuccess;
  char text[ALLTOALLV_TEXT];
  int id = 0;
  while (id < ALLTOALLV_MAX_WINDOWS && handle->windows[id].base != NULL) id++;
  if (buff == NULL || bytes == 0 || (uintptr_t)buff % 4096 != 0)
    result = alltoallv_fail(ncclInvalidArgument,
                            "%zu bytes at %p; allowed: at least 1, aligned to 4096", bytes, buff);
  else if (alltoallv_find_window(handle, buff, bytes) != NULL)
    result = alltoallv_fail(ncclInvalidUsage, "a part of it is registered already");
  else if (id == ALLTOALLV_MAX_WINDOWS)
    result = alltoallv_fail(ncclInvalidUsage, "one more; allowed: %d", ALLTOALLV_MAX_WINDOWS);
  /* NCCL would hang or misbehave if ranks disagreed, so ask first. */
  snprintf(text, sizeof(text), "%zu bytes as number %d", bytes, id);
  ALLTOALLV_TRY(agree_on(handle, result, what, text, true));

  struct alltoallv_window *w = &handle->windows[id];
  w->base = buff, w->bytes = bytes;
  if (handle->state == NULL) return ncclSuccess;
  result = open_window(handle, w);
  snprintf(text, sizeof(text), "NCCL maps it to %#llx", (unsigned long long)w->place);
  result = agree_on(handle, result, what, text, true);
  if (result != ncclSuccess) w->base = NULL, w->bytes = 0;
  return result;
}

struct alltoallv_window *alltoallv_find_window(alltoallv_t handle, const void *buff, size_t bytes)
{
  const char *begin = buff;
  for (int id = 0; id < ALLTOALLV_MAX_WINDOWS; id++) {
    struct alltoallv_window *w = &handle->windows[id]; /* a free one has no bytes */
    if (begin < w->base + w->bytes && w->base < begin + bytes) return w;
  }
  return NULL;
}

/* Sets *window to the one that begins there. */
static ncclResult_t registered(alltoallv_t handle, const void *buff,
                               struct alltoallv_window **window)
{
  if (handle == NULL) return alltoallv_fail(ncclInvalidArgument, "NULL handle");
  *window = alltoallv_find_window(handle, buff, 1);
  if (*window == NULL || (*window)->base != buff)
    return alltoallv_fail(ncclInvalidArgument, "the buffer is not registered");
  return ncclSuccess;
}

ncclResult_t alltoallv_peer(alltoallv_t handle, const void *buff, int peer, void **address)
{
  struct alltoallv_window *w;
  ALLTOALLV_TRY(registered(handle, buff, &w));
  if (address == NULL || peer < 0 || peer >= handle->n)
    return alltoallv_fail(ncclInvalidArgument, "NULL address, or rank %d; allowed: 0 to %d", peer,
                          handle->n - 1);
  *address = handle->state != NULL ? w->peers[peer] : NULL;
  return ncclSuccess;
}

ncclResult_t alltoallv_unregister(alltoallv_t handle, void *buff)
{
  struct alltoallv_window *w;
  ALLTOALLV_TRY(registered(handle, buff, &w));
  /* When my exchanges are over, all that peers store here has arrived. */
  ALLTOALLV_CUDATRY(cudaDeviceSynchronize());
  ALLTOALLV_TRY(alltoallv_check_timeout(handle));
  ALLTOALLV_NCCLTRY(close_window(handle, w));
  return ncclSuccess;
}
