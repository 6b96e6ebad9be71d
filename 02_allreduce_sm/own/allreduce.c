/* SPDX-License-Identifier: Apache-2.0 */
/* Calls, and what they have found. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "internal.h"
#include "types.h"

/* ---- the sentence ---------------------------------------------------------------------------- */

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
      .shape = allreduce_choose(bytes, handle->n, handle->limits), .type = type, .count = count};
  uint64_t place = 0;
  if (call.shape.method == ALLREDUCE_TWOSHOT)
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
