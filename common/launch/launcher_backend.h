/* SPDX-License-Identifier: Apache-2.0 */
/* Between launcher.c and its two backends, launcher_pthread.c and launcher_mpi.c; a program is
 * linked with one of them. A backend also defines launcher_barrier, launcher_broadcast and
 * launcher_allgather of launcher.h. */
#ifndef COMMON_LAUNCHER_BACKEND_H
#define COMMON_LAUNCHER_BACKEND_H

#include <stdbool.h>

#include "launcher.h"

/* Initializes MPI, if the program was built with it. Until backend_run has started the ranks, *me
 * is this process: rank 0 of 1 with pthreads, the MPI rank with MPI, without a device. Returns the
 * name of the launcher, for --version. */
const char *backend_start(struct rank *me, int *argc, char ***argv);

/* Finds the GPU of each rank and calls rank_main on every rank of this process. Returns the exit
 * code of this process. If the ranks cannot start, prints why (once for the job). */
int backend_run(const struct rank *process, int (*rank_main)(const struct rank *me));

/* Leaves MPI. Returns the exit code for main. */
int backend_finish(int code);

/* Ends all processes of the job at once. */
void backend_abort(int code) __attribute__((noreturn));

/* ---- provided by launcher.c and watchdog.c ------------------------------------------------ */

/* The number of GPUs that this process sees; if 0, `why` has the reason. */
int launcher_visible_gpus(char *why, size_t size);

/* The watchdog ends the job with EXIT_TIMEOUT when a rank that it watches has made no progress for
 * `seconds`. At first it watches no rank. */
void watchdog_start(long seconds);
/* Watches the `nranks` ranks of this process from `first` on, which are all in that step. */
void watchdog_watch(int first, int nranks, const char *step);
void watchdog_progress(int rank, const char *step);
/* Rank 0 has printed something. On a terminal the watchdog prints if nothing else does. */
void watchdog_said(void);

#endif
