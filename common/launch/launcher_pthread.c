/* SPDX-License-Identifier: Apache-2.0 */
/* The pthread launcher: every rank is a thread of this process, rank r drives GPU r. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "launcher_backend.h"

/* A rank's thread, and what it passes to the others in a collective. */
struct thread {
  struct rank me;
  pthread_t handle;
  int code;
  int (*rank_main)(const struct rank *me);
  const void *shared;
};

#ifdef CPU_STANDIN
const bool launcher_graphs_can_deadlock = false;
#else
const bool launcher_graphs_can_deadlock = true;
#endif

static struct thread alone, *threads = &alone; /* until the ranks run, the process is rank 0 of 1 */
static pthread_barrier_t barrier;

/* ---- collectives: publish a pointer, wait, read the others' pointers, wait ----------------- */

void launcher_barrier(const struct rank *me)
{
  if (me->nranks == 1) return;
  int result = pthread_barrier_wait(&barrier);
  if (result != PTHREAD_BARRIER_SERIAL_THREAD) PTHREADCHECK(result);
}

void launcher_allgather(const struct rank *me, const void *mine, void *all, size_t bytes)
{
  threads[me->rank].shared = mine;
  launcher_barrier(me);
  for (int rank = 0; rank < me->nranks; rank++)
    memcpy((char *)all + (size_t)rank * bytes, threads[rank].shared, bytes);
  launcher_barrier(me); /* each `mine` stays valid until all have read it */
}

void launcher_broadcast(const struct rank *me, void *data, size_t bytes, int root)
{
  threads[me->rank].shared = data;
  launcher_barrier(me);
  if (me->rank != root) memcpy(data, threads[root].shared, bytes);
  launcher_barrier(me);
}

/* ---- starting ----------------------------------------------------------------------------- */

/* Each copy that mpirun starts would take all GPUs. Open MPI and MPICH set environment variables
 * for a process's rank. */
static void refuse_mpirun(const struct rank *me)
{
  const char *rank = getenv("OMPI_COMM_WORLD_RANK");
  if (!rank) rank = getenv("PMI_RANK");
  if (!rank) return;
  /* mpirun ends the job when the first process leaves: rank 0, after its message. The others wait,
   * in case rank 0 is a program built with MPI=1. */
  if (strcmp(rank, "0") != 0) sleep(5);
  exit(launcher_refuse(me, "started by mpirun, but built without MPI=1; "
                           "build with `make MPI=1`, or run it without mpirun"));
}

const char *backend_start(struct rank *me, int *argc, char ***argv)
{
  (void)argc, (void)argv;
  refuse_mpirun(me);
  return "pthread";
}

/* The number of ranks; 0 and an error if NTHREADS is not one. */
static int choose_ranks(int gpus, char error[LAUNCHER_TEXT])
{
  const char *text = getenv("NTHREADS");
  char typed[SHOWN_TEXT];
  double ranks;
#ifdef CPU_STANDIN
  if (!text && gpus > 4) return 4; /* it has 64 devices, more than most runs need */
#endif
  if (!text) return gpus;
  const bool number = options_number(text, NUMBER_WHOLE, &ranks) == 0;
  if (number && ranks >= 1 && ranks <= gpus) return (int)ranks;
  snprintf(error, LAUNCHER_TEXT, "NTHREADS='%s' is %s; allowed: 1 to %d, the number of GPUs",
           shown(text, typed), number ? "out of range" : "not a number", gpus);
  return 0;
}

static void *thread_main(void *argument)
{
  struct thread *self = argument;
  self->code = self->rank_main(&self->me);
  return NULL;
}

int backend_run(const struct rank *process, int (*rank_main)(const struct rank *me))
{
  char error[LAUNCHER_TEXT] = "";
  const int gpus = launcher_visible_gpus(error, sizeof error);
  const int nranks = gpus ? choose_ranks(gpus, error) : 0;
  if (launcher_refuse(process, error) != EXIT_VERIFIED) return gpus ? EXIT_USAGE : EXIT_CANNOT_RUN;
  threads = launcher_allocate((size_t)nranks * sizeof *threads);
  PTHREADCHECK(pthread_barrier_init(&barrier, NULL, (unsigned)nranks));
  watchdog_watch(0, nranks, "start");
  for (int rank = 0; rank < nranks; rank++) {
    threads[rank] = (struct thread){.me = {.rank = rank, .nranks = nranks, .device = rank},
                                    .rank_main = rank_main};
    PTHREADCHECK(pthread_create(&threads[rank].handle, NULL, thread_main, &threads[rank]));
  }
  for (int rank = 0; rank < nranks; rank++) PTHREADCHECK(pthread_join(threads[rank].handle, NULL));
  PTHREADCHECK(pthread_barrier_destroy(&barrier));
  int code = threads[0].code; /* rank_main has joined the codes: all are equal */
  free(threads);
  return code;
}

int backend_finish(int code)
{
  return code;
}

/* _exit, not exit: other threads are still inside CUDA and NCCL, whose exit handlers would race
 * with them. */
void backend_abort(int code)
{
  _exit(code);
}
