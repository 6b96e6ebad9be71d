/* SPDX-License-Identifier: Apache-2.0 */
/* An event remembers a stream and how many operations that had when the event was recorded. To wait
 * for it is to wait until the stream has run so many. */
#include "internal.h"

#include <stdlib.h>
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what is in all events */

struct CUevent_st {
  atomic_int references; /* of the program and of queued records */
  bool timing;
  struct CUstream_st *stream; /* of the last record, with a reference; NULL if there is none */
  uint64_t number;
  int pending;          /* records that are queued */
  struct timespec time; /* of the record that was reached last */
  uint64_t capture;     /* that it was recorded in last, or 0 */
};

static void release_event(cudaEvent_t event)
{
  if (atomic_fetch_sub(&event->references, 1) > 1) return;
  if (event->stream != NULL) cpu_stream_release(event->stream);
  free(event);
}

static void run_record(const void *args)
{
  cudaEvent_t event = *(const cudaEvent_t *)args;
  pthread_mutex_lock(&lock);
  event->pending--;
  clock_gettime(CLOCK_MONOTONIC, &event->time);
  pthread_mutex_unlock(&lock);
}

static void release_record(const void *args)
{
  release_event(*(const cudaEvent_t *)args);
}

static cudaError_t create(cudaEvent_t *event, unsigned int flags)
{
  if (cpu_device(-1) == NULL) return cpu_error(cudaErrorNoDevice);
  if (event == NULL || flags > (cudaEventBlockingSync | cudaEventDisableTiming))
    return cpu_error(cudaErrorInvalidValue);
  *event = cpu_allocate(sizeof(**event));
  atomic_init(&(*event)->references, 1);
  (*event)->timing = (flags & cudaEventDisableTiming) == 0;
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
  return create(event, cudaEventDefault);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
  return create(event, flags);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
  if (event == NULL) return cpu_error(cudaErrorInvalidResourceHandle);
  release_event(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle)
{
  if (event == NULL) return cpu_error(cudaErrorInvalidResourceHandle);
  struct CUstream_st *stream = cpu_stream(handle, -1);
  if (stream == NULL) return cpu_error(cudaErrorNoDevice);
  pthread_mutex_lock(&lock);
  event->capture = cpu_capture_of(stream);
  if (event->capture == 0) {
    atomic_fetch_add(&event->references, 1);
    event->pending++;
    cpu_stream_queue(stream, cpu_operation(run_record, release_record, &event, sizeof(event)));
    if (event->stream != NULL) cpu_stream_release(event->stream);
    event->stream = cpu_stream_retain(stream);
    event->number = cpu_stream_queued(stream);
  }
  pthread_mutex_unlock(&lock);
  return cudaSuccess;
}

/* The stream of the last record, with a reference, or NULL. */
static struct CUstream_st *recorded(cudaEvent_t event, uint64_t *number, uint64_t *capture)
{
  pthread_mutex_lock(&lock);
  struct CUstream_st *stream = event->stream != NULL ? cpu_stream_retain(event->stream) : NULL;
  *number = event->number;
  *capture = event->capture;
  pthread_mutex_unlock(&lock);
  return stream;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned int flags)
{
  if (event == NULL) return cpu_error(cudaErrorInvalidResourceHandle);
  if (flags != 0) return cpu_error(cudaErrorInvalidValue);
  struct CUstream_st *stream = cpu_stream(handle, -1);
  if (stream == NULL) return cpu_error(cudaErrorNoDevice);
  uint64_t number, capture;
  struct CUstream_st *before = recorded(event, &number, &capture);
  cudaError_t error = cudaSuccess;
  if (capture != 0) /* the order of the graph satisfies the wait */
    error = cpu_capture_join(stream, capture) ? cudaSuccess : cudaErrorStreamCaptureUnsupported;
  else if (before != NULL && cpu_capture_of(stream) != 0)
    error = cudaErrorStreamCaptureUnsupported;
  else if (before != NULL)
    cpu_stream_after(stream, before, number);
  if (before != NULL) cpu_stream_release(before);
  return cpu_error(error);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
  if (event == NULL) return cpu_error(cudaErrorInvalidResourceHandle);
  uint64_t number, capture;
  struct CUstream_st *stream = recorded(event, &number, &capture);
  if (stream == NULL) return cudaSuccess;
  cpu_stream_reach(stream, number);
  cpu_stream_release(stream);
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
  if (start == NULL || end == NULL || !start->timing || !end->timing)
    return cpu_error(cudaErrorInvalidResourceHandle);
  pthread_mutex_lock(&lock);
  bool ever = start->stream != NULL && end->stream != NULL;
  bool over = start->pending == 0 && end->pending == 0;
  *milliseconds = (float)((double)(end->time.tv_sec - start->time.tv_sec) * 1e3 +
                          (double)(end->time.tv_nsec - start->time.tv_nsec) / 1e6);
  pthread_mutex_unlock(&lock);
  if (!ever) return cpu_error(cudaErrorInvalidResourceHandle);
  return over ? cudaSuccess : cudaErrorNotReady;
}
