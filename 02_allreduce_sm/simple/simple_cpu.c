/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of barrier.cu and lines.cu are for GPUs. Here both calls use the wide lines of the
 * library's CPU version (../cpu/device_cpu.c), which work like lines.cu. */
#include "simple.h"

#include "check.h"
#include "lib/internal.h"

void lines_allreduce(struct simple *s, const float *sendbuff, float *recvbuff, size_t count,
                     cudaStream_t stream)
{
  const allreduce_t h = (allreduce_t)s;
  const size_t bytes = count * sizeof(float);
  const size_t room = ALLREDUCE_WIDE_BYTES / 8 / (size_t)h->n * 8;
  if (h->n == 1 && sendbuff != recvbuff)
    CUDACHECK(cudaMemcpyAsync(recvbuff, sendbuff, bytes, cudaMemcpyDeviceToDevice, stream));
  for (size_t at = 0; h->n > 1 && at < bytes; at += room) {
    const size_t here = (bytes - at < room ? bytes - at : room) / sizeof(float);
    struct allreduce_call call = {
        .launch = {ALLREDUCE_WIDE, 1, 1}, .type = ncclFloat, .count = here};
    call.check = allreduce_check(here, ncclFloat, 0);
    call.send[h->rank] = (const char *)sendbuff + at;
    call.recv[h->rank] = (char *)recvbuff + at;
    CHECK_NCCL_RESULT(allreduce_device_launch(h, &call, stream), "lines", allreduce_last_error());
  }
}

void barrier_allreduce(struct simple *s, const float *sendbuff, float *recvbuff, size_t count,
                       cudaStream_t stream)
{
  lines_allreduce(s, sendbuff, recvbuff, count, stream);
}

struct simple *simple_create(ncclComm_t comm, ncclWindow_t window, const float *sendbuffs,
                             const char **why)
{
  const allreduce_config_t without_end = {.timeout_seconds = -1};
  allreduce_t handle;
  (void)window, (void)sendbuffs;
  const ncclResult_t made = allreduce_create(comm, &without_end, &handle);
  *why = allreduce_last_error();
  if (made == ncclInvalidUsage) return NULL;
  CHECK_NCCL_RESULT(made, "allreduce_create(comm, &without_end, &handle)", *why);
  return (struct simple *)handle;
}

void simple_destroy(struct simple *s)
{
  CHECK_NCCL_RESULT(allreduce_destroy((allreduce_t)s), "allreduce_destroy", allreduce_last_error());
}
