/* SPDX-License-Identifier: Apache-2.0 */
/* Handles: what the ranks agree on, and the windows. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum { LINES_BEFORE_WIDE = 128 << 10 };

/* What the ranks agree on; of each limit the lowest counts. */
struct agreement {
  enum { FAILED, CANNOT, CAN } can; /* FAILED: a call has, on this rank */
  int architecture;                 /* compute capability, times 10 */
  struct allreduce_limits limits;
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
  if (to < *limit) *limit = to;
}

static size_t at_least_0(long bytes)
{
  return bytes < 0 ? 0 : (size_t)bytes;
}

/* Collective: the lowest of every limit, the same on all ranks. No wide lines between GPUs of
 * different architectures: there NCCL does not use its own lines of 128 bytes either. */
static ncclResult_t agree(const struct allreduce_handle *h, struct agreement *mine,
                          struct agreement *all)
{
  ALLREDUCE_TRY(exchange(h, mine, sizeof(*mine), all));
  for (int p = 0; p < h->n; p++) {
    if (all[p].can < mine->can) mine->can = all[p].can;
    if (all[p].architecture != all[0].architecture) mine->limits.wide = 0;
    for (int m = 0; m < ALLREDUCE_METHODS; m++)
      lower(&mine->limits.blocks[m], all[p].limits.blocks[m]);
    lower(&mine->limits.lines, all[p].limits.lines);
    lower(&mine->limits.wide, all[p].limits.wide);
  }
  return ncclSuccess;
}

double allreduce_timeout(const allreduce_config_t *config)
{
  if (config->timeout_seconds == 0) return 30;
  return config->timeout_seconds < 0 ? 0 : config->timeout_seconds;
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

/* What the ranks tell each other, one thing after the other. */
union told {
  char ids[ALLREDUCE_MAX_RANKS][ALLREDUCE_ID];
  struct agreement agreements[ALLREDUCE_MAX_RANKS];
};

/* All ranks get through all collective calls in it, whatever one of them finds: a call of ours that
 * fails is remembered until all have heard of it. */
static ncclResult_t create(struct allreduce_handle *h, const allreduce_config_t *config,
                           union told *told)
{
  char id[ALLREDUCE_ID] = "";
  struct agreement mine = {CAN, 0, {.lines = ALLREDUCE_LINES_BYTES, .wide = ALLREDUCE_WIDE_BYTES}};
  ncclResult_t failed = device_of(h->comm, id, &mine.architecture);
  ALLREDUCE_TRY(exchange(h, id, sizeof(id), told->ids));
  const char *why = "";
  if (failed == ncclSuccess)
    why = allreduce_device_why_not(h->comm, h->n, told->ids[0], &mine.limits);
  if (*why != '\0')
    mine.can = CANNOT;
  else if (failed == ncclSuccess)
    failed = allreduce_device_create(h->comm, h->rank, h->n, config, &mine.limits, &h->device);
  if (failed != ncclSuccess) mine.can = FAILED;
  for (int m = 0; m < ALLREDUCE_METHODS; m++)
    if (config->max_blocks > 0) lower(&mine.limits.blocks[m], (size_t)config->max_blocks);
  if (config->wide_bytes != 0) lower(&mine.limits.wide, at_least_0(config->wide_bytes));
  if (config->lines_bytes != 0)
    lower(&mine.limits.lines, at_least_0(config->lines_bytes));
  else if (mine.limits.wide > 0) /* these are faster above */
    lower(&mine.limits.lines, LINES_BEFORE_WIDE);
  struct agreement a = mine;
  ALLREDUCE_TRY(agree(h, &a, told->agreements));
  if (failed != ncclSuccess) return failed; /* the sentence is set */
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
  union told *told;
  ALLREDUCE_CUDATRY(
      cudaHostAlloc((void **)&told, sizeof(*told), cudaHostAllocPortable | cudaHostAllocMapped));
  const ncclResult_t result = create(h, config, told);
  const cudaError_t freed = cudaFreeHost(told);
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
