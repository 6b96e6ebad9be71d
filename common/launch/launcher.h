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

/* What the process returns. If ranks differ, the first of 3, 4, 1, 2, 77, 0 wins. */
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

/* A program: what --help prints about it, its own options, and what a rank does. An example has two
 * parts: the lesson, which is its main.c, and a harness, which tests and measures. */
struct program {
  const char *name;                  /* "allreduce_ub" */
  const char *summary;               /* one line for --help */
  const struct option_spec *options; /* own options, ended by an entry without a name; or NULL */
  const char *types;                 /* data types that -d takes, separated by blanks */
  /* What one rank does; returns an enum exit_code. */
  int (*run)(const struct rank *me, const struct options *opt);
  /* The same, if any option but --count and --timeout is given; NULL: `run` has all options. */
  int (*harness)(const struct rank *me, const struct options *opt);
};

/* Each example has these in its harness. */
int harness(const struct rank *me, const struct options *opt);
extern const struct option_spec harness_options[];

/* All that main() calls: parses the options, starts the ranks, runs the program on each, joins
 * their exit codes. Returns the exit code of the process. */
int launcher_main(int argc, char **argv, const struct program *program);

/* ---- between the ranks, without NCCL (all collective) ------------------------------------- */

void launcher_barrier(const struct rank *me);

/* Copies `bytes` bytes at `data` of rank `root` to `data` of all ranks. */
void launcher_broadcast(const struct rank *me, void *data, size_t bytes, int root);

/* Gives every rank the `bytes` bytes of all ranks: `all` holds nranks * bytes, in rank order. */
void launcher_allgather(const struct rank *me, const void *mine, void *all, size_t bytes);

/* The exit code that wins among all ranks' `code`. Every rank gets the same answer, so all go on or
 * all leave. */
int launcher_agree(const struct rank *me, int code);

/* The largest of all ranks' values, since a time is that of the slowest rank. */
double launcher_max(const struct rank *me, double value);

/* A clock; NaN on the stand-in, whose times mean nothing. */
double launcher_microseconds(void);

/* `error` is one line that says what this rank cannot accept and what is allowed, or "". If any
 * rank has one, rank 0 prints that of the lowest such rank and all get EXIT_USAGE, else
 * EXIT_VERIFIED. Collective. */
int launcher_refuse(const struct rank *me, const char *error);

/* True: ranks are threads of one process, on GPUs. Then graphs whose kernels wait for other GPUs
 * can deadlock: cudaGraphLaunch for one GPU may block before the launch for another GPU is made,
 * and the first kernel waits for that one. So the programs do not capture this suite's kernels
 * then. NCCL's User Guide gives the same warning for NCCL's collectives. 01 and 02 still capture
 * NCCL's AllReduce: our runs did not hang, but nothing promises that. False on the stand-in, which
 * has a thread for each stream. */
extern const bool launcher_graphs_can_deadlock;

/* Whether every rank's current device has `bytes` free, and a 64th of its memory more, for NCCL. If
 * not, prints one line on stderr and returns false on all ranks. Call it before a communicator
 * takes memory. Collective. */
bool launcher_has_memory(const struct rank *me, size_t bytes);

/* ---- output ------------------------------------------------------------------------------- */

/* Rank 0 prints every rank's text to stdout, in rank order. A rank's text is at most
 * LAUNCHER_TEXT - 1 bytes; an empty one prints nothing. Collective. */
#define LAUNCHER_TEXT 1024
void launcher_print_ranks(const struct rank *me, const char *format, ...)
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

/* Names the step that this rank begins; `step` is a literal, or stays valid. If a rank begins no
 * step for --timeout seconds, all ranks' steps are printed and the job ends with EXIT_TIMEOUT. */
void launcher_step(const char *step);

/* Zeroed memory, to be freed; without memory the job ends. */
void *launcher_allocate(size_t bytes);

/* Called by the check macros: prints the line and ends the job with EXIT_FAILED_CALL. `detail` may
 * be NULL. */
void launcher_fail(const char *file, int line, const char *call, const char *reason,
                   const char *detail) __attribute__((noreturn));

/* Ends the job, all ranks of it, with `code`. */
void launcher_abort(int code) __attribute__((noreturn));

#ifdef __cplusplus
}
#endif
#endif
