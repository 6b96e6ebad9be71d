/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the CPU stand-in: mistakes end with a sentence. Those that the READMEs warn of are in
 * tests/cli/mistakes.bats. */
#include "standin.h"

static bool last_error_says(const char *text)
{
  bool says = strstr(ncclGetLastError(NULL), text) != NULL;
  if (!says) fprintf(stderr, "'%s' lacks '%s'\n", ncclGetLastError(NULL), text);
  return says;
}

static void errors_body(struct rank *me)
{
  float *b = device_memory(64), local[16] = {0};
  cudaStream_t foreign, s = me->stream;
  ncclComm_t c = me->comm, none = NULL;
  const struct {
    const void *send;
    size_t count;
    int type, op;
    ncclComm_t comm;
    const char *sentence;
  } wrong[] = {
      {b, 16, ncclFloat, ncclSum, NULL, "comm is NULL"},
      {b, 16, 99, ncclSum, c, "data type 99"},
      {b, 16, -1, ncclSum, c, "data type -1"},
      {b, 16, (ncclDataType_t)10, ncclSum, c, "data type 10"},
      {b, 16, ncclFloat, 99, c, "operation 99"},
      {b, 17, ncclFloat, ncclSum, c, "needs 68 bytes and its memory has 64"},
      {b, SIZE_MAX / 2, ncclFloat, ncclSum, c, "too large"},
      {local, 16, ncclFloat, ncclSum, c, "is not device memory"},
      {NULL, 16, ncclFloat, ncclSum, c, "is not device memory"},
  };
  for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
    REQUIRE(ncclAllReduce(wrong[i].send, b, wrong[i].count, (ncclDataType_t)wrong[i].type,
                          (ncclRedOp_t)wrong[i].op, wrong[i].comm, s) == ncclInvalidArgument);
    REQUIRE(last_error_says(wrong[i].sentence));
  }
  REQUIRE(ncclBroadcast(b, b, 1, ncclFloat, me->n, c, s) == ncclInvalidArgument);
  REQUIRE(ncclSend(b, 1, ncclFloat, -1, c, s) == ncclInvalidArgument);
  REQUIRE(ncclGroupEnd() == ncclInvalidUsage);
  /* A wrong call in a group spoils the group, and nothing of it runs. */
  NCCL(ncclGroupStart());
  NCCL(ncclSend(b, 1, ncclFloat, me->rank, c, s));
  REQUIRE(ncclRecv(b, 1, ncclFloat, 1000, c, s) == ncclInvalidArgument);
  REQUIRE(ncclGroupEnd() == ncclInvalidArgument);
  CUDA(cudaSetDevice(me->rank + 10));
  CUDA(cudaStreamCreate(&foreign));
  REQUIRE(ncclAllReduce(b, b, 1, ncclFloat, ncclSum, c, foreign) == ncclUnhandledCudaError);
  CUDA(cudaStreamDestroy(foreign));
  CUDA(cudaSetDevice(me->rank));
  ncclUniqueId id;
  memset(&id, 7, sizeof(id));
  REQUIRE(ncclCommInitRank(&none, 1, id, 0) == ncclInvalidArgument && none == NULL);
  memset(&id, 0, sizeof(id));
  REQUIRE(ncclCommInitRank(&none, 1, id, 0) == ncclInvalidArgument);
  REQUIRE(ncclCommInitRank(&none, 2, me->id, 2) == ncclInvalidArgument);
  REQUIRE(ncclCommInitRank(&none, 65, me->id, 0) == ncclInvalidArgument);
  REQUIRE(strcmp(ncclGetErrorString(ncclInvalidUsage), "invalid usage") == 0);
  /* None of this has hurt the communicator. */
  REQUIRE(sum_over(c, s, 1) == me->n);
  CUDA(cudaFree(b));
}

void test_errors(void **state)
{
  (void)state;
  run_ranks(2, errors_body);
}

/* Collectives in which the last rank does not do what the others do: one sentence on all. */
enum difference { NOTHING, ROOT, CALL, OFFSET, KIND, DIFFERENCES };
static enum difference difference;

static void *differ_thread(void *argument)
{
  static const char *const sentences[] = {
      [NOTHING] = "ncclAllReduce: the count is 0 elements on rank 2 and 1000 elements on rank 0",
      [ROOT] = "ncclBroadcast: the root is 1 on rank 2 and 0 on rank 0",
      [CALL] = "rank 2 calls ncclBroadcast and rank 0 calls ncclAllReduce",
      [OFFSET] = "ncclAllReduce: recvbuff's window offset is 8200 on rank 2 and 8192 on rank 0",
      [KIND] = "ncclAllReduce: sendbuff is not registered on rank 2 and in a window on rank 0",
  };
  struct rank *me = argument;
  init_rank(me);
  const bool odd = me->rank == me->n - 1;
  char *memory = NULL, *from, *to, *plain = device_memory(8192);
  ncclWindow_t window = NULL;
  NCCL(ncclMemAlloc((void **)&memory, 16384));
  NCCL(ncclCommWindowRegister(me->comm, memory, 16384, &window, NCCL_WIN_COLL_SYMMETRIC));
  from = odd && difference == KIND ? plain : memory;
  to = memory + 8192 + (odd && difference == OFFSET ? 8 : 0);
  const size_t count = odd && difference == NOTHING ? 0 : 1000;
  if (difference == ROOT || (odd && difference == CALL))
    NCCL(ncclBroadcast(from, to, count, ncclFloat, odd, me->comm, me->stream));
  else
    NCCL(ncclAllReduce(from, to, count, ncclFloat, ncclSum, me->comm, me->stream));
  REQUIRE(cudaStreamSynchronize(me->stream) == cudaErrorLaunchFailure);
  REQUIRE(strstr(cudaGetErrorString(cudaErrorLaunchFailure), sentences[difference]) != NULL);
  REQUIRE(cudaGetLastError() == cudaErrorLaunchFailure);
  REQUIRE(ncclAllReduce(from, to, 1, ncclFloat, ncclSum, me->comm, me->stream) == ncclInvalidUsage);
  REQUIRE(last_error_says(sentences[difference]));
  NCCL(ncclCommWindowDeregister(me->comm, window));
  NCCL(ncclMemFree(memory));
  CUDA(cudaFree(plain));
  CUDA(cudaStreamDestroy(me->stream));
  NCCL(ncclCommDestroy(me->comm));
  return NULL;
}

void test_differences(void **state)
{
  (void)state;
  for (difference = NOTHING; difference < DIFFERENCES; difference++)
    run_threads(3, differ_thread, NULL);
}

/* Memory may go when it is no longer registered, and a registration when nothing uses it. */
static void registration_body(struct rank *me)
{
  char *memory = NULL;
  void *handle = NULL, *again = NULL;
  ncclWindow_t window = NULL;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  NCCL(ncclMemAlloc((void **)&memory, 8192));
  CUDA(cudaMemset(memory, 0, 8192));
  NCCL(ncclCommRegister(me->comm, memory, 8192, &handle));
  NCCL(ncclCommRegister(me->comm, memory + 64, 64, &again));
  NCCL(ncclCommDeregister(me->comm, again));
  REQUIRE(ncclMemFree(memory) == ncclInvalidUsage && last_error_says("still registered"));
  /* queued, and in a graph that is launched; kept, it is not in use */
  CUDA(cudaStreamBeginCapture(me->stream, cudaStreamCaptureModeThreadLocal));
  NCCL(ncclAllReduce(memory, memory, 16, ncclInt, ncclSum, me->comm, me->stream));
  CUDA(cudaStreamEndCapture(me->stream, &graph));
  CUDA(cudaGraphInstantiate(&exec, graph, 0));
  CUDA(cudaGraphDestroy(graph));
  for (int launched = 0; launched < 2; launched++) {
    hold(me->stream);
    if (launched)
      CUDA(cudaGraphLaunch(exec, me->stream));
    else
      NCCL(ncclAllReduce(memory, memory, 16, ncclInt, ncclSum, me->comm, me->stream));
    REQUIRE(ncclCommDeregister(me->comm, handle) == ncclInvalidUsage);
    REQUIRE(last_error_says("ncclCommDeregister: a call that uses the memory is queued"));
    let_go();
    CUDA(cudaStreamSynchronize(me->stream));
  }
  CUDA(cudaGraphExecDestroy(exec));
  NCCL(ncclCommDeregister(me->comm, handle));
  REQUIRE(ncclCommDeregister(me->comm, handle) == ncclInvalidUsage &&
          last_error_says("not of this communicator"));
  /* a collective elsewhere in the same memory is no use of a window */
  NCCL(ncclCommWindowRegister(me->comm, memory, 4096, &window, 0));
  hold(me->stream);
  NCCL(ncclAllReduce(memory + 4096, memory + 4096, 16, ncclInt, ncclSum, me->comm, me->stream));
  NCCL(ncclCommWindowDeregister(me->comm, window));
  let_go();
  CUDA(cudaStreamSynchronize(me->stream));
  NCCL(ncclMemFree(memory));
}

void test_registration(void **state)
{
  (void)state;
  run_ranks(3, registration_body);
}

/* Sizes that differ: all ranks get the same sentence, nothing is written, no rank hangs. */
static void *mismatch_thread(void *argument)
{
  static const char sentence[] =
      "ncclRecv: rank 1 receives 100 elements of ncclInt8 from rank 0, whose ncclSend has 4096 of "
      "ncclInt8; both sides must agree";
  struct rank *me = init_rank(argument) == NULL ? argument : NULL;
  char *buffer = device_memory(4096), host[4096];
  CUDA(cudaMemset(buffer, me->rank, 4096));
  if (me->rank == 0)
    NCCL(ncclSend(buffer, 4096, ncclChar, 1, me->comm, me->stream));
  else if (me->rank == 1)
    NCCL(ncclRecv(buffer, 100, ncclChar, 0, me->comm, me->stream));
  else /* waits for what never comes, unless the others were faster */
    (void)ncclRecv(buffer, 100, ncclChar, 1, me->comm, me->stream);
  cudaError_t error = cudaStreamSynchronize(me->stream);
  REQUIRE(me->rank == 2 || error == cudaErrorLaunchFailure);
  ncclResult_t result = ncclSuccess;
  NCCL(ncclCommGetAsyncError(me->comm, &result));
  REQUIRE(result == ncclInvalidUsage && strcmp(ncclGetLastError(me->comm), sentence) == 0);
  CUDA(cudaMemcpy(host, buffer, 4096, cudaMemcpyDeviceToHost)); /* by another stream */
  for (int i = 0; i < 4096; i++) REQUIRE(host[i] == me->rank);
  CUDA(cudaFree(buffer));
  CUDA(cudaStreamDestroy(me->stream));
  NCCL(ncclCommDestroy(me->comm));
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

void test_failures(void **state)
{
  (void)state;
  run_threads(3, mismatch_thread, NULL);
  run_threads(2, twice_thread, NULL);
  REQUIRE(atomic_load(&refused) == 1);
}
