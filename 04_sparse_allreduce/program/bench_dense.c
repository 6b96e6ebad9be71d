/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_dense.h"

#include <math.h>

#include "check.h"

static ncclResult_t nccl_allreduce(struct bench_timer *timer, const void *send, void *recv)
{
  return ncclAllReduce(send, recv, timer->count, timer->type->nccl, ncclSum, timer->comm,
                       timer->stream);
}

/* Buffers from cudaMalloc. */
static struct bench_time time_plain(struct bench_timer *timer, int *code)
{
  void *recv;
  CUDACHECK(cudaMalloc(&recv, timer->count * timer->type->size));
  launcher_barrier(
      timer->me); /* with several GPUs in one process, allocating and freeing may wait */
  const struct bench_time time =
      bench_time_allreduce(timer, nccl_allreduce, timer->gradients, recv, code);
  CUDACHECK(cudaFree(recv));
  launcher_barrier(timer->me); /* for all of them, and what runs there for this rank */
  return time;
}

/* All buffers in one window. Where NCCL cannot use it, this is as the plain one. */
static struct bench_time time_symmetric(struct bench_timer *timer, int *code)
{
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
  const size_t bytes = timer->count * timer->type->size;
  const size_t stride = (bytes + 4095) / 4096 * 4096;
  char *memory;
  void *send[BENCH_GRADIENTS];
  ncclWindow_t window = NULL;
  NCCLCHECK(ncclMemAlloc((void **)&memory, (BENCH_GRADIENTS + 1) * stride));
  NCCLCHECK(ncclCommWindowRegister(timer->comm, memory, (BENCH_GRADIENTS + 1) * stride, &window,
                                   NCCL_WIN_COLL_SYMMETRIC));
  for (int i = 0; i < BENCH_GRADIENTS; i++) {
    send[i] = memory + (size_t)i * stride;
    CUDACHECK(cudaMemcpyAsync(send[i], timer->gradients[i], bytes, cudaMemcpyDeviceToDevice,
                              timer->stream));
  }
  /* a symmetric kernel may start before what is in front of it has finished */
  CUDACHECK(cudaStreamSynchronize(timer->stream));
  launcher_barrier(timer->me);
  const struct bench_time time =
      bench_time_allreduce(timer, nccl_allreduce, send, memory + BENCH_GRADIENTS * stride, code);
  if (window) NCCLCHECK(ncclCommWindowDeregister(timer->comm, window));
  launcher_barrier(timer->me); /* no rank frees what a slower peer may still read */
  NCCLCHECK(ncclMemFree(memory));
  launcher_barrier(timer->me);
  return time;
#else
  (void)timer;
  *code = EXIT_VERIFIED;
  return bench_no_time;
#endif
}

/* Another AllReduce takes a name and a function here, and one more in BENCH_DENSE_WAYS. */
const char *const bench_dense_names[BENCH_DENSE_WAYS] = {"plain", "symmetric"};
static struct bench_time (*const ways[BENCH_DENSE_WAYS])(struct bench_timer *timer,
                                                         int *code) = {time_plain, time_symmetric};

int bench_time_dense(struct bench_timer *timer, struct bench_dense *dense)
{
  int code = EXIT_VERIFIED;
  dense->best = bench_no_time;
  for (int i = 0; i < BENCH_DENSE_WAYS; i++) {
    dense->times[i] = ways[i](timer, &dense->codes[i]);
    if (code == EXIT_VERIFIED) code = dense->codes[i];
    if (isnan(dense->best.mean) || dense->times[i].mean < dense->best.mean)
      dense->best = dense->times[i];
  }
  /* one that is wrong is no measure, nor are the others then */
  if (code != EXIT_VERIFIED) dense->best = bench_no_time;
  return code;
}
