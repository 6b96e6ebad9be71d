/* SPDX-License-Identifier: Apache-2.0 */
/* The control block, in memory that all ranks of a communicator map. In it ranks meet, wake each
 * other, and learn that one has failed. A rank that waits here sleeps; it never spins. */
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

struct meeting {
  uint64_t number; /* of the current meeting */
  int arrived;
  /* Two sets, used in turn: a rank enters meeting k + 2 only when all have left meeting k. */
  char notes[2][MAX_RANKS][MEETING_BYTES];
};

/* The bell of a rank: how often it was rung. Threads of the rank sleep until it is rung again. */
struct bell {
  pthread_cond_t rung;
  uint64_t rings;
};

struct control {
  pthread_mutex_t lock;   /* guards all but the letters */
  atomic_bool failed;     /* set with the lock, read without */
  atomic_bool aborted;    /* by a rank; set before `failed` */
  char failure[SENTENCE]; /* written before `failed` becomes true, then never again */
  int nranks;
  uint64_t joined; /* one bit per rank */
  struct meeting meetings[MEETINGS];
  struct bell bells[MAX_RANKS];
  struct letter letters[MAX_RANKS][MAX_RANKS];
};

/* ---- the control block --------------------------------------------------------------------- */

struct region *cpu_control_create(void)
{
  struct region *region = cpu_region_create(REGION_CONTROL, 0, sizeof(struct control));
  struct control *control = (struct control *)region->base;
  pthread_mutexattr_t mutex;
  pthread_condattr_t cond;
  pthread_mutexattr_init(&mutex);
  pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
  pthread_mutex_init(&control->lock, &mutex);
  pthread_mutexattr_destroy(&mutex);
  pthread_condattr_init(&cond);
  pthread_condattr_setpshared(&cond, PTHREAD_PROCESS_SHARED);
  pthread_condattr_setclock(&cond, CLOCK_MONOTONIC);
  for (int r = 0; r < MAX_RANKS; r++) pthread_cond_init(&control->bells[r].rung, &cond);
  pthread_condattr_destroy(&cond);
  return region;
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

/* Called with the lock. */
static void ring(struct bell *bell)
{
  bell->rings++;
  pthread_cond_broadcast(&bell->rung);
}

void cpu_control_fail(struct control *control, const char *format, ...)
{
  va_list arguments;
  va_start(arguments, format);
  pthread_mutex_lock(&control->lock);
  if (!atomic_load(&control->failed))
    vsnprintf(control->failure, sizeof(control->failure), format, arguments);
  atomic_store(&control->failed, true);
  for (int r = 0; r < MAX_RANKS; r++) ring(&control->bells[r]);
  pthread_mutex_unlock(&control->lock);
  va_end(arguments);
}

void cpu_control_abort(struct control *control, int rank)
{
  if (!atomic_load(&control->failed)) atomic_store(&control->aborted, true);
  cpu_control_fail(control, "rank %d has called ncclCommAbort", rank);
}

ncclResult_t cpu_control_result(const struct control *control)
{
  if (!atomic_load(&control->failed)) return ncclSuccess;
  return atomic_load(&control->aborted) ? ncclRemoteError : ncclInvalidUsage;
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

bool cpu_meet(ncclComm_t comm, enum meeting_of kind, const void *mine, void *all, size_t bytes)
{
  struct control *control = comm->control;
  struct meeting *meeting = &control->meetings[kind];
  pthread_mutex_lock(&control->lock);
  uint64_t number = meeting->number;
  char(*notes)[MEETING_BYTES] = meeting->notes[number % 2];
  if (bytes > 0) memcpy(notes[comm->rank], mine, bytes);
  if (++meeting->arrived == comm->nranks) {
    meeting->arrived = 0;
    meeting->number++;
    for (int r = 0; r < comm->nranks; r++) ring(&control->bells[r]);
  }
  while (meeting->number == number && !atomic_load(&control->failed))
    pthread_cond_wait(&control->bells[comm->rank].rung, &control->lock);
  bool met = meeting->number != number; /* even if a faster rank has failed since */
  for (int r = 0; r < comm->nranks && bytes > 0; r++)
    memcpy((char *)all + (size_t)r * bytes, notes[r], bytes);
  pthread_mutex_unlock(&control->lock);
  return met;
}

bool cpu_wait(ncclComm_t comm, bool (*ready)(const void *arg), const void *arg, double seconds)
{
  struct control *control = comm->control;
  struct bell *bell = &control->bells[comm->rank];
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  double end = (double)until.tv_sec + 1e-9 * (double)until.tv_nsec;
  end += seconds < 0 ? 0 : seconds > 1e8 ? 1e8 : seconds; /* three years fit into the deadline */
  until.tv_sec = (time_t)end;
  until.tv_nsec = (long)((end - (double)until.tv_sec) * 1e9);
  for (int error = 0;;) {
    /* Read the number before asking: a later change of the answer rings the bell. */
    pthread_mutex_lock(&control->lock);
    uint64_t seen = bell->rings;
    pthread_mutex_unlock(&control->lock);
    if (ready(arg)) return true;
    if (error != 0 || atomic_load(&control->failed)) return false;
    pthread_mutex_lock(&control->lock);
    while (bell->rings == seen && error == 0)
      error = pthread_cond_timedwait(&bell->rung, &control->lock, &until);
    pthread_mutex_unlock(&control->lock);
  }
}

void cpu_notify(ncclComm_t comm, int peer)
{
  pthread_mutex_lock(&comm->control->lock);
  ring(&comm->control->bells[peer]);
  pthread_mutex_unlock(&comm->control->lock);
}
