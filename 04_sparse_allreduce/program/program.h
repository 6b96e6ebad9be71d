/* SPDX-License-Identifier: Apache-2.0 */
/* What main.c and bench.c share and what main.c need not show: the program's own options, what
 * follows from them, gradients, and the files that they come from and results go to. */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "check.h"
#include "datatype.h"
#include "output_file.h"
#include "simple/simple.h"
#include "sparse_allreduce.h"

/* As NCCLCHECK, with the sentence that sparse_allreduce.h has for the error. */
#define SPARSECHECK(call) CHECK_NCCL_RESULT(call, #call, sparse_allreduce_last_error())

/* ---- gradients: gradient.c ------------------------------------------------------------------- */

enum gradient_kind {
  GRADIENT_HEAVY,      /* heavy-tailed, partly the same on all ranks, slowly drifting */
  GRADIENT_NORMAL,     /* about normal */
  GRADIENT_UNIFORM,    /* uniform in [-1, 1) */
  GRADIENT_TIES,       /* a dozen different values */
  GRADIENT_ONE_REGION, /* all that is large lies in one region, another one in each step */
};
#define GRADIENT_KINDS "heavy|normal|uniform|ties|one-region" /* in that order */

/* Writes `count` elements of ncclFloat, ncclHalf or ncclBfloat16 to host memory. */
void gradient_fill(void *to, ncclDataType_t type, size_t count, enum gradient_kind kind,
                   uint64_t seed, uint64_t step, int rank, int nranks);

/* ---- options and what they ask for: program.c ------------------------------------------------ */

/* As they were typed; 0, -1 and NULL: not given. */
struct program_options {
  const char *algorithms;
  size_t count;
  double density;
  long steps, seed, throttle, warmup_steps, restart_after, graphs;
  int preset, gradient, balance, nonfinite, exchange, result, verify, gk_threshold;
  bool gtopk_exact_residual, simple;
  const char *input, *results, *residual; /* files' names with %r for the rank */
  const char *output;                     /* -J: the table */
};
extern struct program_options program_options;
extern const struct option_spec program_option_table[];

/* Paths are those of simple_paths. */
struct job {
  const struct rank *me;
  const struct options *opt;
  ncclComm_t comm;
  cudaStream_t stream;
  uint64_t paths;                   /* bit p: path p */
  sparse_allreduce_config_t config; /* of all paths, but for the algorithm */
  size_t count;
  size_t k;
  uint64_t steps;
  enum gradient_kind kind;
  uint64_t seed;
  FILE *input;                          /* NULL: gradients are generated */
  long input_start;                     /* where its elements begin */
  int dimensions;                       /* of its array, and that of results */
  struct output_file results, residual; /* without a stream: not asked for */
  struct rows rows;                     /* the table as a file */
  double dense_us;                      /* a step of dense; NaN if it has no time */
};

static inline bool job_wants(const struct job *job, int path)
{
  return job->paths >> path & 1;
}

/* Checks all options and opens the files. Returns EXIT_VERIFIED, or another code on all ranks after
 * one line on stderr. To be ended by job_close in any case. Collective. */
int job_open(struct job *job, const struct rank *me, const struct options *opt);
void job_close(struct job *job);

/* The configuration that the options ask for; a preset, if they name none. */
sparse_allreduce_config_t job_config(const struct options *opt, sparse_preset_t otherwise);

/* Device memory that a path needs, the gradients included. */
size_t job_bytes(const struct job *job, size_t count, double density, int gradients);

/* A gradient of that many elements, of this rank and step, to device memory. Waits for it. */
void gradient_upload(const struct job *job, void *device, size_t count, uint64_t step);

/* All of --bench, and the device memory that it needs at least: bench.c. bench_paths returns an
 * exit code, the same on all ranks. Collective. */
size_t bench_bytes(const struct job *job);
int bench_paths(struct job *job);

/* ---- its files: files.c ---------------------------------------------------------------------- */

/* Takes count, steps and dimensions from the file of --input. Returns an exit code, the same on all
 * ranks, after a line on stderr. Collective. */
int job_open_input(struct job *job);

/* Starts a .npy file of that shape, unless `pattern` is NULL; `error` becomes a line if it fails,
 * or stays as it is. */
void job_create_file(const struct job *job, struct output_file *file, const char *pattern,
                     int dimensions, char error[LAUNCHER_TEXT]);

/* Brings this rank's gradient of a step to device memory and waits for it. Returns an exit code;
 * collective. */
int job_gradient(struct job *job, uint64_t step, void *gradient);

/* Writes count elements to one of the files, which may be none. Returns false after a line on
 * stderr if that fails. */
bool job_write(const struct job *job, const struct output_file *file, const float *elements);

/* The end of a run that came to `code`: gives the files their names, the results only if they are
 * right, the table also where it says that they are wrong. Returns `code`, or another one if that
 * fails. Collective. */
int job_publish(struct job *job, int code);

#endif
