/* SPDX-License-Identifier: Apache-2.0 */
/* The watchdog. NCCL does not notice that a peer on the same host has died or stopped, so the ranks
 * that wait for it would wait forever. A thread in every process checks when each of its ranks last
 * began a step (launcher_step).
 *
 * The thread counts its own turns of a second. So a job that was stopped (Ctrl-Z, a debugger) and
 * goes on later does not count as hung. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "check.h"
#include "launcher_backend.h"

enum { MAX_LOCAL_RANKS = 1024 };

struct progress {
  _Atomic(const char *) step;
  atomic_long since; /* of `turns` */
};

static struct progress progress[MAX_LOCAL_RANKS];
static atomic_int first_rank, local_ranks;
static atomic_long turns, said; /* seconds so far; when rank 0 last printed something */
static long limit;

static long stuck(int i)
{
  return turns - progress[i].since;
}

static void end_at_once(int unused)
{
  (void)unused;
  _exit(EXIT_TIMEOUT);
}

/* Every process prints the steps of its ranks and needs time to do so. The process of rank 0 ends
 * the job after one second. If that process hangs, the others end it after five. Printing may wait
 * for a pipe without a reader, or for a lock, and MPI_Abort may wait as well; the alarm does not.
 */
static void end_job(void)
{
  const unsigned seconds = first_rank == 0 ? 1 : 5;
  signal(SIGALRM, end_at_once);
  alarm(seconds + 2);
  for (int i = 0; i < local_ranks; i++)
    fprintf(stderr, "[rank %d] no progress for %ld s in step: %s\n", first_rank + i, stuck(i),
            progress[i].step);
  sleep(seconds);
  launcher_abort(EXIT_TIMEOUT);
}

void watchdog_said(void)
{
  said = turns;
}

static void *watch(void *unused)
{
  for (;; turns++) {
    sleep(1);
    const long silent = turns - said;
    if (silent % 10 == 5 && first_rank == 0 && isatty(STDERR_FILENO)) /* a user is watching */
      fprintf(stderr, "still in step: %s, %ld s\n", progress[0].step, silent);
    for (int i = 0; i < local_ranks; i++)
      if (stuck(i) >= limit) end_job();
  }
  return unused;
}

void watchdog_start(long seconds)
{
  pthread_t thread;
  limit = seconds;
  PTHREADCHECK(pthread_create(&thread, NULL, watch, NULL));
  PTHREADCHECK(pthread_detach(thread)); /* it may be asleep when the process ends */
}

void watchdog_watch(int first, int nranks, const char *step)
{
  first_rank = first;
  local_ranks = nranks < MAX_LOCAL_RANKS ? nranks : MAX_LOCAL_RANKS;
  for (int i = 0; i < local_ranks; i++) watchdog_progress(first + i, step);
}

/* Counted from the end of the current turn, so that no rank gets less time than the limit. */
void watchdog_progress(int rank, const char *step)
{
  const int i = rank - first_rank;
  if (rank < 0 || i < 0 || i >= local_ranks) return;
  progress[i].step = step;
  progress[i].since = turns + 1;
}
