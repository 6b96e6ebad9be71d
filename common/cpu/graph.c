/* SPDX-License-Identifier: Apache-2.0 */
/* Capture puts operations into a list instead of a queue; a launch runs the list. The list keeps
 * the order in which the host captured, over all streams that take part. That order satisfies every
 * dependency, because an event can only be waited for after it was recorded; so event records and
 * waits need no place in the list. What is lost is that two branches could run at the same time. */
#include "internal.h"

#include <stdlib.h>

/* Guards captures, and what streams and events know about them. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct CUgraph_st {
  atomic_int references;
  size_t size;
  struct operation *first, *last;
};

struct capture {
  int references; /* of the capture itself while active, and of events recorded in it */
  unsigned long long id;
  bool active;
  struct CUgraph_st *graph;
  struct CUstream_st *streams; /* list of those that take part; the last is where it began */
};

struct CUgraphExec_st {
  atomic_int references; /* of the program and of queued launches */
  struct CUgraph_st *graph;
  struct order order; /* launches of one executable graph never overlap */
};

static void release_graph(struct CUgraph_st *graph)
{
  if (atomic_fetch_sub(&graph->references, 1) > 1) return;
  while (graph->first != NULL) {
    struct operation *operation = graph->first;
    graph->first = operation->next;
    cpu_operation_free(operation);
  }
  free(graph);
}

static void release_exec(cudaGraphExec_t exec)
{
  if (atomic_fetch_sub(&exec->references, 1) > 1) return;
  release_graph(exec->graph);
  cpu_order_destroy(&exec->order);
  free(exec);
}

/* ---- capture ------------------------------------------------------------------------------- */

static void release_capture(struct capture *capture)
{
  if (--capture->references == 0) free(capture);
}

static void take_part(struct capture *capture, struct CUstream_st *stream)
{
  stream->capture = capture;
  stream->next_captured = capture->streams;
  stream->captured = 0;
  stream->joined = false;
  stream->device->capturing++;
  capture->streams = stream;
}

bool cpu_is_capturing(struct CUstream_st *stream)
{
  pthread_mutex_lock(&lock);
  bool capturing = stream->capture != NULL;
  pthread_mutex_unlock(&lock);
  return capturing;
}

bool cpu_device_is_capturing(struct device *device)
{
  pthread_mutex_lock(&lock);
  bool capturing = device->capturing > 0;
  pthread_mutex_unlock(&lock);
  return capturing;
}

static void count_operation(struct CUstream_st *stream)
{
  stream->captured++;
  stream->joined = false;
}

bool cpu_capture_operation(struct CUstream_st *stream, struct operation *operation)
{
  pthread_mutex_lock(&lock);
  bool capturing = stream->capture != NULL;
  if (capturing) {
    struct CUgraph_st *graph = stream->capture->graph;
    if (graph->first == NULL)
      graph->first = operation;
    else
      graph->last->next = operation;
    graph->last = operation;
    graph->size++;
    count_operation(stream);
  }
  pthread_mutex_unlock(&lock);
  return capturing;
}

bool cpu_capture_record(struct CUstream_st *stream, struct capture_point *point)
{
  pthread_mutex_lock(&lock);
  if (point->capture != NULL) release_capture(point->capture);
  *point = (struct capture_point){stream->capture, stream, stream->captured};
  bool capturing = point->capture != NULL;
  if (capturing) point->capture->references++;
  pthread_mutex_unlock(&lock);
  return capturing;
}

/* A wait under capture is a dependency: it may pull the waiting stream into the capture (fork) and
 * it may bring the work of the other stream back (join). */
bool cpu_capture_wait(struct CUstream_st *stream, const struct capture_point *point, bool recorded,
                      cudaError_t *error)
{
  pthread_mutex_lock(&lock);
  bool concerned = stream->capture != NULL || point->capture != NULL;
  *error = cudaSuccess;
  if (point->capture == NULL) {
    if (stream->capture != NULL && recorded) *error = cudaErrorStreamCaptureIsolation;
  } else if (!point->capture->active) {
    *error = cudaErrorCapturedEvent;
  } else if (stream->capture != NULL && stream->capture != point->capture) {
    *error = cudaErrorStreamCaptureMerge;
  } else {
    if (stream->capture == NULL) take_part(point->capture, stream);
    if (point->stream != stream) {
      count_operation(stream);
      if (point->captured == point->stream->captured) point->stream->joined = true;
    }
  }
  pthread_mutex_unlock(&lock);
  return concerned;
}

bool cpu_capture_happened(const struct capture_point *point)
{
  pthread_mutex_lock(&lock);
  bool happened = point->capture != NULL;
  pthread_mutex_unlock(&lock);
  return happened;
}

void cpu_capture_forget(struct capture_point *point)
{
  pthread_mutex_lock(&lock);
  if (point->capture != NULL) release_capture(point->capture);
  point->capture = NULL;
  pthread_mutex_unlock(&lock);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
  if (mode < cudaStreamCaptureModeGlobal || mode > cudaStreamCaptureModeRelaxed)
    return cpu_error(cudaErrorInvalidValue);
  if (stream == NULL) return cpu_error(cudaErrorStreamCaptureUnsupported);
  struct capture *capture = cpu_allocate(sizeof(*capture));
  capture->references = 1;
  static atomic_ullong ids;
  capture->id = ++ids;
  capture->active = true;
  capture->graph = cpu_allocate(sizeof(*capture->graph));
  atomic_init(&capture->graph->references, 1);
  pthread_mutex_lock(&lock);
  bool already = stream->capture != NULL;
  if (!already) take_part(capture, stream);
  pthread_mutex_unlock(&lock);
  if (!already) return cudaSuccess;
  free(capture->graph);
  free(capture);
  return cpu_error(cudaErrorStreamCaptureUnsupported);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
  if (stream == NULL || graph == NULL) return cpu_error(cudaErrorInvalidValue);
  *graph = NULL;
  pthread_mutex_lock(&lock);
  struct capture *capture = stream->capture;
  if (capture == NULL || stream->next_captured != NULL) {
    pthread_mutex_unlock(&lock);
    return cpu_error(capture == NULL ? cudaErrorInvalidValue : cudaErrorStreamCaptureUnmatched);
  }
  bool joined = true;
  for (struct CUstream_st *each = capture->streams, *next; each != NULL; each = next) {
    next = each->next_captured;
    joined = joined && (each == stream || each->joined);
    each->capture = NULL;
    each->next_captured = NULL;
    each->device->capturing--;
  }
  struct CUgraph_st *captured = capture->graph;
  capture->active = false;
  release_capture(capture);
  pthread_mutex_unlock(&lock);
  if (joined) {
    *graph = captured;
    return cudaSuccess;
  }
  release_graph(captured);
  return cpu_error(cudaErrorStreamCaptureUnjoined);
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const void **dependencies, const void **edges, size_t *number)
{
  if (graph != NULL || dependencies != NULL || edges != NULL || number != NULL)
    return cpu_error(cudaErrorInvalidValue);
  const cudaError_t error = cudaStreamIsCapturing(stream, status);
  if (error != cudaSuccess || *status == cudaStreamCaptureStatusNone || id == NULL) return error;
  pthread_mutex_lock(&lock);
  *id = stream->capture->id;
  pthread_mutex_unlock(&lock);
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
  if (status == NULL) return cpu_error(cudaErrorInvalidValue);
  bool capturing = stream != NULL && cpu_is_capturing(stream);
  *status = capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

/* ---- graphs -------------------------------------------------------------------------------- */

/* A launch has a ticket for each operation of the graph that needs one, drawn by the host when it
 * launches: to a communicator a launch is as if its operations were queued one by one. */
struct graph_launch {
  struct operation base;
  cudaGraphExec_t exec;
  uint64_t tickets[];
};

static void run_graph(struct operation *operation)
{
  const struct graph_launch *launch = (const struct graph_launch *)operation;
  size_t i = 0;
  for (struct operation *node = launch->exec->graph->first; node != NULL; node = node->next)
    cpu_operation_run(node, launch->tickets[i++]);
}

static void release_launch(struct operation *operation)
{
  release_exec(((struct graph_launch *)operation)->exec);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
  (void)flags; /* they tune memory and upload, of which there is none */
  if (exec == NULL || graph == NULL) return cpu_error(cudaErrorInvalidValue);
  *exec = cpu_allocate(sizeof(**exec));
  atomic_init(&(*exec)->references, 1);
  atomic_fetch_add(&graph->references, 1);
  (*exec)->graph = graph;
  cpu_order_init(&(*exec)->order);
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle)
{
  if (exec == NULL) return cpu_error(cudaErrorInvalidValue);
  struct CUstream_st *stream = cpu_stream(handle, -1);
  if (stream == NULL) return cpu_error(cudaErrorNoDevice);
  if (cpu_is_capturing(stream)) return cpu_error(cudaErrorStreamCaptureUnsupported);
  const struct CUgraph_st *graph = exec->graph;
  struct graph_launch *launch = cpu_operation(
      sizeof(*launch) + graph->size * sizeof(launch->tickets[0]), run_graph, release_launch);
  atomic_fetch_add(&exec->references, 1);
  launch->exec = exec;
  launch->base.order = &exec->order;
  size_t i = 0;
  for (struct operation *node = graph->first; node != NULL; node = node->next)
    launch->tickets[i++] = cpu_operation_queue(node);
  cpu_stream_queue(stream, &launch->base);
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
  if (exec == NULL) return cpu_error(cudaErrorInvalidValue);
  release_exec(exec);
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
  if (graph == NULL) return cpu_error(cudaErrorInvalidValue);
  release_graph(graph);
  return cudaSuccess;
}
