/* SPDX-License-Identifier: Apache-2.0 */
/* What harness.c and bench.c share. */
#ifndef PROGRAM_H
#define PROGRAM_H

#include "check.h"
#include "datatype.h"
#include "output_file.h"
#include "simple/simple.h"
#include "sparse_allreduce.h"
#include "verify.h"

/* As NCCLCHECK, with the sentence of sparse_allreduce_last_error(). */
#define SPARSECHECK(call) CHECK_NCCL_RESULT(call, #call, sparse_allreduce_last_error())

/* ---- options and what they ask for: program.c ------------------------------------------------ */

enum gradient_kind {
  GRADIENT_HEAVY,      /* heavy-tailed, partly the same on all ranks, slowly drifting */
  GRADIENT_NORMAL,     /* about normal */
  GRADIENT_TIES,       /* a dozen different values */
  GRADIENT_ONE_REGION, /* all that is large lies in one region, which changes in each step */
};
#define GRADIENT_KINDS "heavy|normal|ties|one-region" /* in that order */

/* Options as they were typed; 0, -1 and NULL mean that they were not. */
struct program_options {
  const char *algorithms;
  size_t count;
  double density;
  long steps, seed, throttle, warmup_steps, graphs;
  int preset, gradient, balance, nonfinite, exchange, result;
  bool gtopk_exact_residual, simple;
  const char *input, *results, *residual; /* files' names with %r for the rank */
  const char *output;                     /* -J: the table */
};
extern struct program_options program_options;

/* What follows from the options, and what all paths use. Paths are those of simple_paths. */
struct job {
  const struct rank *me;
  const struct options *opt;
  ncclComm_t comm;
  cudaStream_t stream;
  uint64_t paths;                           /* bit p: path p */
  sparse_allreduce_config_t config;         /* of all paths, without the algorithm */
  const struct sparse_constants *constants; /* NULL: those of the preset */
  size_t count, k;
  uint64_t steps, seed;
  enum gradient_kind kind;
  FILE *input;                          /* NULL: gradients are generated */
  long input_start;                     /* where its elements begin */
  int dimensions;                       /* of its array, and that of results */
  struct output_file results, residual; /* without a stream: not asked for */
  struct rows rows;                     /* the table as a file */
  double dense_us;                      /* a step of dense; NaN if it has no time */
  /* without --bench */
  void *gradient; /* in device memory */
  struct verifier digest;
};

static inline bool job_wants(const struct job *job, int path)
{
  return job->paths >> path & 1;
}

/* Checks all options and opens the files. Returns EXIT_VERIFIED, or another code on all ranks after
 * one line on stderr. Call job_close in any case. Collective. */
int job_open(struct job *job, const struct rank *me, const struct options *opt);
void job_close(struct job *job);

/* The configuration that the options ask for; `otherwise` is the preset if they name none. */
sparse_allreduce_config_t job_config(const struct options *opt, sparse_preset_t otherwise);

/* Bytes of device memory that a path needs, with this number of gradients. */
size_t job_bytes(const struct job *job, size_t count, double density, int gradients);

/* ---- gradients: gradient.c ------------------------------------------------------------------- */

/* Writes `count` elements of ncclFloat, ncclHalf or ncclBfloat16 to host memory. */
void gradient_fill(void *to, ncclDataType_t type, size_t count, enum gradient_kind kind,
                   uint64_t seed, uint64_t step, int rank, int nranks);

/* ---- files: files.c -------------------------------------------------------------------------- */

/* Takes count, steps and dimensions from the file of --input. Returns an exit code, the same on all
 * ranks, after a line on stderr. Collective. */
int job_open_input(struct job *job);

/* Starts a .npy file of that shape, unless `pattern` is NULL. If it fails, `error` has a line. */
void job_create_file(const struct job *job, struct output_file *file, const char *pattern,
                     int dimensions, char error[LAUNCHER_TEXT]);

/* Brings this rank's gradient of a step, generated or from the file of --input, to device memory
 * and waits for it. Returns an exit code; collective. */
int job_gradient(struct job *job, size_t count, uint64_t step, void *gradient);

/* Writes count elements to a file, if there is one. False, after a line on stderr, if it fails. */
bool job_write(const struct job *job, const struct output_file *file, const float *elements);

/* Ends a run with exit code `code`: gives the files their names, results only if they are right,
 * the table also if it reports wrong ones. Returns `code`, or another one if that fails.
 * Collective. */
int job_publish(struct job *job, int code);

/* ---- a path that runs: runner.c -------------------------------------------------------------- */

/* A path runs by the library or by simple/. The program creates, runs, verifies and times both in
 * the same way. Weights are updated in place after each step, as by an optimizer. With --result
 * entries sparse_allreduce_add makes a dense result to compare, from zeros. */
struct runner {
  const struct job *job;
  size_t count;
  sparse_allreduce_config_t config;
  sparse_allreduce_t handle; /* NULL for simple/ */
  struct simple *simple;     /* NULL for the library */
  float *weights, *dense;    /* in device memory; NULL: there are none */

  /* What the last step left on this rank, after runner_read. */
  sparse_allreduce_statistics_t last;
  const float *result;               /* dense, in device memory */
  const struct sparse_pair *entries; /* of the result, before the division, in device memory, */
  uint64_t nentries;                 /* and their number; NULL: there is no list */
  char reason[LAUNCHER_TEXT / 2];    /* why the step was an error: not a finite gradient; or "" */
};

/* config->algorithm is the path. `updates`: there are weights. Collective. */
void runner_create(struct runner *r, const struct job *job, size_t count,
                   const sparse_allreduce_config_t *config, bool simple, bool updates);
void runner_destroy(struct runner *r);

/* What runs, in words: "one-sided", "device counts", "send/recv", "simple", or for dense
 * "allreduce". `reason` says why it is send/recv if the caller did not ask for that, or is "". */
const char *runner_mode(const struct runner *r, const char **reason);

/* A step, as sparse_allreduce_run; then weights += -0.1 * result, if there are any. */
ncclResult_t runner_step(struct runner *r, const void *gradient);
ncclResult_t runner_update(const struct runner *r); /* the latter alone */
float runner_updated(float weight, float result);   /* the weight as it must be after a step */

/* Waits for the last step and reads what it left; and says it if that was an error. The latter
 * returns an exit code and is collective. */
void runner_read(struct runner *r);
int runner_finish(struct runner *r);

/* Copies the residual to host memory; dense has zeros. */
void runner_residual(const struct runner *r, float *host);

/* A copy of all that one step hands to the next; free() it. simple/ cannot do that: it returns
 * NULL, and a load begins again with the first step. */
void *runner_save(const struct runner *r);
void runner_load(const struct runner *r, const void *state);

/* ---- comparing: verification.c --------------------------------------------------------------- */

/* The reference is simple/ on the host: each rank computes its own side, and gets from the launcher
 * what other ranks send. Everything that the device holds must equal it bit for bit. There are two
 * exceptions. Sums of dense steps have an error bound, because NCCL chooses their order. Thresholds
 * from mean and deviation may differ by rounding; the reference goes on with the device's. */
struct verification {
  const struct runner *runner;
  struct simple *ref;   /* this rank's side */
  float *host;          /* [n] what comes from the device */
  float *weights;       /* [n] as they must be; NULL: the runner has none */
  float *mean;          /* [n] mean of all ranks' acc; NULL if xi is not measured */
  double gradient_norm; /* of the mean of this step's gradients */
  uint64_t compared;    /* steps */
  bool unwritten;       /* a file could not be written */
  double xi;            /* rank 0: sum over the steps that the paper would record, */
  uint64_t xi_steps;    /* and their number */
};

/* `measures_xi`: for the column xi of main.c's table. Collective. */
void verification_init(struct verification *v, const struct runner *r, bool measures_xi);
void verification_free(struct verification *v);

/* Makes the step that the runner has finished with the reference, compares both, and writes the
 * files from the same copies. Returns EXIT_VERIFIED, EXIT_WRONG_DATA after one line on stderr that
 * says what differed first, or EXIT_FAILED_CALL; the same on all ranks. Collective. */
int verification_step(struct verification *v, const void *gradient);

/* Its two halves: the reference's step; and whether all that the runner has is the same. */
void verification_reference(struct verification *v, const void *gradient);
bool verification_compare(struct verification *v);

/* ---- the table: report.c --------------------------------------------------------------------- */

/* What happened in the steps of one path on this rank. */
struct path_steps {
  double us;        /* all but the first, on this rank */
  uint64_t begun;   /* how many of them have begun */
  uint64_t counted; /* of them, all but warm-up steps; the sums below are over these */
  double local, global, words;
};

void report_heading(const struct job *job);

/* Prints the row of a path and, as a note, its runner_mode(); `code` is EXIT_VERIFIED if all of its
 * steps were right. Collective. */
void report_path(struct job *job, const struct path_steps *steps, const struct verification *v,
                 int code);

/* Prints a number in the table, "-" if it is not finite, unless `format` is NULL, and writes it to
 * the file, unless `column` is NULL. */
void report_number(struct job *job, const char *column, double value, const char *format);

/* ---- all of --bench: bench.c ----------------------------------------------------------------- */

size_t bench_bytes(const struct job *job, int model); /* of device memory; the first takes least */
int bench_paths(struct job *job); /* an exit code, the same on all ranks; collective */

#endif
