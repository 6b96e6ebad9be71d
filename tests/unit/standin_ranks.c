/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the CPU stand-in: ranks as threads; device and host memory, time. */
#include "standin.h"

pthread_barrier_t barrier;

void open_rank(struct rank *me)
{
  CUDA(cudaSetDevice(me->rank));
  NCCL(ncclCommInitRank(&me->comm, me->n, me->id, me->rank));
  CUDA(cudaStreamCreate(&me->stream));
}

void close_rank(struct rank *me)
{
  CUDA(cudaStreamSynchronize(me->stream));
  ncclResult_t error = ncclSuccess;
  NCCL(ncclCommGetAsyncError(me->comm, &error));
  REQUIRE(error == ncclSuccess);
  CUDA(cudaStreamDestroy(me->stream));
  NCCL(ncclCommFinalize(me->comm));
  NCCL(ncclCommDestroy(me->comm));
}

void *device_memory(size_t bytes)
{
  void *pointer = NULL;
  CUDA(cudaMalloc(&pointer, bytes > 0 ? bytes : 1));
  return pointer;
}

static void *rank_thread(void *argument)
{
  struct rank *me = argument;
  open_rank(me);
  me->body(me);
  if (me->send != NULL) CUDA(cudaFree(me->send));
  if (me->receive != NULL) CUDA(cudaFree(me->receive));
  close_rank(me);
  return NULL;
}

void run_ranks(int n, void (*body)(struct rank *me))
{
  pthread_t threads[MOST_RANKS];
  struct rank ranks[MOST_RANKS];
  ncclUniqueId id;
  NCCL(ncclGetUniqueId(&id));
  pthread_barrier_init(&barrier, NULL, (unsigned)n);
  for (int r = 0; r < n; r++) {
    ranks[r] = (struct rank){.rank = r, .n = n, .id = id, .body = body};
    REQUIRE(pthread_create(&threads[r], NULL, rank_thread, &ranks[r]) == 0);
  }
  for (int r = 0; r < n; r++) pthread_join(threads[r], NULL);
  pthread_barrier_destroy(&barrier);
}

void *host_memory(size_t bytes)
{
  void *pointer = malloc(bytes > 0 ? bytes : 1);
  REQUIRE(pointer != NULL);
  return pointer;
}

void nap(long milliseconds)
{
  struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};
  nanosleep(&time, NULL);
}

double now(void)
{
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* A kernel that takes its time. */
static void slow_kernel(const void *args)
{
  nap(*(const long *)args);
}

void slow(cudaStream_t stream, long milliseconds)
{
  CUDA(cpu_launch(stream, slow_kernel, &milliseconds, sizeof(milliseconds)));
}
