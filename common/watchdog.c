/* SPDX-License-Identifier: Apache-2.0 */
/* The watchdog: NCCL does not notice that a peer on the same host has died or stopped; the ranks
 * that wait for it would wait for ever. So one thread in every process looks at when each of its
 * ranks last said what it is doing (launcher_step). */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "launcher_backend.h"

enum { MAX_LOCAL_RANKS = 1024 };

struct progress {
  _Atomic(const char *) step;
  _Atomic long since; /* seconds of the monotonic clock */
};

static struct progress progress[MAX_LOCAL_RANKS];
static int first_rank, local_ranks;
static long limit;
static pthread_t thread;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t stop_signal;
static bool stop;

static long now(void)
{
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec;
}

static bool is_stuck(void)
{
  for (int i = 0; i < local_ranks; i++)
    if (now() - atomic_load(&progress[i].since) >= limit) return true;
  return false;
}

/* Every process prints the steps of its ranks, so all are given time to do so: the process of rank
 * 0 ends the job after a second; should that process be the one that hangs, the others do so after
 * five. */
static void end_job(void)
{
  for (int i = 0; i < local_ranks; i++)
    fprintf(stderr, "[rank %d] no progress for %ld s in step: %s\n", first_rank + i,
            now() - atomic_load(&progress[i].since), atomic_load(&progress[i].step));
  sleep(first_rank == 0 ? 1 : 5);
  launcher_abort(EXIT_TIMEOUT);
}

static void *watch(void *unused)
{
  (void)unused;
  pthread_mutex_lock(&mutex);
  while (!stop) {
    struct timespec next;
    clock_gettime(CLOCK_MONOTONIC, &next);
    next.tv_sec += 1;
    pthread_cond_timedwait(&stop_signal, &mutex, &next);
    if (!stop && is_stuck()) end_job();
  }
  pthread_mutex_unlock(&mutex);
  return NULL;
}

void watchdog_start(int first, int nranks, long seconds)
{
  pthread_condattr_t attributes;
  first_rank = first;
  local_ranks = nranks < MAX_LOCAL_RANKS ? nranks : MAX_LOCAL_RANKS;
  limit = seconds;
  for (int i = 0; i < local_ranks; i++) watchdog_progress(first + i, "start");
  PTHREADCHECK(pthread_condattr_init(&attributes));
  PTHREADCHECK(pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC));
  PTHREADCHECK(pthread_cond_init(&stop_signal, &attributes));
  PTHREADCHECK(pthread_condattr_destroy(&attributes));
  PTHREADCHECK(pthread_create(&thread, NULL, watch, NULL));
}

void watchdog_progress(int rank, const char *step)
{
  int i = rank - first_rank;
  if (rank < 0 || i < 0 || i >= local_ranks) return;
  atomic_store(&progress[i].step, step);
  atomic_store(&progress[i].since, now());
}

void watchdog_stop(void)
{
  pthread_mutex_lock(&mutex);
  stop = true;
  pthread_cond_signal(&stop_signal);
  pthread_mutex_unlock(&mutex);
  PTHREADCHECK(pthread_join(thread, NULL));
  PTHREADCHECK(pthread_cond_destroy(&stop_signal));
}
