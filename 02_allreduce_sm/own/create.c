/* SPDX-License-Identifier: Apache-2.0 */
/* Handles: what the ranks agree on, and the windows. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum { LINES_BEFORE_WIDE = 64 << 10 };

/* What the ranks agree on; of each number the lowest counts. */
struct agreement {
  int can; /* 0: a rank cannot, 1: it has no memory for it, 2: yes */
  struct allreduce_limits limits;
};

/* Collective, with whatever NCCL has, because nothing of ours works yet. `ids` and `all` are of all
 * ranks. */
static ncclResult_t exchange(ncclComm_t comm, const void *mine, size_t bytes, int n, void *all)
{
  char *device = NULL;
  cudaStream_t stream;
  ALLREDUCE_CUDATRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaError_t cuda = cudaMalloc((void **)&device, bytes * (size_t)(n + 1));
  ncclResult_t nccl = ncclSuccess;
  if (cuda == cudaSuccess)
    cuda = cudaMemcpyAsync(device, mine, bytes, cudaMemcpyHostToDevice, stream);
  if (cuda == cudaSuccess)
    nccl = ncclAllGather(device, device + bytes, bytes, ncclInt8, comm, stream);
  if (cuda == cudaSuccess && nccl == ncclSuccess)
    cuda = cudaMemcpyAsync(all, device + bytes, bytes * (size_t)n, cudaMemcpyDeviceToHost, stream);
  const cudaError_t waited = cudaStreamSynchronize(stream);
  cudaFree(device);
  cudaStreamDestroy(stream);
  ALLREDUCE_NCCLTRY(nccl);
  ALLREDUCE_CUDATRY(cuda);
  ALLREDUCE_CUDATRY(waited);
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

/* Collective: the lowest of every number, the same on all ranks. */
static ncclResult_t agree(ncclComm_t comm, int n, struct agreement *mine)
{
  struct agreement all[ALLREDUCE_MAX_RANKS];
  ALLREDUCE_TRY(exchange(comm, mine, sizeof(*mine), n, all));
  for (int p = 0; p < n; p++) {
    if (all[p].can < mine->can) mine->can = all[p].can;
    lower(&mine->limits.blocks, all[p].limits.blocks);
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

/* All ranks get through all collective calls in it, whatever one of them finds. */
static ncclResult_t create(struct allreduce_handle *h, const allreduce_config_t *config)
{
  char id[ALLREDUCE_ID] = "", ids[ALLREDUCE_MAX_RANKS * ALLREDUCE_ID];
  ALLREDUCE_TRY(allreduce_device_id(h->comm, id));
  ALLREDUCE_TRY(exchange(h->comm, id, sizeof(id), h->n, ids));
  struct agreement mine = {2, {ALLREDUCE_MAX_BLOCKS, ALLREDUCE_LINES_BYTES, ALLREDUCE_WIDE_BYTES}};
  const char *why = allreduce_device_why_not(h->comm, h->n, ids, &mine.limits);
  if (*why != '\0')
    mine.can = 0;
  else if (allreduce_device_create(h->comm, h->rank, h->n, config, &h->device) != ncclSuccess)
    mine.can = 1; /* the sentence is set */
  if (config->max_blocks > 0) lower(&mine.limits.blocks, (size_t)config->max_blocks);
  if (config->wide_bytes != 0) lower(&mine.limits.wide, at_least_0(config->wide_bytes));
  if (config->lines_bytes != 0)
    lower(&mine.limits.lines, at_least_0(config->lines_bytes));
  else if (mine.limits.wide > 0) /* these are faster above */
    lower(&mine.limits.lines, LINES_BEFORE_WIDE);
  struct agreement a = mine;
  ALLREDUCE_TRY(agree(h->comm, h->n, &a));
  if (a.can == 0)
    return allreduce_fail(ncclInvalidUsage, "%s", mine.can == 0 ? why : "another rank cannot");
  if (mine.can == 1) return ncclUnhandledCudaError;
  if (a.can == 1) return allreduce_fail(ncclRemoteError, "another rank has no memory for it");
  h->limits = a.limits;
  return allreduce_device_connect(h->device);
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
  const ncclResult_t result = n == 1 ? ncclSuccess : create(h, config != NULL ? config : &defaults);
  if (result == ncclSuccess)
    *handle = h;
  else
    allreduce_destroy(h);
  return result;
}

ncclResult_t allreduce_destroy(allreduce_t handle)
{
  ncclResult_t result = ncclSuccess;
  if (handle != NULL && handle->device != NULL) result = allreduce_device_destroy(handle->device);
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
