/* SPDX-License-Identifier: Apache-2.0 */
/* The launcher starts the ranks, one per GPU, and gives them what they need before NCCL works.
 *
 * The same program is built in two ways. `make` makes every rank a thread of one process
 * (launcher_pthread.c); `make MPI=1` makes every rank a process started by mpirun
 * (launcher_mpi.c). An example cannot tell the difference: it sees a `struct rank` and the
 * functions below, and its output is the same to the byte.
 *
 * "Collective" means: every rank has to make the call, in the same order, or the others wait.
 */
#ifndef COMMON_LAUNCHER_H
#define COMMON_LAUNCHER_H

#include <stdbool.h>
#include <stddef.h>

#include <cuda_runtime.h>
#include <nccl.h>

#include "options.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the process returns. Over ranks the first of 3, 4, 1, 2, 77, 0 that occurs wins. */
enum exit_code {
  EXIT_VERIFIED = 0,    /* everything ran and every element was right */
  EXIT_WRONG_DATA = 1,  /* a result was wrong */
  EXIT_USAGE = 2,       /* bad options, NTHREADS, or sizes that do not fit */
  EXIT_FAILED_CALL = 3, /* a CUDA, NCCL, MPI or system call failed */
  EXIT_TIMEOUT = 4,     /* no progress for --timeout seconds */
  EXIT_CANNOT_RUN = 77, /* this machine cannot run it: no GPU, too few, NCCL too old, ... */
};

/* One rank of the job. */
struct rank {
  int rank;    /* 0 .. nranks - 1 */
  int nranks;  /* ranks in the job */
  int device;  /* the CUDA device of this rank, as this process numbers its devices */
  int sharing; /* other ranks on that GPU: 0, unless NCCL lets several share one */
};

/* A program: what --help prints about it, its own options, and what a rank does. */
struct program {
  const char *name;                  /* "allreduce_ub" */
  const char *summary;               /* one line for --help */
  const struct option_spec *options; /* own options, ended by an entry without a name; or NULL */
  const char *types;                 /* data types that -d takes, separated by blanks */
  /* What one rank does; returns an enum exit_code. */
  int (*run)(const struct rank *me, const struct options *opt);
};

/* All that main() has to do: parses the options, starts the ranks, runs the program on each,
 * joins their exit codes. Returns the exit code of the process. */
int launcher_main(int argc, char **argv, const struct program *program);

/* ---- between the ranks, before and beside NCCL (all collective) --------------------------- */

void launcher_barrier(const struct rank *me);

/* `bytes` bytes of rank `root` reach all ranks' `data`. */
void launcher_broadcast(const struct rank *me, void *data, size_t bytes, int root);

/* `bytes` bytes of every rank reach all ranks: `all` holds nranks * bytes, in rank order. */
void launcher_allgather(const struct rank *me, const void *mine, void *all, size_t bytes);

/* The exit code that wins over all ranks' `code`; every rank gets the same answer, so that all
 * go on or all leave. */
int launcher_agree(const struct rank *me, int code);

/* The largest of all ranks' values: times are those of the slowest rank. */
double launcher_max(const struct rank *me, double value);

/* `error` is one line that says what this rank cannot accept and what is allowed, or "". If any
 * rank has one, rank 0 prints that of the lowest such rank and all get EXIT_USAGE, else
 * EXIT_VERIFIED. Collective. */
int launcher_refuse(const struct rank *me, const char *error);

/* True: ranks are threads of one process, on GPUs. Then graphs whose kernels wait for other GPUs
 * can deadlock: cudaGraphLaunch for one GPU may block while that for another one has not been made,
 * whose kernel the first one's waits for. So programs do not capture kernels of this suite then.
 * NCCL's User Guide warns of NCCL's own operations, too; 01 and 02 capture NCCL's AllReduce all the
 * same, whose runs have ended (results/), though nothing promises it. The stand-in has a thread for
 * each stream. */
extern const bool launcher_graphs_can_deadlock;

/* Whether every rank's current device has `bytes` free beside a 64th of its memory, which is left
 * to NCCL; if not, one line on stderr and false on all ranks. To be called before a communicator
 * takes memory. Collective. */
bool launcher_has_memory(const struct rank *me, size_t bytes);

/* ---- output ------------------------------------------------------------------------------- */

/* Rank 0 prints every rank's text to stdout, in rank order. A rank's text is at most
 * LAUNCHER_TEXT - 1 bytes; an empty one prints nothing. Collective. */
#define LAUNCHER_TEXT 1024
void launcher_print_all(const struct rank *me, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Rank 0 prints to stdout, the others do nothing. Not collective. */
void launcher_print(const struct rank *me, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Rank 0 prints `note: ...` to stderr, the others do nothing. Not collective. */
void launcher_note(const struct rank *me, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* This rank prints `[rank r] ...` to stderr. Not collective. */
void launcher_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- progress and failure ----------------------------------------------------------------- */

/* Says what this rank does from now on; a rank that says nothing for --timeout seconds is taken
 * for hung, the step is printed and the job ends with EXIT_TIMEOUT. `step` has to stay valid (a
 * literal). */
void launcher_step(const char *step);

/* For the check macros: prints the line and ends the job with EXIT_FAILED_CALL. `detail` may be
 * NULL. */
void launcher_fail(const char *file, int line, const char *call, const char *reason,
                   const char *detail) __attribute__((noreturn));

/* Ends the job, all ranks of it, with `code`. */
void launcher_abort(int code) __attribute__((noreturn));

#ifdef __cplusplus
}
#endif
#endif
