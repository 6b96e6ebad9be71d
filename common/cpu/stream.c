/* SPDX-License-Identifier: Apache-2.0 */
/* A stream is a queue of operations and one thread that runs them in order. Queued work is done
 * later, by that thread, so a program that forgets to synchronize fails here as well. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- operations ---------------------------------------------------------------------------- */

struct operation *cpu_operation(void (*run)(const void *args), void (*release)(const void *args),
                                const void *args, size_t bytes)
{
  struct operation *operation = cpu_allocate(sizeof(*operation) + bytes);
  operation->run = run;
  operation->release = release;
  if (bytes > 0) memcpy(operation->args, args, bytes);
  return operation;
}

void cpu_operation_free(struct operation *operation)
{
  if (operation->release != NULL) operation->release(operation->args);
  free(operation);
}

/* ---- streams ------------------------------------------------------------------------------- */

static _Thread_local struct CUstream_st *worker_of; /* the stream whose thread this is */

/* Like a sticky error of CUDA, but for one stream: the first one stays. */
void cpu_worker_fail(const char *sentence)
{
  struct CUstream_st *stream = worker_of;
  pthread_mutex_lock(&stream->device->lock);
  if (stream->failure[0] == '\0')
    snprintf(stream->failure, sizeof(stream->failure), "%s", sentence);
  pthread_mutex_unlock(&stream->device->lock);
  cpu_mistake(sentence);
}

static void *work(void *argument)
{
  struct CUstream_st *stream = worker_of = argument;
  struct device *device = stream->device;
  pthread_mutex_lock(&device->lock);
  for (;;) {
    while (stream->first == NULL && !stream->stop) pthread_cond_wait(&stream->work, &device->lock);
    struct operation *operation = stream->first;
    if (operation == NULL) break;
    stream->first = operation->next;
    pthread_mutex_unlock(&device->lock);
    operation->run(operation->args);
    cpu_operation_free(operation);
    pthread_mutex_lock(&device->lock);
    stream->done++;
    pthread_cond_broadcast(&device->progress);
  }
  pthread_mutex_unlock(&device->lock);
  return NULL;
}

/* Called with the lock. */
static struct CUstream_st *create(struct device *device, bool blocking)
{
  struct CUstream_st *stream = cpu_allocate(sizeof(*stream));
  stream->device = device;
  stream->blocking = blocking;
  stream->next = device->streams;
  device->streams = stream;
  pthread_cond_init(&stream->work, NULL);
  if (pthread_create(&stream->thread, NULL, work, stream) != 0)
    cpu_out_of_memory("the thread of a stream");
  return stream;
}

struct CUstream_st *cpu_stream(cudaStream_t handle, int number)
{
  if (handle != NULL && handle != cudaStreamLegacy) return handle;
  struct device *device = cpu_device(number);
  pthread_mutex_lock(&device->lock);
  if (device->default_stream == NULL) device->default_stream = create(device, true);
  struct CUstream_st *stream = device->default_stream;
  pthread_mutex_unlock(&device->lock);
  return stream;
}

/* Called with the lock. */
static void append(struct CUstream_st *stream, struct operation *operation)
{
  if (stream->first == NULL)
    stream->first = operation;
  else
    stream->last->next = operation;
  stream->last = operation;
  stream->queued++;
  pthread_cond_signal(&stream->work);
}

struct wait {
  struct CUstream_st *before;
  uint64_t number;
};

static void run_wait(const void *args)
{
  const struct wait *wait = args;
  cpu_stream_reach(wait->before, wait->number);
}

static struct operation *wait_for(struct CUstream_st *before, uint64_t number)
{
  struct wait wait = {before, number};
  return cpu_operation(run_wait, NULL, &wait, sizeof(wait));
}

/* What comes next in the default stream waits for all blocking streams, and in a blocking stream
 * for the default one. Called with the lock. */
static void keep_order(struct CUstream_st *stream)
{
  struct CUstream_st *standard = stream->device->default_stream;
  if (!stream->blocking || standard == NULL) return;
  for (struct CUstream_st *other = stream->device->streams; other != NULL; other = other->next)
    if (other->blocking && other != stream && (stream == standard || other == standard) &&
        other->done < other->queued)
      append(stream, wait_for(other, other->queued));
}

void cpu_stream_queue(struct CUstream_st *stream, struct operation *operation)
{
  if (cpu_capture_operation(stream, operation)) return;
  if (operation->queued != NULL) operation->queued(operation->args, stream);
  pthread_mutex_lock(&stream->device->lock);
  keep_order(stream);
  append(stream, operation);
  pthread_mutex_unlock(&stream->device->lock);
}

uint64_t cpu_stream_queued(struct CUstream_st *stream)
{
  pthread_mutex_lock(&stream->device->lock);
  uint64_t number = stream->queued;
  pthread_mutex_unlock(&stream->device->lock);
  return number;
}

/* Called with the lock. */
static void reach(struct CUstream_st *stream, uint64_t number)
{
  while (stream->done < number) pthread_cond_wait(&stream->device->progress, &stream->device->lock);
}

void cpu_stream_reach(struct CUstream_st *stream, uint64_t number)
{
  pthread_mutex_lock(&stream->device->lock);
  reach(stream, number);
  pthread_mutex_unlock(&stream->device->lock);
}

bool cpu_stream_reached(struct CUstream_st *stream, uint64_t number)
{
  pthread_mutex_lock(&stream->device->lock);
  const bool reached = stream->done >= number;
  pthread_mutex_unlock(&stream->device->lock);
  return reached;
}

void cpu_stream_after(struct CUstream_st *stream, struct CUstream_st *before, uint64_t number)
{
  cpu_stream_queue(stream, wait_for(before, number));
}

cudaError_t cpu_stream_wait(struct CUstream_st *stream)
{
  if (cpu_capture_of(stream) != 0) return cudaErrorStreamCaptureUnsupported;
  pthread_mutex_lock(&stream->device->lock);
  if (stream == stream->device->default_stream) keep_order(stream);
  reach(stream, stream->queued);
  cudaError_t error = stream->failure[0] == '\0'
                          ? cudaSuccess
                          : cpu_error_because(cudaErrorLaunchFailure, "%s", stream->failure);
  pthread_mutex_unlock(&stream->device->lock);
  return error;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
  struct device *device = cpu_device(-1);
  pthread_mutex_lock(&device->lock);
  *stream = create(device, (flags & cudaStreamNonBlocking) == 0);
  pthread_mutex_unlock(&device->lock);
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority)
{
  (void)priority; /* all have the same */
  return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
  *least = *greatest = 0;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
  if (stream == NULL) return cpu_error(cudaErrorInvalidResourceHandle);
  if (cpu_capture_of(stream) != 0) return cpu_error(cudaErrorStreamCaptureUnsupported);
  pthread_mutex_lock(&stream->device->lock);
  stream->stop = true;
  pthread_cond_signal(&stream->work);
  pthread_mutex_unlock(&stream->device->lock);
  pthread_join(stream->thread, NULL);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
  return cpu_error(cpu_stream_wait(cpu_stream(handle, -1)));
}

/* Like CUDA, reports a failure of the stream as well. */
cudaError_t cudaStreamQuery(cudaStream_t handle)
{
  struct CUstream_st *stream = cpu_stream(handle, -1);
  return cpu_stream_reached(stream, cpu_stream_queued(stream)) ? cpu_error(cpu_stream_wait(stream))
                                                               : cudaErrorNotReady;
}

/* ---- kernels and host functions ------------------------------------------------------------ */

cudaError_t cpu_launch(cudaStream_t handle, void (*fn)(const void *args), const void *args,
                       size_t bytes)
{
  cpu_stream_queue(cpu_stream(handle, -1), cpu_operation(fn, NULL, args, bytes));
  return cudaSuccess;
}

struct host_call {
  cudaHostFn_t function;
  void *user_data;
};

static void call_host(const void *args)
{
  const struct host_call *call = args;
  call->function(call->user_data);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *user_data)
{
  struct host_call call = {fn, user_data};
  return cpu_launch(stream, call_host, &call, sizeof(call));
}
