/* SPDX-License-Identifier: Apache-2.0 */
/* The control block, in memory that all ranks of a communicator map: how they meet, how one wakes
 * another, and how all hear that one has failed. Whoever waits here sleeps; nobody ever spins. */
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* A number that goes up, and those who sleep until it has. */
struct channel {
  pthread_mutex_t lock;
  pthread_cond_t moved;
  uint64_t count;
};

struct meeting {
  struct channel channel; /* counts the meetings that were completed; its lock guards the rest */
  int arrived;
  /* Two sets in turn: a rank can enter meeting k + 2 only when all have left meeting k. */
  char notes[2][MAX_RANKS][MEETING_BYTES];
};

struct control {
  uint64_t nonce;
  atomic_bool failed;
  char failure[SENTENCE]; /* written before `failed` becomes true, then never again */
  pthread_mutex_t lock;   /* guards failing, and the next two */
  int nranks;
  uint64_t joined; /* one bit per rank */
  struct meeting meetings[MEETINGS];
  struct channel bell[MAX_RANKS];
  struct letter letters[MAX_RANKS][MAX_RANKS];
};

/* ---- channels ------------------------------------------------------------------------------ */

static void mutex_init(pthread_mutex_t *lock)
{
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutex_init(lock, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

static void channel_init(struct channel *channel)
{
  pthread_condattr_t cond;
  mutex_init(&channel->lock);
  pthread_condattr_init(&cond);
  pthread_condattr_setpshared(&cond, PTHREAD_PROCESS_SHARED);
  pthread_condattr_setclock(&cond, CLOCK_MONOTONIC);
  pthread_cond_init(&channel->moved, &cond);
  pthread_condattr_destroy(&cond);
}

static void channel_wake(struct channel *channel, uint64_t steps)
{
  pthread_mutex_lock(&channel->lock);
  channel->count += steps;
  pthread_cond_broadcast(&channel->moved);
  pthread_mutex_unlock(&channel->lock);
}

/* ---- the control block --------------------------------------------------------------------- */

cudaError_t cpu_control_create(struct region **region, uint64_t nonce)
{
  cudaError_t error = cpu_region_create(REGION_CONTROL, 0, sizeof(struct control), region);
  if (error != cudaSuccess) return error;
  struct control *control = (struct control *)(*region)->base;
  control->nonce = nonce;
  mutex_init(&control->lock);
  for (int m = 0; m < MEETINGS; m++) channel_init(&control->meetings[m].channel);
  for (int r = 0; r < MAX_RANKS; r++) channel_init(&control->bell[r]);
  return cudaSuccess;
}

bool cpu_control_valid(const struct region *region, uint64_t nonce)
{
  return region->bytes >= sizeof(struct control) &&
         ((const struct control *)region->base)->nonce == nonce;
}

bool cpu_control_join(struct control *control, int rank, int nranks)
{
  uint64_t bit = UINT64_C(1) << rank;
  pthread_mutex_lock(&control->lock);
  if (control->nranks == 0) control->nranks = nranks;
  bool fits = control->nranks == nranks && (control->joined & bit) == 0;
  if (fits) control->joined |= bit;
  pthread_mutex_unlock(&control->lock);
  return fits;
}

void cpu_control_fail(struct control *control, const char *format, ...)
{
  va_list arguments;
  va_start(arguments, format);
  pthread_mutex_lock(&control->lock);
  if (!atomic_load(&control->failed))
    vsnprintf(control->failure, sizeof(control->failure), format, arguments);
  atomic_store(&control->failed, true);
  pthread_mutex_unlock(&control->lock);
  va_end(arguments);
  /* The count of a meeting stays: it was not completed. */
  for (int m = 0; m < MEETINGS; m++) channel_wake(&control->meetings[m].channel, 0);
  for (int r = 0; r < MAX_RANKS; r++) channel_wake(&control->bell[r], 1);
}

const char *cpu_control_failure(const struct control *control)
{
  return atomic_load(&control->failed) ? control->failure : NULL;
}

struct letter *cpu_letter(struct control *control, int from, int to)
{
  return &control->letters[from][to];
}

/* ---- meeting and waking -------------------------------------------------------------------- */

bool cpu_meet(ncclComm_t comm, enum meeting_of who, const void *mine, void *all, size_t bytes)
{
  struct control *control = comm->control;
  struct meeting *meeting = &control->meetings[who];
  struct channel *channel = &meeting->channel;
  pthread_mutex_lock(&channel->lock);
  uint64_t number = channel->count;
  char(*notes)[MEETING_BYTES] = meeting->notes[number % 2];
  if (bytes > 0) memcpy(notes[comm->rank], mine, bytes);
  if (++meeting->arrived == comm->nranks) {
    meeting->arrived = 0;
    channel->count++;
    pthread_cond_broadcast(&channel->moved);
  }
  while (channel->count == number && !atomic_load(&control->failed))
    pthread_cond_wait(&channel->moved, &channel->lock);
  bool met = channel->count != number; /* even if somebody who was faster has failed since */
  for (int r = 0; r < comm->nranks && bytes > 0; r++)
    memcpy((char *)all + (size_t)r * bytes, notes[r], bytes);
  pthread_mutex_unlock(&channel->lock);
  return met;
}

bool cpu_wait(ncclComm_t comm, bool (*ready)(const void *arg), const void *arg, double seconds)
{
  struct channel *bell = &comm->control->bell[comm->rank];
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  if (seconds < 0) seconds = 0;
  if (seconds > 1e8) seconds = 1e8; /* three years; more might not fit into the deadline */
  until.tv_sec += (time_t)seconds;
  until.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
  if (until.tv_nsec >= 1000000000L) {
    until.tv_nsec -= 1000000000L;
    until.tv_sec++;
  }
  for (int error = 0;;) {
    /* The count is read before the question is asked: what changes the answer later moves it. */
    pthread_mutex_lock(&bell->lock);
    uint64_t seen = bell->count;
    pthread_mutex_unlock(&bell->lock);
    if (ready(arg)) return true;
    if (error != 0 || atomic_load(&comm->control->failed)) return false;
    pthread_mutex_lock(&bell->lock);
    while (bell->count == seen && error == 0)
      error = pthread_cond_timedwait(&bell->moved, &bell->lock, &until);
    pthread_mutex_unlock(&bell->lock);
  }
}

void cpu_notify(ncclComm_t comm, int peer)
{
  channel_wake(&comm->control->bell[peer], 1);
}
