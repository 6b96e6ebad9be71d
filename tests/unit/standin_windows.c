/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the CPU stand-in: windows and registered memory. */
#include "standin.h"

static bool all_have_come(const void *argument)
{
  const struct push *push = argument;
  _Atomic uint32_t *flags = cpu_window_pointer(push->window, 0, push->rank);
  for (int r = 0; r < push->n; r++)
    if (atomic_load(&flags[r]) < push->epoch) return false;
  return true;
}

void push_kernel(const void *argument)
{
  const struct push *push = argument;
  for (int p = 0; p < push->n; p++) {
    uint64_t *data = cpu_window_pointer(push->window, 4096, p);
    data[push->rank] = (uint64_t)push->rank * 1000 + push->epoch;
    _Atomic uint32_t *flags = cpu_window_pointer(push->window, 0, p);
    atomic_store(&flags[push->rank], push->epoch);
    cpu_notify(push->comm, p);
  }
  REQUIRE(cpu_wait(push->comm, all_have_come, push, 60));
  const uint64_t *data = cpu_window_pointer(push->window, 4096, push->rank);
  for (int r = 0; r < push->n; r++) REQUIRE(data[r] == (uint64_t)r * 1000 + push->epoch);
}

static bool never(const void *argument)
{
  (void)argument;
  return false;
}

static void window_body(struct rank *me)
{
  char *memory = NULL;
  ncclWindow_t window = NULL;
  size_t bytes = 4096 + 64 * 8;
  NCCL(ncclMemAlloc((void **)&memory, 4096 + bytes));
  CUDA(cudaMemset(memory, 0, 4096 + bytes));
  NCCL(ncclCommWindowRegister(me->comm, memory + 4096, bytes, &window, NCCL_WIN_COLL_SYMMETRIC));
  REQUIRE(window != NULL);
  REQUIRE(cpu_window_pointer(window, 8, me->rank) == memory + 4096 + 8);
  REQUIRE(cpu_window_pointer(window, 0, me->n) == NULL);
  REQUIRE(cpu_window_pointer(window, bytes + 1, 0) == NULL);
  struct push push = {me->comm, window, me->rank, me->n, 0};
  /* Between rounds a collective: nobody may overwrite what another still reads. */
  for (push.epoch = 1; push.epoch <= 20; push.epoch++) {
    CUDA(cpu_launch(me->stream, push_kernel, &push, sizeof(push)));
    NCCL(ncclAllReduce(memory, memory, 1, ncclInt, ncclSum, me->comm, me->stream));
  }
  CUDA(cudaStreamSynchronize(me->stream));
  double start = now();
  REQUIRE(!cpu_wait(me->comm, never, NULL, 0.05));
  REQUIRE(now() - start > 0.04);
  pthread_barrier_wait(&barrier);
  NCCL(ncclCommWindowDeregister(me->comm, window));

  /* What must fail, fails on every rank. */
  window = NULL;
  if (me->n > 1) {
    size_t size = me->rank == me->n - 1 ? 4096 : 8192;
    REQUIRE(ncclCommWindowRegister(me->comm, memory, size, &window, 0) == ncclInvalidUsage);
    REQUIRE(window == NULL);
  }
  char local[64];
  void *wrong = me->rank == 0 ? local : memory;
  REQUIRE(ncclCommWindowRegister(me->comm, wrong, 64, &window, 0) == ncclInvalidUsage);
  REQUIRE(ncclCommWindowRegister(me->comm, memory, 1 << 20, &window, 0) == ncclInvalidArgument);
  REQUIRE(ncclCommWindowRegister(me->comm, memory + 64, 64, &window, 0) == ncclInvalidArgument);
  REQUIRE(strstr(ncclGetLastError(NULL), "multiple of 4096") != NULL);
  void *handle = NULL;
  NCCL(ncclCommRegister(me->comm, memory, 4096, &handle));
  REQUIRE(handle != NULL);
  NCCL(ncclCommDeregister(me->comm, handle));
  REQUIRE(ncclCommRegister(me->comm, local, 64, &handle) == ncclInvalidArgument);
  NCCL(ncclMemFree(memory));
}

void test_windows(void **state)
{
  (void)state;
  run_ranks(1, window_body);
  run_ranks(4, window_body);
}

static bool last_error_says(const char *text)
{
  bool says = strstr(ncclGetLastError(NULL), text) != NULL;
  if (!says) fprintf(stderr, "'%s' lacks '%s'\n", ncclGetLastError(NULL), text);
  return says;
}

/* Memory may go when it is no longer registered, and a registration when nothing uses it. */
static void registration_body(struct rank *me)
{
  char *memory = NULL;
  void *handle = NULL, *again = NULL;
  ncclWindow_t window = NULL;
  NCCL(ncclMemAlloc((void **)&memory, 8192));
  CUDA(cudaMemset(memory, 0, 8192));
  NCCL(ncclCommRegister(me->comm, memory, 8192, &handle));
  NCCL(ncclCommRegister(me->comm, memory + 64, 64, &again));
  REQUIRE(ncclMemFree(memory) == ncclInvalidUsage && last_error_says("still registered"));
  REQUIRE(cudaFree(memory) == cudaErrorNotPermitted);
  REQUIRE(strstr(cudaGetErrorString(cudaErrorNotPermitted), "ncclCommDeregister") != NULL);
  NCCL(ncclCommDeregister(me->comm, again));
  REQUIRE(ncclMemFree(memory) == ncclInvalidUsage);

  /* queued, and in a graph that is launched; kept, it is not in use */
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CUDA(cudaStreamBeginCapture(me->stream, cudaStreamCaptureModeThreadLocal));
  NCCL(ncclAllReduce(memory, memory, 16, ncclInt, ncclSum, me->comm, me->stream));
  CUDA(cudaStreamEndCapture(me->stream, &graph));
  CUDA(cudaGraphInstantiate(&exec, graph, 0));
  CUDA(cudaGraphDestroy(graph));
  for (int launched = 0; launched < 2; launched++) {
    slow(me->stream, 50);
    if (launched)
      CUDA(cudaGraphLaunch(exec, me->stream));
    else
      NCCL(ncclAllReduce(memory, memory, 16, ncclInt, ncclSum, me->comm, me->stream));
    REQUIRE(ncclCommDeregister(me->comm, handle) == ncclInvalidUsage);
    REQUIRE(last_error_says("ncclCommDeregister: a call that uses the memory is queued"));
    CUDA(cudaStreamSynchronize(me->stream));
  }
  NCCL(ncclCommDeregister(me->comm, handle));
  CUDA(cudaGraphExecDestroy(exec));
  REQUIRE(ncclCommDeregister(me->comm, handle) == ncclInvalidUsage && last_error_says("no such"));

  /* the same for a window; and a collective elsewhere in the same memory is no use of it */
  NCCL(ncclCommWindowRegister(me->comm, memory, 4096, &window, 0));
  REQUIRE(ncclMemFree(memory) == ncclInvalidUsage && last_error_says("still a window"));
  slow(me->stream, 50);
  NCCL(ncclAllReduce(memory, memory, 16, ncclInt, ncclSum, me->comm, me->stream));
  REQUIRE(ncclCommWindowDeregister(me->comm, window) == ncclInvalidUsage);
  REQUIRE(last_error_says("ncclCommWindowDeregister: a call that uses the memory is queued"));
  CUDA(cudaStreamSynchronize(me->stream));
  slow(me->stream, 50);
  NCCL(ncclAllReduce(memory + 4096, memory + 4096, 16, ncclInt, ncclSum, me->comm, me->stream));
  NCCL(ncclCommWindowDeregister(me->comm, window));
  CUDA(cudaStreamSynchronize(me->stream));

  /* cudaMalloc's memory cannot be a window; the last rank is named everywhere */
  char *plain = device_memory(8192), text[64];
  snprintf(text, sizeof(text), "the memory of rank %d is not from ncclMemAlloc", me->n - 1);
  REQUIRE(ncclCommWindowRegister(me->comm, me->rank == me->n - 1 ? plain : memory, 4096, &window,
                                 0) == ncclInvalidUsage);
  REQUIRE(last_error_says(text));
  CUDA(cudaFree(plain));

  /* what is left when the communicator goes */
  ncclComm_t other = NULL;
  void *left = NULL;
  NCCL(ncclCommSplit(me->comm, 0, 0, &other, NULL));
  NCCL(ncclCommRegister(other, memory, 64, &left));
  NCCL(ncclCommDestroy(other));
  REQUIRE(ncclCommDeregister(other, left) == ncclInvalidUsage);
  REQUIRE(last_error_says("ncclCommDeregister: the communicator is gone"));
  NCCL(ncclMemFree(memory));
  cudaGetLastError();
}

void test_registration(void **state)
{
  (void)state;
  run_ranks(1, registration_body);
  run_ranks(3, registration_body);
}
