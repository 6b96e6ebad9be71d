/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the CPU stand-in: capture and replay. */
#include "standin.h"

struct add {
  int *to;
  size_t count;
  int value;
};

static void add_kernel(const void *argument)
{
  const struct add *add = argument;
  for (size_t i = 0; i < add->count; i++) add->to[i] += add->value;
}

void add_to(cudaStream_t stream, int *to, size_t count, int value)
{
  struct add add = {to, count, value};
  CUDA(cpu_launch(stream, add_kernel, &add, sizeof(add)));
}

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
  CUDA(cudaEventCreateWithFlags(&fork_event, cudaEventDisableTiming));
  CUDA(cudaEventCreate(&join_event));
  CUDA(cudaMemset(in, 0, bytes));

  CUDA(cudaStreamBeginCapture(me->stream, cudaStreamCaptureModeThreadLocal));
  CUDA(cudaStreamIsCapturing(me->stream, &status));
  REQUIRE(status == cudaStreamCaptureStatusActive);
  REQUIRE(cudaStreamSynchronize(me->stream) == cudaErrorStreamCaptureUnsupported);
  add_to(me->stream, in, COUNT, 1);
  CUDA(cudaEventRecord(fork_event, me->stream));
  CUDA(cudaStreamWaitEvent(second, fork_event, 0));
  CUDA(cudaStreamIsCapturing(second, &status));
  REQUIRE(status == cudaStreamCaptureStatusActive);
  CUDA(cudaMemsetAsync(side, 0, bytes, second));
  add_to(second, side, COUNT, 1000000);
  NCCL(ncclGroupStart());
  NCCL(ncclAllReduce(in, out, COUNT, ncclInt, ncclSum, me->comm, me->stream));
  NCCL(ncclGroupEnd());
  CUDA(cudaEventRecord(join_event, second));
  CUDA(cudaStreamWaitEvent(me->stream, join_event, 0));
  CUDA(cudaMemcpyAsync(host, out, bytes, cudaMemcpyDeviceToHost, me->stream));
  CUDA(cudaStreamEndCapture(me->stream, &graph));
  CUDA(cudaStreamIsCapturing(second, &status));
  REQUIRE(status == cudaStreamCaptureStatusNone);
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

void test_capture_errors(void **state)
{
  (void)state;
  cudaStream_t a, b, c;
  cudaEvent_t event, other;
  cudaGraph_t graph = NULL;
  CUDA(cudaSetDevice(0));
  CUDA(cudaStreamCreate(&a));
  CUDA(cudaStreamCreate(&b));
  CUDA(cudaStreamCreate(&c));
  CUDA(cudaEventCreate(&event));
  CUDA(cudaEventCreate(&other));
  int *memory = device_memory(sizeof(int));

  REQUIRE(cudaStreamEndCapture(a, &graph) == cudaErrorInvalidValue);
  REQUIRE(cudaStreamBeginCapture(NULL, cudaStreamCaptureModeGlobal) ==
          cudaErrorStreamCaptureUnsupported);
  CUDA(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
  CUDA(cudaEventRecord(event, a));
  CUDA(cudaStreamWaitEvent(b, event, 0));
  add_to(b, memory, 1, 1);
  REQUIRE(cudaStreamEndCapture(b, &graph) == cudaErrorStreamCaptureUnmatched);
  CUDA(cudaStreamEndCapture(a, &graph));
  CUDA(cudaGraphDestroy(graph));
  /* an event from a capture is of no use outside */
  REQUIRE(cudaStreamWaitEvent(a, event, 0) == cudaErrorCapturedEvent);
  /* an event from outside is of no use in a capture, and captures do not mix */
  CUDA(cudaEventRecord(event, c));
  CUDA(cudaStreamBeginCapture(a, cudaStreamCaptureModeRelaxed));
  REQUIRE(cudaStreamBeginCapture(a, cudaStreamCaptureModeRelaxed) ==
          cudaErrorStreamCaptureUnsupported);
  REQUIRE(cudaStreamWaitEvent(a, event, 0) == cudaErrorStreamCaptureIsolation);
  REQUIRE(cudaStreamDestroy(a) == cudaErrorStreamCaptureUnsupported);
  CUDA(cudaStreamEndCapture(a, &graph));
  CUDA(cudaGraphDestroy(graph));
  CUDA(cudaFree(memory));
  CUDA(cudaEventDestroy(event));
  CUDA(cudaEventDestroy(other));
  CUDA(cudaStreamDestroy(a));
  CUDA(cudaStreamDestroy(b));
  CUDA(cudaStreamDestroy(c));
}
