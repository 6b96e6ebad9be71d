/* SPDX-License-Identifier: Apache-2.0 */
/* The watchdog: NCCL does not notice that a peer on the same host has died or stopped; the ranks
 * that wait for it would wait for ever. So one thread in every process looks at when each of its
 * ranks last said what it is doing (launcher_step).
 *
 * Time is counted by this thread's own turns of a second, so a job that was stopped (Ctrl-Z, a
 * debugger) and goes on later is not taken for one that hangs. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "launcher_backend.h"

enum { MAX_LOCAL_RANKS = 1024, TURN_MS = 1000 };

struct progress {
  _Atomic(const char *) step;
  _Atomic long since; /* of watched_ms */
};

static struct progress progress[MAX_LOCAL_RANKS];
static int first_rank, local_ranks;
static long limit_ms;
static _Atomic long watched_ms;
static pthread_t thread;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t stop_signal;
static bool stop;

static struct timespec now(void)
{
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time;
}

static long stuck_ms(int i)
{
  return atomic_load(&watched_ms) - atomic_load(&progress[i].since);
}

static bool is_stuck(void)
{
  for (int i = 0; i < local_ranks; i++)
    if (stuck_ms(i) >= limit_ms) return true;
  return false;
}

static void end_at_once(int unused)
{
  (void)unused;
  _exit(EXIT_TIMEOUT);
}

/* Every process prints the steps of its ranks, so all are given time to do so: the process of rank
 * 0 ends the job after a second; should that process be the one that hangs, the others do so after
 * five. Printing may wait for a pipe that nobody reads or for the lock of a rank that does, and
 * MPI_Abort for who knows what; the alarm waits for nothing. */
static void end_job(void)
{
  const unsigned seconds = first_rank == 0 ? 1 : 5;
  signal(SIGALRM, end_at_once);
  alarm(seconds + 2);
  for (int i = 0; i < local_ranks; i++)
    fprintf(stderr, "[rank %d] no progress for %ld s in step: %s\n", first_rank + i,
            stuck_ms(i) / 1000, atomic_load(&progress[i].step));
  sleep(seconds);
  launcher_abort(EXIT_TIMEOUT);
}

/* To who waits at a terminal, every 15 s. */
static void say_what_takes_long(void)
{
  static long said;
  const long seconds = atomic_load(&watched_ms) / 1000;
  if (stop || first_rank != 0 || seconds < said + 15 || !isatty(STDERR_FILENO)) return;
  said = seconds;
  fprintf(stderr, "note: %ld s, rank 0 is in step: %s\n", seconds, atomic_load(&progress[0].step));
}

static void *watch(void *unused)
{
  (void)unused;
  struct timespec last = now();
  pthread_mutex_lock(&mutex);
  while (!stop) {
    struct timespec next = last;
    next.tv_sec += TURN_MS / 1000;
    pthread_cond_timedwait(&stop_signal, &mutex, &next);
    const struct timespec time = now();
    const long ms = (time.tv_sec - last.tv_sec) * 1000 + (time.tv_nsec - last.tv_nsec) / 1000000;
    last = time;
    /* a turn that took much longer: the process was stopped */
    atomic_fetch_add(&watched_ms, ms < 3 * TURN_MS ? ms : TURN_MS);
    if (!stop && is_stuck()) end_job();
    say_what_takes_long();
  }
  pthread_mutex_unlock(&mutex);
  return NULL;
}

void watchdog_start(long seconds)
{
  pthread_condattr_t attributes;
  limit_ms = seconds * 1000;
  PTHREADCHECK(pthread_condattr_init(&attributes));
  PTHREADCHECK(pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC));
  PTHREADCHECK(pthread_cond_init(&stop_signal, &attributes));
  PTHREADCHECK(pthread_condattr_destroy(&attributes));
  PTHREADCHECK(pthread_create(&thread, NULL, watch, NULL));
}

void watchdog_watch(int first, int nranks, const char *step)
{
  pthread_mutex_lock(&mutex);
  first_rank = first;
  local_ranks = nranks < MAX_LOCAL_RANKS ? nranks : MAX_LOCAL_RANKS;
  for (int i = 0; i < local_ranks; i++) watchdog_progress(first + i, step);
  pthread_mutex_unlock(&mutex);
}

/* From the end of the current turn on, so that no rank has less time than the limit. */
void watchdog_progress(int rank, const char *step)
{
  int i = rank - first_rank;
  if (rank < 0 || i < 0 || i >= local_ranks) return;
  atomic_store(&progress[i].step, step);
  atomic_store(&progress[i].since, atomic_load(&watched_ms) + TURN_MS);
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
