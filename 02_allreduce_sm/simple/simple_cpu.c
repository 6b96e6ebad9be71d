/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU version of barrier.cu and lines.cu, made of that of the library (../cpu/device_cpu.c):
 * the lines are its LL lines, and a barrier is one line from each rank to each other one. */
#include "simple.h"

#include <stdlib.h>

#include "check.h"
#include "cpu.h"
#include "lib/internal.h"

struct simple {
  allreduce_t handle;
  ncclWindow_t window;
  const float *base;
  float met; /* sent and received by a barrier; what it holds does not matter */
};

struct addition {
  const struct simple *s;
  const float *sendbuff;
  float *recvbuff;
  size_t count;
};

static void add(const void *arg)
{
  const struct addition *a = arg;
  const size_t offset = (size_t)(a->sendbuff - a->s->base) * sizeof(float);
  const void *from[ALLREDUCE_MAX_RANKS];
  for (int p = 0; p < a->s->handle->n; p++) from[p] = cpu_window_pointer(a->s->window, offset, p);
  allreduce_plain_sum(ncclFloat, from, a->s->handle->n, a->count, a->recvbuff);
}

void barrier_allreduce(struct simple *s, const float *sendbuff, float *recvbuff, size_t count,
                       cudaStream_t stream)
{
  const struct addition a = {s, sendbuff, recvbuff, count};
  lines_allreduce(s, &s->met, &s->met, 1, stream);
  CUDACHECK(cpu_launch(stream, add, &a, sizeof a));
  lines_allreduce(s, &s->met, &s->met, 1, stream);
}

void lines_allreduce(struct simple *s, const float *sendbuff, float *recvbuff, size_t count,
                     cudaStream_t stream)
{
  const allreduce_t h = s->handle;
  const size_t bytes = count * sizeof(float);
  const size_t room = ALLREDUCE_LL_BYTES / 8 / (size_t)h->n * 8;
  if (h->n == 1 && sendbuff != recvbuff)
    CUDACHECK(cudaMemcpyAsync(recvbuff, sendbuff, bytes, cudaMemcpyDeviceToDevice, stream));
  for (size_t at = 0; h->n > 1 && at < bytes; at += room) {
    const size_t here = (bytes - at < room ? bytes - at : room) / sizeof(float);
    struct allreduce_call call = {.launch = {ALLREDUCE_LL, 1, 1}, .type = ncclFloat, .count = here};
    call.check = allreduce_check(here, ncclFloat, 0);
    call.send[h->rank] = (const char *)sendbuff + at;
    call.recv[h->rank] = (char *)recvbuff + at;
    CHECK_NCCL_RESULT(allreduce_device_launch(h, &call, stream), "lines", allreduce_last_error());
  }
}

struct simple *simple_create(ncclComm_t comm, ncclWindow_t window, const float *sendbuffs,
                             const char **why)
{
  const allreduce_config_t without_end = {.timeout_seconds = -1};
  allreduce_t handle;
  const ncclResult_t made = allreduce_create(comm, &without_end, &handle);
  *why = allreduce_last_error();
  if (made == ncclInvalidUsage) return NULL;
  CHECK_NCCL_RESULT(made, "allreduce_create(comm, &without_end, &handle)", *why);
  struct simple *s = calloc(1, sizeof *s);
  if (!s) launcher_fail(__FILE__, __LINE__, "calloc", "out of memory", NULL);
  *s = (struct simple){.handle = handle, .window = window, .base = sendbuffs};
  return s;
}

void simple_destroy(struct simple *s)
{
  CHECK_NCCL_RESULT(allreduce_destroy(s->handle), "allreduce_destroy", allreduce_last_error());
  free(s);
}
