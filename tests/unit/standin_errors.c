/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the CPU stand-in: NCCL's errors. */
#include "standin.h"

static void errors_body(struct rank *me)
{
  float *buffer = device_memory(64), local[16] = {0};
  cudaStream_t foreign, s = me->stream;
  ncclComm_t c = me->comm;
  ncclUniqueId id;
  NCCL(ncclGetUniqueId(&id));
  REQUIRE(ncclAllReduce(buffer, buffer, 16, ncclFloat, ncclSum, NULL, s) == ncclInvalidArgument);
  REQUIRE(ncclAllReduce(buffer, buffer, 16, (ncclDataType_t)99, ncclSum, c, s) ==
          ncclInvalidArgument);
  REQUIRE(ncclAllReduce(buffer, buffer, 16, (ncclDataType_t)-1, ncclSum, c, s) ==
          ncclInvalidArgument);
  REQUIRE(ncclAllReduce(buffer, buffer, 16, ncclFloat, (ncclRedOp_t)99, c, s) ==
          ncclInvalidArgument);
  REQUIRE(ncclAllReduce(buffer, buffer, 17, ncclFloat, ncclSum, c, s) == ncclInvalidArgument);
  REQUIRE(strstr(ncclGetLastError(c), "68 bytes") != NULL);
  REQUIRE(ncclAllReduce(buffer, buffer, SIZE_MAX / 2, ncclFloat, ncclSum, c, s) ==
          ncclInvalidArgument);
  REQUIRE(ncclAllReduce(local, buffer, 16, ncclFloat, ncclSum, c, s) == ncclInvalidArgument);
  REQUIRE(ncclAllReduce(NULL, buffer, 16, ncclFloat, ncclSum, c, s) == ncclInvalidArgument);
  REQUIRE(ncclBroadcast(buffer, buffer, 1, ncclFloat, me->n, c, s) == ncclInvalidArgument);
  REQUIRE(ncclSend(buffer, 1, ncclFloat, -1, c, s) == ncclInvalidArgument);
  REQUIRE(ncclRecv(buffer, 1, ncclFloat, me->n, c, s) == ncclInvalidArgument);
  REQUIRE(ncclGroupEnd() == ncclInvalidUsage);
  /* A wrong call in a group spoils the group, and nothing of it runs. */
  NCCL(ncclGroupStart());
  NCCL(ncclSend(buffer, 1, ncclFloat, me->rank, c, s));
  REQUIRE(ncclRecv(buffer, 1, ncclFloat, 1000, c, s) == ncclInvalidArgument);
  REQUIRE(ncclGroupEnd() == ncclInvalidArgument);
  CUDA(cudaSetDevice(me->rank + 10));
  CUDA(cudaStreamCreate(&foreign));
  REQUIRE(ncclAllReduce(buffer, buffer, 1, ncclFloat, ncclSum, c, foreign) ==
          ncclUnhandledCudaError);
  CUDA(cudaStreamDestroy(foreign));
  CUDA(cudaSetDevice(me->rank));
  ncclComm_t none = NULL;
  REQUIRE(ncclCommInitRank(&none, 2, id, 2) == ncclInvalidArgument && none == NULL);
  REQUIRE(ncclCommInitRank(&none, 65, id, 0) == ncclInvalidArgument);
  memset(&id, 7, sizeof(id));
  REQUIRE(ncclCommInitRank(&none, 1, id, 0) == ncclInvalidArgument);
  REQUIRE(strcmp(ncclGetErrorString(ncclInvalidUsage), "invalid usage") == 0);
  /* None of this has hurt the communicator. */
  REQUIRE(sum_over(c, s, 1) == me->n);
  CUDA(cudaFree(buffer));
}

void test_errors(void **state)
{
  (void)state;
  run_ranks(2, errors_body);
}

/* Whoever waits for what has failed hears of it: through the stream, an event in it, or a stream
 * that waits for that event. */
static void must_fail(struct rank *me, const char *sentence)
{
  cudaEvent_t event;
  cudaStream_t other;
  CUDA(cudaEventCreate(&event));
  CUDA(cudaStreamCreate(&other));
  CUDA(cudaEventRecord(event, me->stream));
  CUDA(cudaStreamWaitEvent(other, event, 0));
  REQUIRE(cudaStreamSynchronize(me->stream) == cudaErrorLaunchFailure);
  REQUIRE(strcmp(cudaGetErrorString(cudaErrorLaunchFailure), sentence) == 0);
  REQUIRE(cudaGetLastError() == cudaErrorLaunchFailure);
  CUDA(cudaStreamDestroy(other));
  CUDA(cudaEventDestroy(event));
}

/* Collectives in which one rank, the last, does not do what the others do: one sentence. */
enum difference { COUNT, NOTHING, TYPE, OPERATION, ROOT, CALL, PLAIN_SEND, PLAIN_RECV, OFFSET };

static void differ(struct rank *me, enum difference what, const char *sentence)
{
  const bool odd = me->rank == me->n - 1;
  char *memory = NULL;
  ncclWindow_t window = NULL;
  void *handles[2] = {NULL, NULL};
  const size_t half = 8192;
  NCCL(ncclMemAlloc((void **)&memory, 2 * half));
  CUDA(cudaMemset(memory, 0, 2 * half));
  char *from = memory, *to = memory + half;
  if (what == OFFSET)
    NCCL(ncclCommWindowRegister(me->comm, memory, 2 * half, &window, NCCL_WIN_COLL_SYMMETRIC));
  else if (what == PLAIN_SEND || what == PLAIN_RECV) {
    if (!odd || what != PLAIN_SEND) NCCL(ncclCommRegister(me->comm, from, half, &handles[0]));
    if (!odd || what != PLAIN_RECV) NCCL(ncclCommRegister(me->comm, to, half, &handles[1]));
  }
  const size_t count = !odd ? 1000 : what == COUNT ? 999 : what == NOTHING ? 0 : 1000;
  const ncclDataType_t type = odd && what == TYPE ? ncclInt32 : ncclFloat;
  const ncclRedOp_t op = odd && what == OPERATION ? ncclMax : ncclSum;
  if (odd && what == OFFSET) to += 8;
  ncclResult_t result = what == ROOT || (odd && what == CALL)
                            ? ncclBroadcast(from, to, count, type, odd, me->comm, me->stream)
                            : ncclAllReduce(from, to, count, type, op, me->comm, me->stream);
  REQUIRE(result == ncclSuccess || (what == CALL && result == ncclInvalidUsage)); /* a late rank */
  if (sentence != NULL) {
    must_fail(me, sentence);
    REQUIRE(ncclAllReduce(from, to, 1, type, op, me->comm, me->stream) == ncclInvalidUsage);
    REQUIRE(strcmp(ncclGetLastError(me->comm), sentence) == 0);
  } else { /* which of the two speaks is chance */
    cudaError_t error = cudaStreamSynchronize(me->stream);
    REQUIRE(error == (result == ncclSuccess ? cudaErrorLaunchFailure : cudaSuccess));
    REQUIRE(ncclAllReduce(from, to, 1, type, op, me->comm, me->stream) == ncclInvalidUsage);
    const char *text = ncclGetLastError(me->comm);
    REQUIRE(strstr(text, "ncclAllReduce") != NULL && strstr(text, "ncclBroadcast") != NULL);
  }
  NCCL(ncclCommDeregister(me->comm, handles[0]));
  NCCL(ncclCommDeregister(me->comm, handles[1]));
  NCCL(ncclCommWindowDeregister(me->comm, window));
  NCCL(ncclMemFree(memory));
}

static enum difference difference;
static const char *difference_sentence;

static void *differ_thread(void *argument)
{
  struct rank *me = argument;
  open_rank(me);
  differ(me, difference, difference_sentence);
  CUDA(cudaStreamDestroy(me->stream));
  NCCL(ncclCommDestroy(me->comm));
  return NULL;
}

/* Sizes that differ: all ranks get the same sentence, nothing is written, no rank hangs. */
static void *mismatch_thread(void *argument)
{
  static const char sentence[] =
      "ncclRecv: rank 1 receives 100 elements of ncclInt8 from rank 0, whose ncclSend has 4096 of "
      "ncclInt8; allowed: the same on both sides";
  struct rank *me = argument;
  open_rank(me);
  char *buffer = device_memory(4096), host[4096];
  CUDA(cudaMemset(buffer, me->rank, 4096));
  if (me->rank == 0)
    NCCL(ncclSend(buffer, 4096, ncclChar, 1, me->comm, me->stream));
  else if (me->rank == 1)
    NCCL(ncclRecv(buffer, 100, ncclChar, 0, me->comm, me->stream));
  else /* waits for what never comes, unless the others were faster */
    (void)ncclRecv(buffer, 100, ncclChar, 1, me->comm, me->stream);
  if (me->rank == 1) must_fail(me, sentence);
  pthread_barrier_wait(&barrier);
  ncclResult_t error = ncclSuccess;
  NCCL(ncclCommGetAsyncError(me->comm, &error));
  REQUIRE(error == ncclInvalidUsage && strcmp(ncclGetLastError(me->comm), sentence) == 0);
  REQUIRE(ncclSend(buffer, 1, ncclChar, 0, me->comm, me->stream) == error);
  pthread_barrier_wait(&barrier);
  cudaStreamSynchronize(me->stream);
  CUDA(cudaMemcpy(host, buffer, 4096, cudaMemcpyDeviceToHost)); /* by another stream */
  for (int i = 0; i < 4096; i++) REQUIRE(host[i] == me->rank);
  CUDA(cudaFree(buffer));
  CUDA(cudaStreamDestroy(me->stream));
  NCCL(ncclCommDestroy(me->comm));
  return NULL;
}

/* Two ranks on one device; a rank that comes twice. */
static void *duplicate_thread(void *argument)
{
  struct rank *me = argument;
  CUDA(cudaSetDevice(me->rank == 2 ? 1 : 0));
  REQUIRE(ncclCommInitRank(&me->comm, 3, me->id, me->rank) == ncclInvalidUsage);
  REQUIRE(strstr(ncclGetLastError(NULL), "Duplicate GPU") != NULL && me->comm == NULL);
  return NULL;
}

/* Two that say they are rank 0: whoever comes second sees it, the other hears of it. */
static atomic_int refused;

static void *twice_thread(void *argument)
{
  struct rank *me = argument;
  CUDA(cudaSetDevice(me->rank));
  ncclResult_t result = ncclCommInitRank(&me->comm, 2, me->id, 0);
  REQUIRE(me->comm == NULL && (result == ncclInvalidUsage || result == ncclRemoteError));
  if (result == ncclInvalidUsage) atomic_fetch_add(&refused, 1);
  return NULL;
}

static void run_threads(int n, void *(*body)(void *))
{
  pthread_t threads[MOST_RANKS];
  struct rank ranks[MOST_RANKS];
  ncclUniqueId id;
  NCCL(ncclGetUniqueId(&id));
  pthread_barrier_init(&barrier, NULL, (unsigned)n);
  for (int r = 0; r < n; r++) {
    ranks[r] = (struct rank){.rank = r, .n = n, .id = id};
    REQUIRE(pthread_create(&threads[r], NULL, body, &ranks[r]) == 0);
  }
  for (int r = 0; r < n; r++) pthread_join(threads[r], NULL);
  pthread_barrier_destroy(&barrier);
}

void test_failures(void **state)
{
  (void)state;
  run_threads(3, mismatch_thread);
  static const char *const sentences[] = {
      [COUNT] = "ncclAllReduce: the count is 999 elements on rank 2 and 1000 elements on rank 0; "
                "allowed: the same on all ranks",
      [NOTHING] = "ncclAllReduce: the count is 0 elements on rank 2 and 1000 elements on rank 0; "
                  "allowed: the same on all ranks",
      [TYPE] = "ncclAllReduce: the type is ncclInt32 on rank 2 and ncclFloat on rank 0; allowed: "
               "the same on all ranks",
      [OPERATION] = "ncclAllReduce: the operation is ncclMax on rank 2 and ncclSum on rank 0; "
                    "allowed: the same on all ranks",
      [ROOT] = "ncclBroadcast: the root is 1 on rank 2 and 0 on rank 0; allowed: the same on all "
               "ranks",
      [CALL] = NULL,
      [PLAIN_SEND] = "ncclAllReduce: sendbuff is not registered on rank 2 and registered on rank "
                     "0; allowed: the same on all ranks",
      [PLAIN_RECV] = "ncclAllReduce: recvbuff is not registered on rank 2 and registered on rank "
                     "0; allowed: the same on all ranks",
      [OFFSET] = "ncclAllReduce: recvbuff's window offset is 8200 on rank 2 and 8192 on rank 0; "
                 "allowed: the same on all ranks",
  };
  for (difference = COUNT; difference <= OFFSET; difference++) {
    difference_sentence = sentences[difference];
    run_threads(3, differ_thread);
  }
  run_threads(3, duplicate_thread);
  run_threads(2, twice_thread);
  REQUIRE(atomic_load(&refused) == 1);
}
