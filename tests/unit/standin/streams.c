/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the CPU stand-in: which streams wait for which, what can be asked of them, and calls for
 * programs with several ranks in a thread or with ranks that give up. */
#include <semaphore.h>

#include "standin.h"

static sem_t gate;

static void wait_at_gate(void *unused)
{
  (void)unused;
  sem_wait(&gate);
}

void hold(cudaStream_t stream)
{
  CUDA(cudaLaunchHostFunc(stream, wait_at_gate, NULL));
}

void let_go(void)
{
  sem_post(&gate);
}

/* The default stream and the blocking ones wait for each other, in both directions; a non-blocking
 * one waits for none. */
void test_order(void **state)
{
  (void)state;
  enum { BLOCKING, OTHER, FREE, STANDARD, LEGACY, STREAMS };
  cudaStream_t streams[STREAMS] = {[STANDARD] = NULL, [LEGACY] = cudaStreamLegacy};
  int least = 1, greatest = 1;
  CUDA(cudaSetDevice(3));
  CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  CUDA(cudaStreamCreate(&streams[BLOCKING]));
  CUDA(cudaStreamCreateWithPriority(&streams[OTHER], cudaStreamDefault, greatest));
  CUDA(cudaStreamCreateWithFlags(&streams[FREE], cudaStreamNonBlocking));
  int *device = device_memory(sizeof(int)), value = 0;
  for (int first = BLOCKING; first <= STANDARD; first++)
    for (int second = BLOCKING; second < STREAMS; second++) {
      if (first == second || (first == STANDARD && second == LEGACY)) continue;
      const bool ordered =
          first != FREE && second != FREE && (first == STANDARD || second >= STANDARD);
      cudaEvent_t event;
      CUDA(cudaEventCreate(&event));
      CUDA(cudaMemset(device, 0, sizeof(int)));
      hold(streams[first]);
      CUDA(cudaMemsetAsync(device, 1, 1, streams[first]));
      CUDA(cudaMemsetAsync(device, 2, 1, streams[second]));
      CUDA(cudaEventRecord(event, streams[second]));
      REQUIRE(cudaStreamQuery(streams[first]) == cudaErrorNotReady);
      if (ordered)
        REQUIRE(cudaEventQuery(event) == cudaErrorNotReady);
      else
        CUDA(cudaEventSynchronize(event)); /* does not hang */
      let_go();
      CUDA(cudaDeviceSynchronize());
      CUDA(cudaEventQuery(event));
      CUDA(cudaStreamQuery(streams[first]));
      CUDA(cudaMemcpy(&value, device, sizeof(int), cudaMemcpyDeviceToHost));
      REQUIRE(value == (ordered ? 2 : 1));
      CUDA(cudaEventDestroy(event));
    }
  /* what is queued in a blocking stream is there after a wait for the default stream */
  hold(streams[BLOCKING]);
  CUDA(cudaMemsetAsync(device, 7, 1, streams[BLOCKING]));
  let_go();
  CUDA(cudaStreamSynchronize(NULL));
  CUDA(cudaStreamQuery(streams[BLOCKING]));
  CUDA(cudaFree(device));
  for (int i = BLOCKING; i < STANDARD; i++) CUDA(cudaStreamDestroy(streams[i]));
}

/* A rank whose peer never comes gives up, and goes on with its stream and a new communicator. The
 * peer hears of it. */
static void *abort_thread(void *argument)
{
  struct rank *me = init_rank(argument) == NULL ? argument : NULL;
  ncclUniqueId id;
  ncclComm_t alone;
  float *memory = device_memory(sizeof(float));
  if (me->rank == 0) {
    NCCL(ncclAllReduce(memory, memory, 1, ncclFloat, ncclSum, me->comm, me->stream));
    REQUIRE(cudaStreamQuery(me->stream) == cudaErrorNotReady);
  }
  ncclResult_t error = ncclSuccess;
  while (me->rank == 1 && error == ncclSuccess) NCCL(ncclCommGetAsyncError(me->comm, &error));
  NCCL(ncclCommAbort(me->comm));
  REQUIRE(error == (me->rank == 1 ? ncclRemoteError : ncclSuccess));
  CUDA(cudaStreamSynchronize(me->stream));
  NCCL(ncclGetUniqueId(&id));
  NCCL(ncclCommInitRank(&alone, 1, id, 0));
  REQUIRE(sum_over(alone, me->stream, 5) == 5);
  NCCL(ncclCommAbort(alone));
  CUDA(cudaFree(memory));
  CUDA(cudaStreamDestroy(me->stream));
  return NULL;
}

void test_abort(void **state)
{
  (void)state;
  run_threads(2, abort_thread, NULL);
  NCCL(ncclCommAbort(NULL));
}

/* One thread is several ranks: everything that waits for other ranks can stand in a group. */
void test_groups(void **state)
{
  (void)state;
  enum { N = 3 };
  ncclUniqueId id;
  ncclComm_t comms[N], halves[N];
  ncclWindow_t windows[N][2];
  char *memory[N];
  int rank;
  NCCL(ncclGetUniqueId(&id));
  NCCL(ncclGroupStart());
  for (int r = 0; r < N; r++) {
    CUDA(cudaSetDevice(r + 1));
    NCCL(ncclCommInitRank(&comms[r], N, id, r));
  }
  NCCL(ncclGroupEnd());
  for (int r = 0; r < N; r++) {
    CUDA(cudaSetDevice(r + 1));
    NCCL(ncclMemAlloc((void **)&memory[r], 8192));
  }
  NCCL(ncclGroupStart());
  for (int r = 0; r < N; r++)
    for (int w = 0; w < 2; w++)
      NCCL(ncclCommWindowRegister(comms[r], memory[r] + w * 4096, 4096, &windows[r][w], 0));
  for (int r = 0; r < N; r++) NCCL(ncclCommSplit(comms[r], r / 2, 0, &halves[r], NULL));
  NCCL(ncclGroupEnd());
  for (int r = 0; r < N; r++) {
    NCCL(ncclCommCuDevice(comms[r], &rank));
    REQUIRE(rank == r + 1);
    NCCL(ncclCommUserRank(halves[r], &rank)); /* with equal keys in the order of the old ranks */
    REQUIRE(rank == r % 2);
    for (int w = 0; w < 2; w++) NCCL(ncclCommWindowDeregister(comms[r], windows[r][w]));
    NCCL(ncclMemFree(memory[r]));
    NCCL(ncclCommDestroy(halves[r]));
  }
  /* what fails in a group is the answer of its end */
  NCCL(ncclGroupStart());
  for (int r = 0; r < N; r++)
    NCCL(ncclCommWindowRegister(comms[r], memory[r], 4096, &windows[r][0], 0));
  REQUIRE(ncclGroupEnd() == ncclInvalidUsage);
  REQUIRE(strstr(ncclGetLastError(NULL), "the memory of rank 0 is not from ncclMemAlloc") != NULL);
  for (int r = 0; r < N; r++) NCCL(ncclCommDestroy(comms[r]));
}
