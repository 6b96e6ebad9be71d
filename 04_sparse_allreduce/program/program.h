/* SPDX-License-Identifier: Apache-2.0 */
/* What main.c and bench.c share and what main.c need not show: the program's own options, what
 * follows from them, and the files that gradients come from and results go to. */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "check.h"
#include "gradient.h"
#include "launcher.h"
#include "npy.h"
#include "simple/simple.h"
#include "sparse_allreduce.h"

/* As NCCLCHECK, with the sentence that sparse_allreduce.h has for the error. */
#define SPARSECHECK(call) CHECK_NCCL_RESULT(call, #call, sparse_allreduce_last_error())

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

/* What the options ask for. Paths are those of simple_paths. */
struct job {
  const struct rank *me;
  const struct options *opt;
  uint64_t paths;                   /* bit p: path p */
  sparse_allreduce_config_t config; /* of all paths, but for the algorithm */
  size_t count;
  size_t k;
  uint64_t steps;
  bool compares; /* with the reference */
  enum gradient_kind kind;
  uint64_t seed;
  struct npy input, results, residual; /* without a file: not asked for */
  float *host;                         /* count elements on their way from or to a file */
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

/* Device memory that a path of the library, or of simple/, needs, the gradients included. */
size_t job_bytes(const struct job *job, size_t count, double density, int gradients, bool simple);

/* Brings this rank's gradient of a step to device memory; the steps of --input have to be asked for
 * in their order, from 0 each time. Enqueues. Returns an exit code; collective. */
int job_gradient(struct job *job, uint64_t step, void *gradient, cudaStream_t stream);

/* With --results, a copy of the result on the host: what is compared is what is written. Else the
 * result itself. */
const float *job_copy_result(struct job *job, const float *result);

/* Writes a step's elements, job->host, to one of the files, which may be none. Returns an exit
 * code; collective. */
int job_write(struct job *job, struct npy *file);

/* The end of a run that came to `code`: gives the files their names, the results only if they are
 * right, the table also where it says that they are wrong. Returns `code`, or another one if that
 * fails. Collective. */
int job_publish(struct job *job, struct output_file *table, int code);

#endif
