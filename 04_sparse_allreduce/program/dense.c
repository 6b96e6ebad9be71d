/* SPDX-License-Identifier: Apache-2.0 */
/* --bench: what a sparse path has to beat. */
#include <math.h>

#include "allreduce.h"
#include "check.h"
#include "program/timing.h"

static ncclResult_t nccl_allreduce(struct timer *timer, const void *send, void *recv)
{
  return ncclAllReduce(send, recv, timer->count, timer->type->nccl, ncclSum, timer->comm,
                       timer->stream);
}

/* Buffers from cudaMalloc. */
static struct timing time_plain(struct timer *timer, int *code)
{
  void *recv;
  CUDACHECK(cudaMalloc(&recv, timer->count * timer->type->size));
  launcher_barrier(
      timer->me); /* with several GPUs in one process, allocating and freeing may wait */
  const struct timing time = time_allreduce(timer, nccl_allreduce, timer->gradients, recv, code);
  CUDACHECK(cudaFree(recv));
  launcher_barrier(timer->me); /* for all of them, and what runs there for this rank */
  return time;
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
/* Where a dense AllReduce finds its buffers: all of them in one window. */
struct windowed {
  char *memory;
  ncclWindow_t window;
  size_t bytes; /* of memory */
  void *send[GRADIENTS], *recv;
};

static struct windowed windowed_init(struct timer *timer)
{
  const size_t bytes = timer->count * timer->type->size;
  const size_t stride = (bytes + 4095) / 4096 * 4096;
  struct windowed w = {.bytes = (GRADIENTS + 1) * stride};
  NCCLCHECK(ncclMemAlloc((void **)&w.memory, w.bytes));
  NCCLCHECK(
      ncclCommWindowRegister(timer->comm, w.memory, w.bytes, &w.window, NCCL_WIN_COLL_SYMMETRIC));
  w.recv = w.memory + GRADIENTS * stride;
  for (int i = 0; i < GRADIENTS; i++) {
    w.send[i] = w.memory + (size_t)i * stride;
    CUDACHECK(cudaMemcpyAsync(w.send[i], timer->gradients[i], bytes, cudaMemcpyDeviceToDevice,
                              timer->stream));
  }
  /* a symmetric kernel may start before what is in front of it has finished */
  CUDACHECK(cudaStreamSynchronize(timer->stream));
  launcher_barrier(timer->me);
  return w;
}

static void windowed_free(struct timer *timer, struct windowed *w)
{
  launcher_barrier(timer->me); /* a slower peer may still read this rank's memory */
  if (w->window) NCCLCHECK(ncclCommWindowDeregister(timer->comm, w->window));
  NCCLCHECK(ncclMemFree(w->memory));
  launcher_barrier(timer->me);
}

/* Where NCCL cannot use the window, this is as the plain one. */
static struct timing time_symmetric(struct timer *timer, int *code)
{
  struct windowed w = windowed_init(timer);
  const struct timing time = time_allreduce(timer, nccl_allreduce, w.send, w.recv, code);
  windowed_free(timer, &w);
  return time;
}

#define DIRECTCHECK(call) CHECK_NCCL_RESULT(call, #call, allreduce_last_error())

static _Thread_local allreduce_t direct; /* ranks may be threads */

static ncclResult_t direct_allreduce(struct timer *timer, const void *send, void *recv)
{
  DIRECTCHECK(allreduce_run(direct, send, recv, timer->count, timer->type->nccl, timer->stream));
  return ncclSuccess;
}

/* The direct AllReduce of example 02, where all ranks share memory. */
static struct timing time_direct(struct timer *timer, int *code)
{
  struct windowed w;
  struct timing time;
  ncclResult_t result;
  *code = EXIT_CANNOT_RUN;
  result = allreduce_create(timer->comm, NULL, &direct);
  if (result == ncclInvalidUsage) return no_timing; /* on all ranks */
  CHECK_NCCL_RESULT(result, "allreduce_create(timer->comm, NULL, &direct)", allreduce_last_error());
  w = windowed_init(timer);
  DIRECTCHECK(allreduce_add_window(direct, w.window, w.memory, w.bytes));
  time = time_allreduce(timer, direct_allreduce, w.send, w.recv, code);
  DIRECTCHECK(allreduce_get_async_error(direct, &result));
  CHECK_NCCL_RESULT(result, "allreduce_run", allreduce_last_error());
  DIRECTCHECK(allreduce_destroy(direct));
  direct = NULL;
  windowed_free(timer, &w);
  return time;
}
#else
static struct timing cannot_run(struct timer *timer, int *code)
{
  (void)timer;
  *code = EXIT_CANNOT_RUN;
  return no_timing;
}
#define time_symmetric cannot_run
#define time_direct cannot_run
#endif

const char *const dense_names[DENSE_KINDS] = {"plain", "symmetric", "direct"};
static struct timing (*const kinds[DENSE_KINDS])(struct timer *timer, int *code) = {
    time_plain, time_symmetric, time_direct};

int time_dense(struct timer *timer, struct dense_times *dense)
{
  int code = EXIT_VERIFIED;
  dense->best = no_timing;
  for (int i = 0; i < DENSE_KINDS; i++) {
    dense->times[i] = kinds[i](timer, &dense->codes[i]);
    if (dense->codes[i] == EXIT_CANNOT_RUN) continue;
    if (code == EXIT_VERIFIED) code = dense->codes[i];
    if (isnan(dense->best.mean) || dense->times[i].mean < dense->best.mean)
      dense->best = dense->times[i];
  }
  /* one that is wrong is no measure, nor are the others then */
  if (code != EXIT_VERIFIED) dense->best = no_timing;
  return code;
}
