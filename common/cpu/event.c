/* SPDX-License-Identifier: Apache-2.0 */
/* An event is two numbers: how often it was recorded by the host, and up to which of these records
 * the streams have come. To wait for it is to wait until the second has reached the first as it was
 * when the wait was queued. */
#include "internal.h"

#include <stdlib.h>
#include <time.h>

struct CUevent_st {
  atomic_int references; /* of the program and of queued operations */
  bool timing;
  pthread_mutex_t lock;
  pthread_cond_t reached;
  uint64_t recorded, completed;
  struct timespec time; /* of the last completed record */
  cudaGraph_t capture;  /* that it was recorded in last, or NULL; guarded by graph.c */
};

struct event_operation {
  struct operation base;
  cudaEvent_t event;
  uint64_t number; /* the record that is made or waited for */
};

cudaEvent_t cpu_event_create(unsigned int flags)
{
  cudaEvent_t event = cpu_allocate(sizeof(*event));
  atomic_init(&event->references, 1);
  event->timing = (flags & cudaEventDisableTiming) == 0;
  pthread_mutex_init(&event->lock, NULL);
  pthread_cond_init(&event->reached, NULL);
  return event;
}

void cpu_event_release(cudaEvent_t event)
{
  if (atomic_fetch_sub(&event->references, 1) > 1) return;
  cpu_capture_forget(&event->capture);
  pthread_cond_destroy(&event->reached);
  pthread_mutex_destroy(&event->lock);
  free(event);
}

static void release(struct operation *operation)
{
  cpu_event_release(((struct event_operation *)operation)->event);
}

static void queue(struct CUstream_st *stream, cudaEvent_t event, uint64_t number,
                  void (*run)(struct operation *))
{
  struct event_operation *operation = cpu_operation(sizeof(*operation), run, release);
  atomic_fetch_add(&event->references, 1);
  operation->event = event;
  operation->number = number;
  cpu_stream_queue(stream, &operation->base);
}

static void run_record(struct operation *operation)
{
  const struct event_operation *record = (const struct event_operation *)operation;
  cudaEvent_t event = record->event;
  pthread_mutex_lock(&event->lock);
  if (record->number > event->completed) {
    event->completed = record->number;
    clock_gettime(CLOCK_MONOTONIC, &event->time);
  }
  pthread_cond_broadcast(&event->reached);
  pthread_mutex_unlock(&event->lock);
}

static void wait_for(cudaEvent_t event, uint64_t number)
{
  pthread_mutex_lock(&event->lock);
  while (event->completed < number) pthread_cond_wait(&event->reached, &event->lock);
  pthread_mutex_unlock(&event->lock);
}

static void run_wait(struct operation *operation)
{
  const struct event_operation *wait = (const struct event_operation *)operation;
  wait_for(wait->event, wait->number);
}

static uint64_t recorded(cudaEvent_t event)
{
  pthread_mutex_lock(&event->lock);
  uint64_t number = event->recorded;
  pthread_mutex_unlock(&event->lock);
  return number;
}

cudaError_t cpu_event_record(cudaEvent_t event, struct CUstream_st *stream)
{
  if (cpu_capture_record(stream, &event->capture)) return cudaSuccess;
  pthread_mutex_lock(&event->lock);
  uint64_t number = ++event->recorded;
  pthread_mutex_unlock(&event->lock);
  queue(stream, event, number, run_record);
  return cudaSuccess;
}

cudaError_t cpu_event_wait(struct CUstream_st *stream, cudaEvent_t event)
{
  uint64_t number = recorded(event);
  cudaError_t error = cudaSuccess;
  if (cpu_capture_wait(stream, &event->capture, number > 0, &error)) return error;
  if (number > 0) queue(stream, event, number, run_wait);
  return cudaSuccess;
}

static cudaError_t create_public(cudaEvent_t *event, unsigned int flags)
{
  if (cpu_device(-1) == NULL) return cpu_error(cudaErrorNoDevice);
  if (event == NULL || flags > (cudaEventBlockingSync | cudaEventDisableTiming))
    return cpu_error(cudaErrorInvalidValue);
  *event = cpu_event_create(flags);
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
  return create_public(event, cudaEventDefault);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
  return create_public(event, flags);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
  if (event == NULL) return cpu_error(cudaErrorInvalidResourceHandle);
  cpu_event_release(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle)
{
  if (event == NULL) return cpu_error(cudaErrorInvalidResourceHandle);
  struct CUstream_st *stream = cpu_stream(handle, -1);
  return cpu_error(stream != NULL ? cpu_event_record(event, stream) : cudaErrorNoDevice);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned int flags)
{
  if (event == NULL) return cpu_error(cudaErrorInvalidResourceHandle);
  if (flags != 0) return cpu_error(cudaErrorInvalidValue);
  struct CUstream_st *stream = cpu_stream(handle, -1);
  return cpu_error(stream != NULL ? cpu_event_wait(stream, event) : cudaErrorNoDevice);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
  if (event == NULL) return cpu_error(cudaErrorInvalidResourceHandle);
  wait_for(event, recorded(event));
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
  if (event == NULL) return cpu_error(cudaErrorInvalidResourceHandle);
  pthread_mutex_lock(&event->lock);
  bool done = event->completed == event->recorded;
  pthread_mutex_unlock(&event->lock);
  return done ? cudaSuccess : cudaErrorNotReady;
}

/* When the last record was completed, in milliseconds; an error if there is none. */
static cudaError_t time_of(cudaEvent_t event, double *milliseconds)
{
  if (event == NULL) return cudaErrorInvalidResourceHandle;
  pthread_mutex_lock(&event->lock);
  bool never = event->recorded == 0, over = event->completed == event->recorded;
  *milliseconds = (double)event->time.tv_sec * 1e3 + (double)event->time.tv_nsec / 1e6;
  pthread_mutex_unlock(&event->lock);
  return never || !event->timing ? cudaErrorInvalidResourceHandle
         : over                  ? cudaSuccess
                                 : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
  double from = 0, to = 0;
  cudaError_t error = time_of(start, &from);
  if (error == cudaSuccess) error = time_of(end, &to);
  *milliseconds = (float)(to - from);
  return error == cudaErrorNotReady ? error : cpu_error(error);
}
