/* SPDX-License-Identifier: Apache-2.0 */
/* Receive buffers that the peers can write. */
#include "alltoallv_internal.h"

int alltoallv_find_window(const struct alltoallv_handle *h, const void *at)
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
    ALLTOALLV_TRY(alltoallv_agree_on(handle,
                                     alltoallv_lsa_register(handle->lsa, id, buff, bytes, w->peers),
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
    /* When my exchanges are over, all that peers store here has arrived. */
    ALLTOALLV_CUDATRY(cudaDeviceSynchronize());
    if (alltoallv_has_timed_out(handle))
      return alltoallv_fail(ncclRemoteError, "the handle has timed out: a late rank may still "
                                             "write into the buffer, so do not free it");
    handle->windows[id].base = NULL;
    return handle->lsa != NULL ? alltoallv_lsa_unregister(handle->lsa, id) : ncclSuccess;
  }
  return alltoallv_fail(ncclInvalidArgument, "the buffer is not registered");
}
