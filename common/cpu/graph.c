/* SPDX-License-Identifier: Apache-2.0 */
/* Capture puts operations into a list instead of a queue; a launch runs the list. The list is in
 * the order of the capture, over all streams. That order satisfies every dependency, because a
 * program waits for an event only after it has recorded it. So event records and waits are not in
 * the list. The drawback: two branches never run at the same time. */
#include "internal.h"

#include <stdlib.h>

/* A graph from its capture on; the executable graph is the same struct. */
struct CUgraph_st {
  atomic_int references;      /* of the program and of queued launches */
  struct CUstream_st *origin; /* of the capture */
  uint64_t id;                /* of the capture, for streams and events */
  struct operation *first, **end;
};

static void release_graph(struct CUgraph_st *graph)
{
  if (graph == NULL || --graph->references > 0) return;
  while (graph->first != NULL) {
    struct operation *operation = graph->first;
    graph->first = operation->next;
    cpu_operation_free(operation);
  }
  free(graph);
}

/* ---- capture ------------------------------------------------------------------------------- */

static _Thread_local struct CUgraph_st *capture; /* begun by this thread, or NULL */

uint64_t cpu_capture_of(const struct CUstream_st *stream)
{
  return capture != NULL && stream->capture == capture->id ? capture->id : 0;
}

bool cpu_capture_operation(struct CUstream_st *stream, struct operation *operation)
{
  if (cpu_capture_of(stream) == 0) return false;
  *capture->end = operation;
  capture->end = &operation->next;
  return true;
}

bool cpu_capture_join(struct CUstream_st *stream, uint64_t id)
{
  if (capture == NULL || capture->id != id) return false;
  stream->capture = id;
  return true;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
  static atomic_ullong ids;
  (void)mode;
  if (stream == NULL || stream == cudaStreamLegacy || capture != NULL)
    return cpu_error(cudaErrorStreamCaptureUnsupported);
  capture = cpu_allocate(sizeof(*capture));
  capture->references = 1;
  capture->origin = stream;
  capture->end = &capture->first;
  stream->capture = capture->id = ++ids;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
  *graph = NULL;
  if (capture == NULL) return cpu_error(cudaErrorInvalidValue);
  if (capture->origin != stream) return cpu_error(cudaErrorStreamCaptureUnsupported);
  *graph = capture;
  capture = NULL;
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
  const bool active = cpu_capture_of(cpu_stream(stream, -1)) != 0;
  *status = active ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

/* ---- graphs -------------------------------------------------------------------------------- */

static void run_graph(const void *args)
{
  struct CUgraph_st *graph = *(struct CUgraph_st *const *)args;
  for (struct operation *node = graph->first; node != NULL; node = node->next)
    node->run(node->args);
}

static void release_launch(const void *args)
{
  release_graph(*(struct CUgraph_st *const *)args);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
  (void)flags; /* they tune memory and upload, which do not exist here */
  graph->references++;
  *exec = graph;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph,
                                          unsigned long long)
    __attribute__((alias("cudaGraphInstantiate")));

/* There is nothing to upload. */
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream)
{
  (void)exec, (void)stream;
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle)
{
  struct CUstream_st *stream = cpu_stream(handle, -1);
  if (cpu_capture_of(stream) != 0) return cpu_error(cudaErrorStreamCaptureUnsupported);
  exec->references++;
  for (struct operation *node = exec->first; node != NULL; node = node->next)
    if (node->queued != NULL) node->queued(node->args, stream);
  cpu_stream_queue(stream, cpu_operation(run_graph, release_launch, &exec, sizeof(exec)));
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
  release_graph(graph);
  return graph != NULL ? cudaSuccess : cpu_error(cudaErrorInvalidValue);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
  release_graph(exec);
  return exec != NULL ? cudaSuccess : cpu_error(cudaErrorInvalidValue);
}
