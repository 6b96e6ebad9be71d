/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the CPU stand-in: streams, events, memory, devices, graphs, windows. */
#include "standin.h"

static void set_flag(void *argument)
{
  atomic_store((atomic_int *)argument, 1);
}

void test_asynchrony(void **state)
{
  (void)state;
  cudaStream_t stream;
  CUDA(cudaSetDevice(0));
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  int host = 5, *device = device_memory(sizeof(int)), *pinned = NULL;
  atomic_int flag = 0;
  CUDA(cudaMallocHost((void **)&pinned, sizeof(int)));
  *pinned = 0;
  hold(stream);
  CUDA(cudaMemcpyAsync(device, &host, sizeof(int), cudaMemcpyHostToDevice, stream));
  host = 6; /* allowed: ordinary host memory was read by the call */
  CUDA(cudaMemcpyAsync(pinned, device, sizeof(int), cudaMemcpyDeviceToHost, stream));
  CUDA(cudaLaunchHostFunc(stream, set_flag, &flag));
  REQUIRE(atomic_load(&flag) == 0); /* the copy before it has not happened either */
  let_go();
  CUDA(cudaStreamSynchronize(stream));
  REQUIRE(*pinned == 5 && atomic_load(&flag) == 1);
  /* On the default stream cudaMemcpy comes after what it holds; cudaFree waits for the device. */
  slow(NULL, 50);
  CUDA(cudaMemsetAsync(device, 0, sizeof(int), NULL));
  CUDA(cudaMemcpy(pinned, device, sizeof(int), cudaMemcpyDefault));
  REQUIRE(*pinned == 0);
  double start = now();
  slow(stream, 100);
  CUDA(cudaFree(device));
  REQUIRE(now() - start > 0.09);
  CUDA(cudaFreeHost(pinned));
  CUDA(cudaStreamDestroy(stream));
}

void test_events(void **state)
{
  (void)state;
  cudaStream_t streams[2];
  cudaEvent_t start, end, untimed;
  float milliseconds = 0;
  CUDA(cudaSetDevice(1));
  for (int i = 0; i < 2; i++) CUDA(cudaStreamCreate(&streams[i]));
  CUDA(cudaEventCreate(&start));
  CUDA(cudaEventCreate(&end));
  CUDA(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
  CUDA(cudaEventSynchronize(start)); /* never recorded: nothing to wait for */
  CUDA(cudaStreamWaitEvent(streams[0], start, 0));
  REQUIRE(cudaEventElapsedTime(&milliseconds, start, end) == cudaErrorInvalidResourceHandle);
  CUDA(cudaEventRecord(start, streams[0]));
  slow(streams[0], 100);
  hold(streams[0]);
  CUDA(cudaEventRecord(end, streams[0]));
  REQUIRE(cudaEventElapsedTime(&milliseconds, start, end) == cudaErrorNotReady);
  let_go();
  CUDA(cudaEventSynchronize(end));
  CUDA(cudaEventElapsedTime(&milliseconds, start, end));
  REQUIRE(milliseconds > 95);
  CUDA(cudaEventRecord(untimed, streams[0]));
  CUDA(cudaEventSynchronize(untimed));
  REQUIRE(cudaEventElapsedTime(&milliseconds, start, untimed) == cudaErrorInvalidResourceHandle);
  /* One adds after the other, however slow; the event may be destroyed while it is waited for. */
  int *memory = device_memory(sizeof(int)), value = 0;
  CUDA(cudaMemset(memory, 0, sizeof(int)));
  for (int i = 0; i < 50; i++) {
    cudaEvent_t event;
    CUDA(cudaEventCreate(&event));
    if (i % 10 == 9) slow(streams[1], 5);
    add_to(streams[i % 2], memory, 1, 1);
    CUDA(cudaEventRecord(event, streams[i % 2]));
    CUDA(cudaStreamWaitEvent(streams[1 - i % 2], event, 0));
    CUDA(cudaEventDestroy(event));
  }
  CUDA(cudaStreamSynchronize(streams[0]));
  CUDA(cudaMemcpy(&value, memory, sizeof(int), cudaMemcpyDeviceToHost));
  REQUIRE(value == 50);
  CUDA(cudaFree(memory));
  CUDA(cudaEventDestroy(start));
  CUDA(cudaEventDestroy(end));
  CUDA(cudaEventDestroy(untimed));
  for (int i = 0; i < 2; i++) CUDA(cudaStreamDestroy(streams[i]));
}

void test_memory(void **state)
{
  (void)state;
  const size_t half = (size_t)1 << 30;
  size_t before = 0, total = 0, later = 0;
  void *a = NULL, *b = NULL;
  unsigned char bytes[64];
  CUDA(cudaSetDevice(2));
  CUDA(cudaMemGetInfo(&before, &total));
  REQUIRE(before == total && total == 2 * half);
  CUDA(cudaMalloc(&a, half));
  REQUIRE(cudaMalloc(&b, half + 1) == cudaErrorMemoryAllocation && b == NULL);
  REQUIRE(cudaGetLastError() == cudaErrorMemoryAllocation && cudaGetLastError() == cudaSuccess);
  REQUIRE(ncclMemAlloc(&b, 2 * half) == ncclUnhandledCudaError);
  REQUIRE(strstr(ncclGetLastError(NULL), "out of memory") != NULL);
  CUDA(cudaMemGetInfo(&later, &total));
  REQUIRE(later == total - half);
  /* fresh memory is neither zero nor what it was before */
  CUDA(cudaMemcpy(bytes, a, sizeof(bytes), cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < sizeof(bytes); i++) REQUIRE(bytes[i] != 0);
  /* many zeros too are where they are wanted, and nowhere else */
  char *zeros = (char *)a + 999;
  const long many = 3 << 20;
  CUDA(cudaMemset(a, 7, 2 * (size_t)many));
  CUDA(cudaMemset(zeros, 0, (size_t)many));
  for (long i = -999; i < many + 9999; i++) REQUIRE(zeros[i] == (i < 0 || i >= many ? 7 : 0));
  CUDA(cudaFree(a));
  REQUIRE(cudaFree(a) == cudaErrorInvalidValue && cudaFree(bytes) == cudaErrorInvalidValue);
  CUDA(cudaFree(NULL));
  NCCL(ncclMemFree(NULL));
  CUDA(cudaMemGetInfo(&later, &total));
  REQUIRE(later == before);
  CUDA(cudaMalloc(&a, 100));
  REQUIRE(cudaMemcpy(a, bytes, 101, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  REQUIRE(cudaMemcpy(bytes, bytes, 1, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
  REQUIRE(cudaMemset(bytes, 0, 1) == cudaErrorInvalidValue);
  CUDA(cudaHostAlloc(&b, 100, cudaHostAllocPortable));
  REQUIRE(cudaFree(b) == cudaErrorInvalidValue);
  CUDA(cudaMemcpy(a, b, 100, cudaMemcpyHostToDevice));
  CUDA(cudaFreeHost(b));
  CUDA(cudaFree(a));
  cudaGetLastError();
}

/* ---- graphs -------------------------------------------------------------------------------- */

/* A collective between a copy and two kernels, one of them in a stream that is pulled in. */
static void graph_body(struct rank *me)
{
  enum { COUNT = 3000, REPLAYS = 20 };
  size_t bytes = COUNT * sizeof(int);
  int *in = device_memory(bytes), *out = device_memory(bytes), *side = device_memory(bytes);
  int *host = host_memory(bytes);
  cudaStream_t second;
  cudaEvent_t fork_event, join_event;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  enum cudaStreamCaptureStatus status;
  CUDA(cudaStreamCreate(&second));
  CUDA(cudaEventCreate(&fork_event));
  CUDA(cudaEventCreate(&join_event));
  CUDA(cudaMemset(in, 0, bytes));
  CUDA(cudaEventRecord(join_event, second));

  CUDA(cudaStreamBeginCapture(me->stream, cudaStreamCaptureModeThreadLocal));
  CUDA(cudaStreamIsCapturing(me->stream, &status));
  REQUIRE(status == cudaStreamCaptureStatusActive);
  REQUIRE(cudaStreamSynchronize(me->stream) == cudaErrorStreamCaptureUnsupported);
  REQUIRE(cudaStreamDestroy(me->stream) == cudaErrorStreamCaptureUnsupported);
  REQUIRE(cudaStreamWaitEvent(me->stream, join_event, 0) == cudaErrorStreamCaptureUnsupported);
  add_to(me->stream, in, COUNT, 1);
  CUDA(cudaEventRecord(fork_event, me->stream));
  CUDA(cudaStreamWaitEvent(second, fork_event, 0));
  CUDA(cudaStreamIsCapturing(second, &status));
  REQUIRE(status == cudaStreamCaptureStatusActive);
  CUDA(cudaMemsetAsync(side, 0, bytes, second));
  add_to(second, side, COUNT, 1000000);
  NCCL(ncclAllReduce(in, out, COUNT, ncclInt, ncclSum, me->comm, me->stream));
  CUDA(cudaEventRecord(join_event, second));
  CUDA(cudaStreamWaitEvent(me->stream, join_event, 0));
  CUDA(cudaMemcpyAsync(host, out, bytes, cudaMemcpyDeviceToHost, me->stream));
  REQUIRE(cudaStreamEndCapture(second, &graph) == cudaErrorStreamCaptureUnsupported);
  CUDA(cudaStreamEndCapture(me->stream, &graph));
  CUDA(cudaStreamIsCapturing(second, &status));
  REQUIRE(status == cudaStreamCaptureStatusNone);
  REQUIRE(cudaStreamWaitEvent(second, fork_event, 0) == cudaErrorStreamCaptureUnsupported);
  CUDA(cudaGraphInstantiate(&exec, graph, 0));
  CUDA(cudaGraphDestroy(graph)); /* the executable does not need it any more */
  CUDA(cudaMemcpy(host, in, bytes, cudaMemcpyDeviceToHost));
  REQUIRE(host[0] == 0); /* capturing runs nothing */

  for (int replay = 1; replay <= REPLAYS; replay++) {
    CUDA(cudaGraphLaunch(exec, replay % 2 == 0 ? me->stream : second));
    /* an eager call on the same communicator, queued after the launch, must come after it */
    NCCL(ncclAllReduce(side, side, COUNT, ncclInt, ncclMax, me->comm, second));
    CUDA(cudaDeviceSynchronize());
    for (int i = 0; i < COUNT; i++) REQUIRE(host[i] == me->n * replay);
  }
  for (int i = 0; i < 50; i++) CUDA(cudaGraphLaunch(exec, me->stream));
  CUDA(cudaGraphExecDestroy(exec)); /* while launches are queued */
  CUDA(cudaStreamSynchronize(me->stream));
  for (int i = 0; i < COUNT; i++) REQUIRE(host[i] == me->n * (REPLAYS + 50));
  CUDA(cudaMemcpy(host, side, bytes, cudaMemcpyDeviceToHost));
  for (int i = 0; i < COUNT; i++) REQUIRE(host[i] == 1000000);
  CUDA(cudaEventDestroy(fork_event));
  CUDA(cudaEventDestroy(join_event));
  CUDA(cudaStreamDestroy(second));
  CUDA(cudaFree(in));
  CUDA(cudaFree(out));
  CUDA(cudaFree(side));
  free(host);
}

void test_graphs(void **state)
{
  (void)state;
  run_ranks(1, graph_body);
  run_ranks(4, graph_body);
}

/* ---- windows ------------------------------------------------------------------------------- */

/* What must fail, fails on all ranks. What kernels do with windows is in kernels.cu. */
static void window_body(struct rank *me)
{
  char *memory = NULL, *plain = device_memory(8192), local[64];
  ncclWindow_t window = NULL;
  NCCL(ncclMemAlloc((void **)&memory, 16384));
  NCCL(ncclCommWindowRegister(me->comm, memory + 4096, 4096, &window, NCCL_WIN_COLL_SYMMETRIC));
  NCCL(ncclCommWindowDeregister(me->comm, window));
  const bool last = me->rank == me->n - 1;
  const struct {
    void *buffer;
    size_t bytes;
    const char *sentence;
  } wrong[] = {
      {memory, last ? 4096 : 8192, "registers 4096 bytes and rank 0 8192"},
      {memory, last ? 8192 : 4096, "registers 8192 bytes and rank 0 4096"},
      {memory, 1 << 20, "allowed: 1 to 16384"},
      {memory, 0, "registers 0 bytes"},
      {memory + 64, 64, "multiple of 4096"},
      {last ? plain : memory, 4096, "the memory of rank 2 is not from ncclMemAlloc"},
      {last ? local : memory, 64, "the memory of rank 2 is not from ncclMemAlloc"},
  };
  for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
    window = NULL;
    REQUIRE(ncclCommWindowRegister(me->comm, wrong[i].buffer, wrong[i].bytes, &window, 0) !=
                ncclSuccess &&
            window == NULL);
    REQUIRE(strstr(ncclGetLastError(NULL), wrong[i].sentence) != NULL);
  }
  NCCL(ncclMemFree(memory));
  CUDA(cudaFree(plain));
}

void test_windows(void **state)
{
  (void)state;
  run_ranks(3, window_body);
}
