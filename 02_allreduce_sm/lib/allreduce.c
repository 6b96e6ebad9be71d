/* SPDX-License-Identifier: Apache-2.0 */
/* The host code of the direct AllReduce: which method a call takes, handles and what the ranks
 * agree on for them, windows, calls, errors. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* ---- errors ---------------------------------------------------------------------------------- */

static _Thread_local char last_error[512];

const char *allreduce_last_error(void)
{
  return last_error;
}

ncclResult_t allreduce_fail(ncclResult_t result, const char *format, ...)
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

const char *allreduce_nccl_reason(ncclResult_t result)
{
  const char *said = ncclGetLastError(NULL);
  return said != NULL && *said != '\0' ? said : ncclGetErrorString(result);
}

/* ---- the method ------------------------------------------------------------------------------ */

#define MIB ((size_t)1 << 20)

static size_t least(size_t a, size_t b)
{
  return a < b ? a : b;
}

/* As many threads as there are pieces of work, in blocks as small as `blocks` of them allow; but
 * not more blocks than the limit. */
static struct allreduce_launch launch(enum allreduce_method method, size_t pieces, size_t blocks,
                                      struct allreduce_limits limits)
{
  size_t threads = 128;
  while (threads < 512 && pieces > threads * blocks) threads *= 2;
  const size_t enough = (pieces + threads - 1) / threads;
  return (struct allreduce_launch){method, (int)least(enough, limits.blocks[method]), (int)threads};
}

/* Up to how many bytes that a rank sends a one-shot method is faster than two-shot. On 2 x H200
 * two-shot takes 2.4 us longer to begin with, and 3 us for each MiB that a rank moves, which is
 * 2 (n - 1) / n of the vector; one-shot moves n - 1 times the vector, at 3.5 us for each MiB in
 * LL128 lines and 6.8 in LL lines (here in hundredths). That was measured with 2 ranks, where it
 * means 4.8 MiB and more than lines have room for; for more ranks it is only calculated. */
static size_t one_shot_pays(size_t n, size_t hundredths)
{
  return MIB * 240 * n / (hundredths * n - 600);
}

struct allreduce_launch allreduce_choose(size_t bytes, int n, struct allreduce_limits limits)
{
  const size_t ranks = (size_t)n, sent = bytes * (ranks - 1), words = (bytes + 7) / 8;
  if (sent <= least(limits.ll, one_shot_pays(ranks, 680)))
    return launch(ALLREDUCE_LL, words, 64, limits);
  if (sent <= least(limits.ll128, one_shot_pays(ranks, 350)))
    return launch(ALLREDUCE_LL128, (words + 14) / 15 * 8, 140, limits);
  const size_t blocks = bytes / ranks / 32768 + 1; /* one for each 32 KiB of a slice */
  return (struct allreduce_launch){ALLREDUCE_TWOSHOT,
                                   (int)least(blocks, limits.blocks[ALLREDUCE_TWOSHOT]), 512};
}

/* ---- handles: what the ranks agree on -------------------------------------------------------- */

enum { LL_BEFORE_LL128 = 128 << 10 };

/* Of each limit the lowest counts. */
struct agreement {
  enum { FAILED, CANNOT, CAN } can; /* FAILED: a call has, on this rank */
  int architecture;                 /* compute capability, times 10 */
  struct allreduce_limits limits;
};

/* What the ranks send each other, one thing after the other. */
union exchanged {
  char ids[ALLREDUCE_MAX_RANKS][ALLREDUCE_ID];
  struct agreement agreements[ALLREDUCE_MAX_RANKS];
};

/* Collective, with whatever NCCL has, because nothing of ours works yet. `all` is of all ranks. It
 * is pinned host memory, which NCCL's kernels reach as well: a GPU that is full cannot keep its
 * rank from telling the others. */
static ncclResult_t exchange(const struct allreduce_handle *h, const void *mine, size_t bytes,
                             void *all)
{
  char *at = (char *)all + (size_t)h->rank * bytes;
  memcpy(at, mine, bytes);
  ALLREDUCE_NCCLTRY(ncclAllGather(at, all, bytes, ncclInt8, h->comm, NULL));
  ALLREDUCE_CUDATRY(cudaStreamSynchronize(NULL));
  return ncclSuccess;
}

static void lower(size_t *limit, size_t to)
{
  *limit = least(*limit, to);
}

/* Lowers a limit to what the user wants: 0 nothing, < 0 none. */
static void lower_to_wanted(size_t *limit, long wanted)
{
  if (wanted != 0) lower(limit, wanted < 0 ? 0 : (size_t)wanted);
}

/* Collective: the lowest of every limit, the same on all ranks. No LL128 lines between GPUs of
 * different architectures: there NCCL does not use its own either. */
static ncclResult_t agree(const struct allreduce_handle *h, struct agreement *mine,
                          struct agreement *all)
{
  ALLREDUCE_TRY(exchange(h, mine, sizeof(*mine), all));
  for (int p = 0; p < h->n; p++) {
    if (all[p].can < mine->can) mine->can = all[p].can;
    if (all[p].architecture != all[0].architecture) mine->limits.ll128 = 0;
    for (int m = 0; m < ALLREDUCE_METHODS; m++)
      lower(&mine->limits.blocks[m], all[p].limits.blocks[m]);
    lower(&mine->limits.ll, all[p].limits.ll);
    lower(&mine->limits.ll128, all[p].limits.ll128);
  }
  return ncclSuccess;
}

/* Which GPU this rank has, for the others. */
static ncclResult_t device_of(ncclComm_t comm, char id[ALLREDUCE_ID], int *architecture)
{
  int device = 0, major = 0, minor = 0;
  ALLREDUCE_NCCLTRY(ncclCommCuDevice(comm, &device));
  ALLREDUCE_CUDATRY(cudaDeviceGetPCIBusId(id, ALLREDUCE_ID, device));
  ALLREDUCE_CUDATRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  ALLREDUCE_CUDATRY(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  *architecture = 10 * major + minor;
  return ncclSuccess;
}

/* All ranks get through all collective calls in it, whatever one of them finds: a call of ours that
 * fails is remembered until all have heard of it. */
static ncclResult_t create(struct allreduce_handle *h, const allreduce_config_t *config,
                           union exchanged *all)
{
  char id[ALLREDUCE_ID] = "";
  struct agreement mine = {CAN, 0, {.ll = ALLREDUCE_LL_BYTES, .ll128 = ALLREDUCE_LL128_BYTES}};
  const double timeout = config->timeout_seconds == 0 ? 30 : config->timeout_seconds;
  ncclResult_t failed = device_of(h->comm, id, &mine.architecture);
  ALLREDUCE_TRY(exchange(h, id, sizeof(id), all->ids));
  const char *why = "";
  if (failed == ncclSuccess)
    why = allreduce_device_why_not(h->comm, h->n, all->ids[0], &mine.limits);
  if (*why != '\0')
    mine.can = CANNOT;
  else if (failed == ncclSuccess)
    failed = allreduce_device_create(h->comm, h->rank, h->n, timeout < 0 ? 0 : timeout,
                                     config->calls_before, &mine.limits, &h->device);
  if (failed != ncclSuccess) mine.can = FAILED;
  for (int m = 0; m < ALLREDUCE_METHODS; m++)
    if (config->max_blocks > 0) lower_to_wanted(&mine.limits.blocks[m], config->max_blocks);
  lower_to_wanted(&mine.limits.ll128, config->ll128_bytes);
  lower_to_wanted(&mine.limits.ll, config->ll_bytes);
  if (config->ll_bytes == 0 && mine.limits.ll128 > 0) /* these are faster above */
    lower(&mine.limits.ll, LL_BEFORE_LL128);
  struct agreement a = mine;
  ALLREDUCE_TRY(agree(h, &a, all->agreements));
  if (failed != ncclSuccess) return failed; /* the message is set */
  if (a.can == FAILED) return allreduce_fail(ncclRemoteError, "a call has failed on another rank");
  if (a.can == CANNOT)
    return allreduce_fail(ncclInvalidUsage, "%s", mine.can == CANNOT ? why : "another rank cannot");
  h->limits = a.limits;
  return allreduce_device_connect(h->device);
}

/* A rank that does not even get the memory to tell the others leaves them waiting, as one that
 * never comes. */
static ncclResult_t create_with_room(struct allreduce_handle *h, const allreduce_config_t *config)
{
  union exchanged *all;
  ALLREDUCE_CUDATRY(
      cudaHostAlloc((void **)&all, sizeof(*all), cudaHostAllocPortable | cudaHostAllocMapped));
  const ncclResult_t result = create(h, config, all);
  const cudaError_t freed = cudaFreeHost(all);
  return result == ncclSuccess && freed != cudaSuccess
             ? allreduce_fail(ncclUnhandledCudaError, "%s", cudaGetErrorString(freed))
             : result;
}

ncclResult_t allreduce_create(ncclComm_t comm, const allreduce_config_t *config,
                              allreduce_t *handle)
{
  static const allreduce_config_t defaults = {0};
  int rank = 0, n = 0;
  if (handle == NULL) return allreduce_fail(ncclInvalidArgument, "NULL where the handle shall go");
  *handle = NULL;
  ALLREDUCE_NCCLTRY(ncclCommUserRank(comm, &rank));
  ALLREDUCE_NCCLTRY(ncclCommCount(comm, &n));
  if (n > ALLREDUCE_MAX_RANKS)
    return allreduce_fail(ncclInvalidUsage, "more than %d ranks", ALLREDUCE_MAX_RANKS);
  struct allreduce_handle *h = calloc(1, sizeof(*h));
  if (h == NULL) return allreduce_fail(ncclSystemError, "out of memory");
  h->comm = comm;
  h->rank = rank;
  h->n = n;
  const ncclResult_t result =
      n == 1 ? ncclSuccess : create_with_room(h, config != NULL ? config : &defaults);
  if (result == ncclSuccess)
    *handle = h;
  else
    allreduce_destroy(h);
  return result;
}

ncclResult_t allreduce_destroy(allreduce_t handle)
{
  ncclResult_t result = ncclSuccess;
  if (handle != NULL && handle->device != NULL) {
    const cudaError_t waited = cudaDeviceSynchronize(); /* for calls that still run */
    result = allreduce_device_destroy(handle->device);
    if (waited != cudaSuccess)
      result = allreduce_fail(ncclUnhandledCudaError, "%s", cudaGetErrorString(waited));
  }
  free(handle);
  return result;
}

/* ---- windows --------------------------------------------------------------------------------- */

ncclResult_t allreduce_add_window(allreduce_t handle, ncclWindow_t window, void *buff, size_t bytes)
{
  if (handle == NULL || window == NULL)
    return allreduce_fail(ncclInvalidArgument, "NULL %s", handle == NULL ? "handle" : "window");
  if (handle->windows == ALLREDUCE_MAX_WINDOWS)
    return allreduce_fail(ncclInvalidUsage, "more than %d windows", ALLREDUCE_MAX_WINDOWS);
  struct allreduce_window *w = &handle->window[handle->windows];
  *w = (struct allreduce_window){.window = window, .base = buff, .bytes = bytes};
  if (handle->device != NULL)
    ALLREDUCE_TRY(allreduce_device_peers(handle->device, window, w->peers));
  handle->windows++;
  return ncclSuccess;
}

ncclResult_t allreduce_forget_window(allreduce_t handle, ncclWindow_t window)
{
  if (handle == NULL) return allreduce_fail(ncclInvalidArgument, "NULL handle");
  for (int i = 0; i < handle->windows; i++)
    if (handle->window[i].window == window) {
      handle->window[i] = handle->window[--handle->windows];
      return ncclSuccess;
    }
  return allreduce_fail(ncclInvalidArgument, "no such window");
}

/* ---- calls ----------------------------------------------------------------------------------- */

size_t allreduce_size_of(ncclDataType_t type)
{
#define SIZE_OF(type, sum, element) \
  case type:                        \
    return sizeof(element);
  switch (type) {
    ALLREDUCE_TYPES(SIZE_OF)
  default:
    return 0;
  }
}

int allreduce_has_type(ncclDataType_t type)
{
  return allreduce_size_of(type) != 0;
}

/* The window in which the bytes lie, or NULL. */
static const struct allreduce_window *window_of(const struct allreduce_handle *h, const char *at,
                                                size_t bytes)
{
  for (int i = 0; i < h->windows; i++) {
    const struct allreduce_window *w = &h->window[i];
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
  if (handle == NULL) return allreduce_fail(ncclInvalidArgument, "NULL handle");
  if (size == 0) return allreduce_fail(ncclInvalidArgument, "no sums of type %d", (int)type);
  if (count == 0) return ncclSuccess;
  if (count > SIZE_MAX / 2 / size) return allreduce_fail(ncclInvalidArgument, "too many elements");
  const size_t bytes = count * size;
  const struct allreduce_window *from = window_of(handle, send, bytes),
                                *to = window_of(handle, recv, bytes);
  if (from == NULL || to == NULL)
    return allreduce_fail(ncclInvalidArgument, "the %s buffer is in no window of the handle",
                          from == NULL ? "send" : "receive");
  if ((uintptr_t)send % size != 0 || (uintptr_t)recv % size != 0)
    return allreduce_fail(ncclInvalidArgument, "the %s buffer is not aligned to an element",
                          (uintptr_t)send % size != 0 ? "send" : "receive");
  if (send != recv && send < recv + bytes && recv < send + bytes)
    return allreduce_fail(ncclInvalidArgument, "the buffers overlap; allowed: in place, or apart");
  if (handle->n == 1) {
    if (send != recv)
      ALLREDUCE_CUDATRY(cudaMemcpyAsync(recv, send, bytes, cudaMemcpyDeviceToDevice, stream));
    return ncclSuccess;
  }
  struct allreduce_call call = {
      .launch = allreduce_choose(bytes, handle->n, handle->limits), .type = type, .count = count};
  uint64_t place = 0;
  if (call.launch.method == ALLREDUCE_TWOSHOT)
    place = allreduce_place((size_t)(send - from->base), (size_t)(recv - to->base), send == recv);
  call.check = allreduce_check(count, (int)type, place);
  call.slice = allreduce_slice_of(send, recv, count, size, handle->rank, handle->n);
  for (int p = 0; p < handle->n; p++) {
    call.send[p] = from->peers[p] + (send - from->base);
    call.recv[p] = to->peers[p] + (recv - to->base);
  }
  /* my own by the addresses I was given, since they are nearer than those of a window */
  call.send[handle->rank] = send;
  call.recv[handle->rank] = recv;
  return allreduce_device_launch(handle->device, &call, stream);
}

ncclResult_t allreduce_get_async_error(allreduce_t handle, ncclResult_t *result)
{
  if (handle == NULL || result == NULL) return allreduce_fail(ncclInvalidArgument, "NULL argument");
  *result = ncclSuccess;
  if (handle->device == NULL) return ncclSuccess;
  const struct allreduce_error *e = allreduce_device_error(handle->device);
  switch (__atomic_load_n(&e->kind, __ATOMIC_ACQUIRE)) {
  case ALLREDUCE_ERROR_NONE:
    break;
  case ALLREDUCE_ERROR_COUNT:
    *result = allreduce_fail(ncclInvalidArgument,
                             "rank %d has called with another count, type or place in the windows",
                             e->peer);
    break;
  default:
    *result = allreduce_fail(ncclRemoteError, "rank %d waited in vain for rank %d", handle->rank,
                             e->peer);
  }
  return ncclSuccess;
}
