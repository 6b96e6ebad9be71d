/* SPDX-License-Identifier: Apache-2.0 */
/* Capture puts operations into a list instead of a queue; a launch runs the list. The list keeps
 * the order in which the host captured, over all streams that take part. That order satisfies every
 * dependency, because an event can only be waited for after it was recorded; so event records and
 * waits need no place in the list. What is lost is that two branches could run at the same time. */
#include "internal.h"

#include <stdlib.h>

/* Guards captures, and what streams and events know of them. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* A graph, from its capture on, and just as well an executable one. */
struct CUgraph_st {
  atomic_int references;      /* of the program, of queued launches, of streams and events */
  struct CUstream_st *origin; /* of the capture; NULL when that has ended */
  unsigned long long id;
  struct operation *first, *last;
};

static void release_graph(struct CUgraph_st *graph)
{
  if (graph == NULL || atomic_fetch_sub(&graph->references, 1) > 1) return;
  while (graph->first != NULL) {
    struct operation *operation = graph->first;
    graph->first = operation->next;
    cpu_operation_free(operation);
  }
  free(graph);
}

/* ---- capture ------------------------------------------------------------------------------- */

static void set(struct CUgraph_st **to, struct CUgraph_st *graph)
{
  if (graph != NULL) atomic_fetch_add(&graph->references, 1);
  release_graph(*to);
  *to = graph;
}

/* With the lock: the graph that the stream is captured into, or NULL. A stream that was pulled in
 * by an event is not told of the end. */
static struct CUgraph_st *capture_of(struct CUstream_st *stream)
{
  if (stream->capture != NULL && stream->capture->origin == NULL) set(&stream->capture, NULL);
  return stream->capture;
}

bool cpu_is_capturing(struct CUstream_st *stream)
{
  pthread_mutex_lock(&lock);
  bool capturing = capture_of(stream) != NULL;
  pthread_mutex_unlock(&lock);
  return capturing;
}

bool cpu_capture_operation(struct CUstream_st *stream, struct operation *operation)
{
  pthread_mutex_lock(&lock);
  struct CUgraph_st *graph = capture_of(stream);
  if (graph != NULL) {
    if (graph->first == NULL)
      graph->first = operation;
    else
      graph->last->next = operation;
    graph->last = operation;
  }
  pthread_mutex_unlock(&lock);
  return graph != NULL;
}

bool cpu_capture_record(struct CUstream_st *stream, cudaGraph_t *recorded)
{
  pthread_mutex_lock(&lock);
  set(recorded, capture_of(stream));
  bool capturing = *recorded != NULL;
  pthread_mutex_unlock(&lock);
  return capturing;
}

/* A wait under capture is a dependency, which the order of the list satisfies; it may pull the
 * waiting stream into the capture. */
bool cpu_capture_wait(struct CUstream_st *stream, const cudaGraph_t *point, bool outside,
                      cudaError_t *error)
{
  pthread_mutex_lock(&lock);
  struct CUgraph_st *recorded = *point, *capture = capture_of(stream);
  bool concerned = capture != NULL || recorded != NULL;
  *error = cudaSuccess;
  if (recorded == NULL) {
    if (capture != NULL && outside) *error = cudaErrorStreamCaptureIsolation;
  } else if (recorded->origin == NULL) {
    *error = cudaErrorCapturedEvent;
  } else if (capture == NULL) {
    set(&stream->capture, recorded);
  }
  pthread_mutex_unlock(&lock);
  return concerned;
}

void cpu_capture_forget(cudaGraph_t *recorded)
{
  pthread_mutex_lock(&lock);
  set(recorded, NULL);
  pthread_mutex_unlock(&lock);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
  static unsigned long long ids;
  if (mode < cudaStreamCaptureModeGlobal || mode > cudaStreamCaptureModeRelaxed)
    return cpu_error(cudaErrorInvalidValue);
  if (stream == NULL || cpu_is_capturing(stream))
    return cpu_error(cudaErrorStreamCaptureUnsupported);
  struct CUgraph_st *graph = cpu_allocate(sizeof(*graph));
  graph->origin = stream;
  pthread_mutex_lock(&lock);
  graph->id = ++ids;
  set(&stream->capture, graph);
  pthread_mutex_unlock(&lock);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
  cudaError_t error = cudaSuccess;
  *graph = NULL;
  pthread_mutex_lock(&lock);
  struct CUgraph_st *capture = stream != NULL ? capture_of(stream) : NULL;
  if (capture == NULL) {
    error = cudaErrorInvalidValue;
  } else if (capture->origin != stream) {
    error = cudaErrorStreamCaptureUnmatched;
  } else {
    capture->origin = NULL;
    stream->capture = NULL;
    *graph = capture; /* with the stream's reference */
  }
  pthread_mutex_unlock(&lock);
  return cpu_error(error);
}

static cudaError_t capture_info(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                unsigned long long *id)
{
  pthread_mutex_lock(&lock);
  const struct CUgraph_st *capture = stream != NULL ? capture_of(stream) : NULL;
  *status = capture != NULL ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  if (capture != NULL && id != NULL) *id = capture->id;
  pthread_mutex_unlock(&lock);
  return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const void **dependencies, const void **edges, size_t *number)
{
  bool all_null = graph == NULL && dependencies == NULL && edges == NULL && number == NULL;
  return all_null ? capture_info(stream, status, id) : cpu_error(cudaErrorInvalidValue);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
  return capture_info(stream, status, NULL);
}

/* ---- graphs -------------------------------------------------------------------------------- */

struct graph_launch {
  struct operation base;
  struct CUgraph_st *graph;
};

static void run_graph(struct operation *operation)
{
  const struct graph_launch *launch = (const struct graph_launch *)operation;
  for (struct operation *node = launch->graph->first; node != NULL; node = node->next)
    node->run(node);
}

static void release_launch(struct operation *operation)
{
  release_graph(((struct graph_launch *)operation)->graph);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
  (void)flags; /* they tune memory and upload, of which there is none */
  if (graph == NULL) return cpu_error(cudaErrorInvalidValue);
  *exec = NULL;
  set(exec, graph);
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle)
{
  if (exec == NULL) return cpu_error(cudaErrorInvalidValue);
  struct CUstream_st *stream = cpu_stream(handle, -1);
  if (stream == NULL) return cpu_error(cudaErrorNoDevice);
  if (cpu_is_capturing(stream)) return cpu_error(cudaErrorStreamCaptureUnsupported);
  struct graph_launch *launch = cpu_operation(sizeof(*launch), run_graph, release_launch);
  set(&launch->graph, exec);
  for (struct operation *node = exec->first; node != NULL; node = node->next)
    if (node->queued != NULL) node->queued(node, stream);
  cpu_stream_queue(stream, &launch->base);
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
