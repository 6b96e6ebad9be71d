/* SPDX-License-Identifier: Apache-2.0 */
/* The host code of the direct AllReduce: the method of a call, handles and what the ranks agree on,
 * windows, calls, errors. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "allreduce_internal.h"

/* ---- errors ---------------------------------------------------------------------------------- */

static _Thread_local char last_error[512];

const char *allreduce_last_error(void)
{
  return last_error;
}

ncclResult_t allreduce_fail(ncclResult_t result, const char *format, ...)
{
  va_list args;
  va_start(args, format);
  vsnprintf(last_error, sizeof(last_error), format, args);
  va_end(args);
  for (char *c = last_error; *c != '\0'; c++) /* NCCL's text may have several lines */
    if (*c == '\n') *c = ' ';
  return result;
}

const char *allreduce_nccl_reason(ncclResult_t result)
{
  const char *said = ncclGetLastError(NULL);
  return said != NULL && *said != '\0' ? said : ncclGetErrorString(result);
}

/* ---- the method ------------------------------------------------------------------------------ */

/* One thread for each piece of work. Blocks are as small as `blocks` of them allow (128 to 512
 * threads), and there are at most as many as the limit. */
static struct allreduce_launch launch(enum allreduce_method method, size_t pieces, size_t blocks,
                                      struct allreduce_limits limits)
{
  size_t threads = 128;
  while (threads < 512 && pieces > threads * blocks) threads *= 2;
  const size_t enough = (pieces + threads - 1) / threads;
  return (struct allreduce_launch){method, (int)allreduce_least(enough, limits.blocks[method]),
                                   (int)threads, 0};
}

/* At least 2 KiB of each slice for a block. The scratch memory has two slots of each pair of ranks
 * for each block, of 16 KiB at least, if need be for fewer blocks: each chunk costs two flags. */
static struct allreduce_launch launch_push(size_t bytes, size_t n, struct allreduce_limits limits)
{
  const size_t of_pair = limits.slots / (n - 1) / ALLREDUCE_SLOTS;
  size_t blocks = allreduce_least(bytes / n / 2048 + 1, limits.blocks[ALLREDUCE_PUSH]);
  if (blocks > of_pair / 16384) blocks = of_pair < 16384 ? 1 : of_pair / 16384;
  return (struct allreduce_launch){ALLREDUCE_PUSH, (int)blocks, 512, of_pair / blocks / 128 * 128};
}

struct allreduce_launch allreduce_choose(size_t bytes, int n, struct allreduce_limits limits)
{
  const size_t ranks = (size_t)n;
  if (bytes <= limits.ll) return launch(ALLREDUCE_LL, (bytes + 7) / 8, 64, limits);
  if (bytes <= allreduce_onehop_bytes(limits.onehop, n))
    return launch(ALLREDUCE_ONEHOP, (bytes + ALLREDUCE_LINE - 1) / ALLREDUCE_LINE, 132, limits);
  if (bytes > limits.twohop) return launch_push(bytes, ranks, limits);
  return launch(ALLREDUCE_TWOHOP, allreduce_slice_lines(bytes, n) * (ranks - 1),
                limits.blocks[ALLREDUCE_TWOHOP], limits);
}

/* ---- handles: what the ranks agree on -------------------------------------------------------- */

static void lower(size_t *limit, size_t to)
{
  *limit = allreduce_least(*limit, to);
}

/* Lowers a limit to the user's value: 0 keeps it, < 0 makes it 0. */
static void lower_to_wanted(size_t *limit, long wanted)
{
  if (wanted != 0) lower(limit, wanted < 0 ? 0 : (size_t)wanted);
}

static struct allreduce_limits wanted_limits(const allreduce_config_t *config, int n)
{
  struct allreduce_limits limits = {.ll = ALLREDUCE_LL_BYTES,
                                    .onehop = ALLREDUCE_ONEHOP_BYTES,
                                    .twohop = ALLREDUCE_TWOHOP_BYTES,
                                    .slots = ALLREDUCE_SLOT_BYTES};
  const size_t least = (size_t)n * ALLREDUCE_SLOTS * 128;
  for (int m = 0; m < ALLREDUCE_METHODS; m++) {
    limits.blocks[m] = ALLREDUCE_MAX_BLOCKS;
    if (config->max_blocks > 0) lower(&limits.blocks[m], (size_t)config->max_blocks);
  }
  lower_to_wanted(&limits.ll, config->ll_bytes);
  lower_to_wanted(&limits.onehop, config->onehop_bytes);
  lower_to_wanted(&limits.twohop, config->twohop_bytes);
  if (config->scratch_bytes != 0) limits.slots = config->scratch_bytes;
  if (limits.slots < least) limits.slots = least;
  return limits;
}

/* Collective, by NCCL, because the handle does not work yet. `mine` becomes what all agree on. */
static ncclResult_t agree(const struct allreduce_handle *h, struct allreduce_offer *mine)
{
  struct allreduce_offer *all = h->offers;
  all[h->rank] = *mine;
  ALLREDUCE_NCCLTRY(ncclAllGather(&all[h->rank], all, sizeof(*mine), ncclInt8, h->comm, NULL));
  ALLREDUCE_CUDATRY(cudaDeviceSynchronize()); /* NULL may be another stream to NCCL than here */
  for (int p = 0; p < h->n; p++) {
    if (all[p].can < mine->can) mine->can = all[p].can;
    for (size_t i = 0; i < sizeof(mine->limits) / sizeof(size_t); i++)
      lower((size_t *)&mine->limits + i, ((const size_t *)&all[p].limits)[i]);
  }
  return ncclSuccess;
}

/* Finds the GPU of this rank. */
static ncclResult_t introduce(struct allreduce_handle *h, struct allreduce_offer *mine)
{
  ALLREDUCE_NCCLTRY(ncclCommCuDevice(h->comm, &h->device));
  ALLREDUCE_CUDATRY(cudaDeviceGetPCIBusId(mine->gpu, sizeof(mine->gpu), h->device));
  return ncclSuccess;
}

static size_t scratch_bytes(const struct allreduce_handle *h)
{
  return allreduce_lines_of(h->n, ALLREDUCE_PUSH).at + h->limits.slots;
}

/* Allocates scratch memory, whose flags and lines are 0, and the state. Local. */
static ncclResult_t make_memory(struct allreduce_handle *h, uint64_t calls_before)
{
  struct allreduce_state first = {0};
  for (int b = 0; b < ALLREDUCE_MAX_BLOCKS; b++) first.block[b].epoch = calls_before;
  ALLREDUCE_CUDATRY(cudaMalloc((void **)&h->table, (size_t)h->n * sizeof(*h->table)));
  ALLREDUCE_CUDATRY(cudaMalloc((void **)&h->state, sizeof(first)));
  ALLREDUCE_CUDATRY(cudaMemcpy(h->state, &first, sizeof(first), cudaMemcpyHostToDevice));
  ALLREDUCE_CUDATRY(cudaHostAlloc((void **)&h->error, sizeof(*h->error),
                                  cudaHostAllocMapped | cudaHostAllocPortable));
  memset(h->error, 0, sizeof(*h->error));
  ALLREDUCE_NCCLTRY(ncclMemAlloc((void **)&h->scratch, scratch_bytes(h)));
  ALLREDUCE_CUDATRY(cudaMemset(h->scratch, 0, scratch_bytes(h) - h->limits.slots));
  ALLREDUCE_CUDATRY(cudaDeviceSynchronize()); /* before a peer can reach it */
  return ncclSuccess;
}

/* Collective: the scratch memory becomes a window. */
static ncclResult_t connect(struct allreduce_handle *h)
{
  ALLREDUCE_TRY(allreduce_device_probe(h->comm));
  ALLREDUCE_NCCLTRY(ncclCommWindowRegister(h->comm, h->scratch, scratch_bytes(h), &h->window,
                                           NCCL_WIN_COLL_SYMMETRIC));
  if (h->window == NULL) return allreduce_fail(ncclInvalidUsage, "NCCL made no window");
  return allreduce_device_peers(h, h->window, h->peers);
}

/* Every rank makes all collective calls of this function, even after an error: the error is kept
 * until all ranks know it. */
static ncclResult_t create(struct allreduce_handle *h, const allreduce_config_t *config)
{
  struct allreduce_offer mine = {.limits = wanted_limits(config, h->n)};
  const char *why = "";
  /* If a rank does not get this memory, the others wait for it, as for a rank that never calls. */
  ALLREDUCE_CUDATRY(cudaHostAlloc((void **)&h->offers, (size_t)h->n * sizeof(*h->offers),
                                  cudaHostAllocPortable | cudaHostAllocMapped));
  ncclResult_t failed = introduce(h, &mine);
  ALLREDUCE_TRY(agree(h, &mine));
  h->limits = mine.limits;
  if (failed == ncclSuccess) failed = allreduce_device_ask(h, &mine.limits, &why);
  if (failed == ncclSuccess && *why == '\0') failed = make_memory(h, config->calls_before);
  if (config->no_early_launch) h->overlaps = false;
  mine.can = failed != ncclSuccess ? ALLREDUCE_FAILED
             : *why != '\0'        ? ALLREDUCE_CANNOT
                                   : ALLREDUCE_CAN;
  ALLREDUCE_TRY(agree(h, &mine));
  if (failed != ncclSuccess) return failed; /* the message is set */
  if (mine.can == ALLREDUCE_FAILED)
    return allreduce_fail(ncclRemoteError, "a call has failed on another rank");
  if (mine.can == ALLREDUCE_CANNOT)
    return allreduce_fail(ncclInvalidUsage, "%s",
                          *why != '\0' ? why : "it is not possible on another rank");
  h->limits = mine.limits;
  return connect(h);
}

ncclResult_t allreduce_create(ncclComm_t comm, const allreduce_config_t *config,
                              allreduce_t *handle)
{
  static const allreduce_config_t defaults = {0};
  ncclResult_t result = ncclSuccess;
  int rank = 0, n = 0;
  if (handle == NULL) return allreduce_fail(ncclInvalidArgument, "handle is NULL");
  *handle = NULL;
  if (comm == NULL) return allreduce_fail(ncclInvalidArgument, "comm is NULL");
  ALLREDUCE_NCCLTRY(ncclCommUserRank(comm, &rank));
  ALLREDUCE_NCCLTRY(ncclCommCount(comm, &n));
  if (n > ALLREDUCE_MAX_RANKS)
    return allreduce_fail(ncclInvalidUsage, "more than %d ranks", ALLREDUCE_MAX_RANKS);
  if (config == NULL) config = &defaults;
  if (!(config->timeout_seconds <= 1e9))
    return allreduce_fail(ncclInvalidArgument, "timeout_seconds is above 1e9");
  struct allreduce_handle *h = calloc(1, sizeof(*h));
  if (h == NULL) return allreduce_fail(ncclSystemError, "out of memory");
  *h = (struct allreduce_handle){.comm = comm, .rank = rank, .n = n, .timeout = ALLREDUCE_TIMEOUT};
  if (config->timeout_seconds != 0) h->timeout = config->timeout_seconds;
  if (h->timeout < 0) h->timeout = 0;
  if (n > 1) result = create(h, config);
  if (result != ncclSuccess)
    allreduce_destroy(h);
  else
    *handle = h;
  return result;
}

/* A slower peer may still store a flag, which no rank reads. It stores through its own mapping,
 * which keeps the memory until that peer has deregistered its window as well. So no barrier is
 * needed, and a peer that never comes does not block this call. */
ncclResult_t allreduce_destroy(allreduce_t h)
{
  if (h == NULL) return ncclSuccess;
  const cudaError_t waited = cudaDeviceSynchronize(); /* for calls that still run */
  ncclResult_t window = ncclSuccess, memory = ncclSuccess;
  if (h->window != NULL) window = ncclCommWindowDeregister(h->comm, h->window);
  if (h->scratch != NULL) memory = ncclMemFree(h->scratch);
  const cudaError_t errors[] = {waited, cudaFree(h->table), cudaFree(h->state),
                                cudaFreeHost(h->error), cudaFreeHost(h->offers)};
  free(h);
  for (int i = 0; i < 5; i++) ALLREDUCE_CUDATRY(errors[i]);
  ALLREDUCE_NCCLTRY(window);
  ALLREDUCE_NCCLTRY(memory);
  return ncclSuccess;
}

/* ---- windows --------------------------------------------------------------------------------- */

ncclResult_t allreduce_add_window(allreduce_t handle, ncclWindow_t window, void *buff, size_t bytes)
{
  if (handle == NULL || window == NULL)
    return allreduce_fail(ncclInvalidArgument, "%s is NULL", handle == NULL ? "handle" : "window");
  if (handle->windows == ALLREDUCE_MAX_WINDOWS)
    return allreduce_fail(ncclInvalidUsage, "more than %d windows", ALLREDUCE_MAX_WINDOWS);
  struct allreduce_window *w = &handle->window_of[handle->windows];
  *w = (struct allreduce_window){.window = window, .base = buff, .bytes = bytes};
  if (handle->n > 1) ALLREDUCE_TRY(allreduce_device_peers(handle, window, w->peers));
  handle->windows++;
  return ncclSuccess;
}

ncclResult_t allreduce_forget_window(allreduce_t handle, ncclWindow_t window)
{
  if (handle == NULL) return allreduce_fail(ncclInvalidArgument, "handle is NULL");
  for (int i = 0; i < handle->windows; i++)
    if (handle->window_of[i].window == window) {
      handle->window_of[i] = handle->window_of[--handle->windows];
      return ncclSuccess;
    }
  return allreduce_fail(ncclInvalidArgument, "the handle does not have this window");
}

/* ---- calls ----------------------------------------------------------------------------------- */

size_t allreduce_size_of(ncclDataType_t type)
{
#define SIZE_OF(type, sum, element) [type] = sizeof(element),
  static const unsigned char sizes[ncclNumTypes] = {ALLREDUCE_TYPES(SIZE_OF)};
  return (unsigned)type < ncclNumTypes ? sizes[type] : 0;
}

int allreduce_has_type(ncclDataType_t type)
{
  return allreduce_size_of(type) != 0;
}

/* The window that contains the bytes, or NULL. */
static const struct allreduce_window *window_of(const struct allreduce_handle *h, const char *at,
                                                size_t bytes)
{
  for (int i = 0; i < h->windows; i++) {
    const struct allreduce_window *w = &h->window_of[i];
    if (at >= w->base && bytes <= w->bytes && (size_t)(at - w->base) <= w->bytes - bytes) return w;
  }
  return NULL;
}

ncclResult_t allreduce_run(allreduce_t handle, const void *sendbuff, void *recvbuff, size_t count,
                           ncclDataType_t type, cudaStream_t stream)
{
  const size_t size = allreduce_size_of(type);
  const char *send = sendbuff;
  char *recv = recvbuff;
  if (handle == NULL) return allreduce_fail(ncclInvalidArgument, "handle is NULL");
  if (size == 0) return allreduce_fail(ncclInvalidArgument, "type %d cannot be summed", (int)type);
  if (count == 0) return ncclSuccess;
  if (count > SIZE_MAX / 2 / size) return allreduce_fail(ncclInvalidArgument, "too many elements");
  if (send == NULL) return allreduce_fail(ncclInvalidArgument, "the send buffer is NULL");
  const size_t bytes = count * size;
  const struct allreduce_window *to = window_of(handle, recv, bytes);
  if (to == NULL)
    return allreduce_fail(ncclInvalidArgument, "the receive buffer is in no window of the handle");
  if ((uintptr_t)send % size != 0 || (uintptr_t)recv % size != 0)
    return allreduce_fail(ncclInvalidArgument, "the %s buffer is not aligned to an element",
                          (uintptr_t)send % size != 0 ? "send" : "receive");
  if (send != recv && send < recv + bytes && recv < send + bytes)
    return allreduce_fail(ncclInvalidArgument, "the buffers overlap, but are not the same");
  if (handle->n == 1) {
    if (send != recv)
      ALLREDUCE_CUDATRY(cudaMemcpyAsync(recv, send, bytes, cudaMemcpyDeviceToDevice, stream));
    return ncclSuccess;
  }
  const size_t place = (size_t)(recv - to->base);
  struct allreduce_call call = {
      .launch = allreduce_choose(bytes, handle->n, handle->limits),
      .type = type,
      .count = count,
      .whole = ((uintptr_t)send | (uintptr_t)recv | bytes) % ALLREDUCE_LINE == 0,
      .send = send,
  };
  const bool push = call.launch.method == ALLREDUCE_PUSH;
  call.check = allreduce_check(count, (int)type, push ? place : 0);
  if (push)
    call.push = allreduce_chunks_of(recv, bytes, handle->n, call.launch.blocks, call.launch.slot);
  for (int p = 0; p < handle->n; p++) call.recv[p] = to->peers[p] + place;
  call.recv[handle->rank] = recv; /* is faster than the address of the window */
  return handle->launch(handle, &call, stream);
}

ncclResult_t allreduce_get_async_error(allreduce_t handle, ncclResult_t *result)
{
  if (handle == NULL || result == NULL)
    return allreduce_fail(ncclInvalidArgument, "an argument is NULL");
  *result = ncclSuccess;
  if (handle->n == 1) return ncclSuccess;
  const struct allreduce_error *e = handle->error;
  const int kind = __atomic_load_n(&e->kind, __ATOMIC_ACQUIRE);
  if (kind == ALLREDUCE_ERROR_COUNT)
    *result =
        allreduce_fail(ncclInvalidArgument,
                       "rank %d has called with another count, type or receive offset", e->peer);
  else if (kind == ALLREDUCE_ERROR_TIMEOUT)
    *result = allreduce_fail(ncclRemoteError, "rank %d timed out waiting for rank %d", handle->rank,
                             e->peer);
  return ncclSuccess;
}
