/* SPDX-License-Identifier: Apache-2.0 */
/* An event stores a stream and the number of operations queued there when it was recorded. A wait
 * for the event ends when the stream has run that many. */
#include "internal.h"

#include <stdlib.h>
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the contents of all events */

struct CUevent_st {
  int references; /* of the program and of queued records */
  bool timing;
  struct CUstream_st *stream; /* of the last record; NULL if there is none */
  uint64_t number;
  struct timespec time; /* of the last record that was reached */
  uint64_t capture;     /* the last one that it was recorded in, or 0 */
};

static void run_record(const void *args)
{
  cudaEvent_t event = *(const cudaEvent_t *)args;
  pthread_mutex_lock(&lock);
  clock_gettime(CLOCK_MONOTONIC, &event->time);
  pthread_mutex_unlock(&lock);
}

static void release_event(const void *args)
{
  cudaEvent_t event = *(const cudaEvent_t *)args;
  pthread_mutex_lock(&lock);
  const bool last = --event->references == 0;
  pthread_mutex_unlock(&lock);
  if (last) free(event);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
  *event = cpu_allocate(sizeof(**event));
  (*event)->references = 1;
  (*event)->timing = (flags & cudaEventDisableTiming) == 0;
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
  if (event == NULL) return cpu_error(cudaErrorInvalidResourceHandle);
  release_event(&event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle)
{
  struct CUstream_st *stream = cpu_stream(handle, -1);
  pthread_mutex_lock(&lock);
  event->capture = cpu_capture_of(stream);
  if (event->capture == 0) {
    event->references++;
    cpu_stream_queue(stream, cpu_operation(run_record, release_event, &event, sizeof(event)));
    event->stream = stream;
    event->number = cpu_stream_queued(stream);
  }
  pthread_mutex_unlock(&lock);
  return cudaSuccess;
}

static struct CUevent_st copy_of(cudaEvent_t event)
{
  pthread_mutex_lock(&lock);
  struct CUevent_st copy = *event;
  pthread_mutex_unlock(&lock);
  return copy;
}

static bool reached(const struct CUevent_st *event)
{
  return event->stream == NULL || cpu_stream_reached(event->stream, event->number);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned int flags)
{
  (void)flags; /* no flag has an effect */
  struct CUstream_st *stream = cpu_stream(handle, -1);
  const struct CUevent_st last = copy_of(event);
  if (last.capture != 0) /* the order of the graph satisfies the wait */
    return cpu_capture_join(stream, last.capture) ? cudaSuccess
                                                  : cpu_error(cudaErrorStreamCaptureUnsupported);
  if (last.stream == NULL) return cudaSuccess;
  if (cpu_capture_of(stream) != 0) return cpu_error(cudaErrorStreamCaptureUnsupported);
  cpu_stream_after(stream, last.stream, last.number);
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
  const struct CUevent_st last = copy_of(event);
  if (last.stream != NULL) cpu_stream_reach(last.stream, last.number);
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
  const struct CUevent_st last = copy_of(event);
  return reached(&last) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
  const struct CUevent_st from = copy_of(start), to = copy_of(end);
  if (from.stream == NULL || to.stream == NULL || !from.timing || !to.timing)
    return cpu_error(cudaErrorInvalidResourceHandle);
  if (!reached(&from) || !reached(&to)) return cudaErrorNotReady;
  *milliseconds = (float)((double)(to.time.tv_sec - from.time.tv_sec) * 1e3 +
                          (double)(to.time.tv_nsec - from.time.tv_nsec) / 1e6);
  return cudaSuccess;
}
