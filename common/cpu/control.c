/* SPDX-License-Identifier: Apache-2.0 */
/* The control block, in memory that all ranks of a communicator map. In it ranks meet, wake each
 * other, and learn that one has failed. A rank that waits here sleeps; it never spins. */
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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
  atomic_int result;      /* ncclSuccess until a rank fails; set with the lock, read without */
  char failure[SENTENCE]; /* written before `result`, then never again */
  int nranks;
  uint64_t joined; /* one bit per rank */
  struct meeting meetings[MEETINGS];
  struct bell bells[MAX_RANKS];
  struct letter letters[MAX_RANKS][MAX_RANKS];
};

/* ---- the control block --------------------------------------------------------------------- */

struct region *cpu_control_create(void)
{
  struct region *region = cpu_region_create(REGION_HIDDEN, 0, sizeof(struct control));
  struct control *control = (struct control *)region->base;
  pthread_mutexattr_t mutex;
  pthread_condattr_t cond;
  pthread_mutexattr_init(&mutex);
  pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
  pthread_mutex_init(&control->lock, &mutex);
  pthread_mutexattr_destroy(&mutex);
  pthread_condattr_init(&cond);
  pthread_condattr_setpshared(&cond, PTHREAD_PROCESS_SHARED);
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

void cpu_control_fail(struct control *control, ncclResult_t result, const char *format, ...)
{
  va_list arguments;
  va_start(arguments, format);
  pthread_mutex_lock(&control->lock);
  if (cpu_control_result(control) == ncclSuccess) {
    vsnprintf(control->failure, sizeof(control->failure), format, arguments);
    control->result = result;
  }
  for (int r = 0; r < MAX_RANKS; r++) ring(&control->bells[r]);
  pthread_mutex_unlock(&control->lock);
  va_end(arguments);
}

ncclResult_t cpu_control_result(const struct control *control)
{
  return (ncclResult_t)control->result;
}

const char *cpu_control_failure(const struct control *control)
{
  return control->failure;
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
  while (meeting->number == number && cpu_control_result(control) == ncclSuccess)
    pthread_cond_wait(&control->bells[comm->rank].rung, &control->lock);
  bool met = meeting->number != number; /* even if a faster rank has failed since */
  for (int r = 0; r < comm->nranks && bytes > 0; r++)
    memcpy((char *)all + (size_t)r * bytes, notes[r], bytes);
  pthread_mutex_unlock(&control->lock);
  return met;
}

void cpu_wait(ncclComm_t comm, bool (*ready)(const void *arg), const void *arg)
{
  struct control *control = comm->control;
  struct bell *bell = &control->bells[comm->rank];
  for (;;) {
    /* Read the number before asking: a later change of the answer rings the bell. */
    pthread_mutex_lock(&control->lock);
    const uint64_t seen = bell->rings;
    pthread_mutex_unlock(&control->lock);
    if (ready(arg) || cpu_control_result(control) != ncclSuccess) return;
    pthread_mutex_lock(&control->lock);
    while (bell->rings == seen) pthread_cond_wait(&bell->rung, &control->lock);
    pthread_mutex_unlock(&control->lock);
  }
}

void cpu_notify(ncclComm_t comm, int peer)
{
  pthread_mutex_lock(&comm->control->lock);
  ring(&comm->control->bells[peer]);
  pthread_mutex_unlock(&comm->control->lock);
}
