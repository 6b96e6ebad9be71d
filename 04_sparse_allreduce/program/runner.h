/* SPDX-License-Identifier: Apache-2.0 */
/* A path runs by the library, or as it stands in simple/. The program creates, runs, verifies and
 * times both in the same way; what differs is here.
 *
 * With --result entries weights are updated in place after each step, as an optimizer would do by
 * sparse_allreduce_add. A dense result, for all that looks at one, is made by the same call, of
 * zeros. */
#ifndef RUNNER_H
#define RUNNER_H

#include "program/program.h"

struct runner {
  const struct job *job;
  size_t count;
  sparse_allreduce_config_t config;
  sparse_allreduce_t handle; /* one of the two is there */
  struct simple *simple;
  float *weights, *dense; /* --result entries: in device memory; else NULL */

  /* What the last step left on this rank, after runner_finish. */
  sparse_allreduce_statistics_t last;
  const float *result;               /* dense, in device memory */
  const struct sparse_pair *entries; /* of the result, before the division: in device memory, */
  uint64_t nentries;                 /* so many. NULL: there is no list of them */
};

/* config->algorithm is the path. Where --exchange onesided cannot run, it says so and ends the job
 * with EXIT_CANNOT_RUN. `updates`: with --result entries there are weights. Collective. */
void runner_create(struct runner *r, const struct job *job, size_t count,
                   const sparse_allreduce_config_t *config, bool simple, bool updates);
void runner_destroy(struct runner *r);

/* What runs, in words: "one-sided", "device counts", "send/recv", "simple", of dense "allreduce".
 * `reason`, unless it is NULL, becomes why it is send/recv, if nobody asked for that; "" else. */
const char *runner_mode(const struct runner *r, const char **reason);

/* A step, as sparse_allreduce_run; then weights += -0.1 * result, if there are any. */
ncclResult_t runner_step(struct runner *r, const void *gradient);
float runner_updated(float weight, float result); /* what has to become of a weight */

/* Waits for the last step and looks at what it left. Returns an exit code, the same on all ranks:
 * whether it went well on the device. Collective. */
int runner_finish(struct runner *r, uint64_t step);

/* The residual to host memory. Not for dense. */
void runner_residual(const struct runner *r, float *host);

/* All that one step hands to the next: a copy of it, and back. free() frees the copy. simple/
 * cannot do that: it gives NULL, and begins again from its first step. */
void *runner_save(const struct runner *r);
void runner_load(const struct runner *r, const void *state);

/* What a training job does to go on after a break: saves the state, makes a new handle from it in
 * the place of the old one. Not for simple/. Collective. */
void runner_restart(struct runner *r);

/* ---- comparing: verification.c --------------------------------------------------------------- */

/* After a step, everything that the device holds is compared with the reference, bit for bit, on
 * every rank. The reference is simple/ on the host: each rank computes its own side, and gets from
 * the launcher what other ranks send. Exceptions: sums of dense steps, whose order is NCCL's, have
 * an error bound; thresholds from mean and deviation may differ by rounding, and then the reference
 * goes on with the device's. */
struct verification {
  const struct runner *runner;
  struct simple *ref;   /* this rank's side; NULL: nothing is compared */
  float *host;          /* [n] what comes from the device; NULL: nobody wants it */
  float *weights;       /* [n] of --result entries: as they have to be; else NULL */
  float *mean;          /* [n] mean of all ranks' acc; NULL where xi is not asked for */
  double gradient_norm; /* of the mean of this step's gradients */
  uint64_t compared;    /* steps */
  double xi;            /* rank 0: sum over the steps that the paper would record, */
  uint64_t xi_steps;    /* so many */
};

/* Returns an exit code: EXIT_USAGE, after one line, if the host's memory does not suffice.
 * verification_free() in any case. Collective. */
int verification_init(struct verification *v, const struct runner *r, bool measures_xi);
void verification_free(struct verification *v);

/* The reference takes the step that the runner has finished, and all that this has left is
 * compared. What of it goes to the files is written from the same copies on the host. Returns
 * EXIT_VERIFIED, EXIT_WRONG_DATA after one line on stderr that says what differed first, or
 * EXIT_FAILED_CALL; the same on all ranks. Collective. */
int verification_step(struct verification *v, const void *gradient);

/* ---- the table: report.c --------------------------------------------------------------------- */

/* What happened in the steps of one path on this rank. */
struct path_steps {
  double *us;      /* [job->steps] time of each step */
  uint64_t begun;  /* how many there are */
  uint64_t sparse; /* of them, those that were not dense; the sums below are over these, */
  double local, global, words; /* ... over dense ones where there are no others */
};

void path_steps_add(struct path_steps *steps, const sparse_allreduce_statistics_t *statistics);

void report_heading(const struct job *job);

/* Prints the row of a path and, as a note, its runner_mode(); `code` is EXIT_VERIFIED if all of its
 * steps were right. Collective. */
void report_path(struct job *job, const struct path_steps *steps, const struct verification *v,
                 int code);

/* A number of the table, "-" where there is none, and of the file's row. NULL for `format`: not in
 * the table, for `column`: not in the file. */
void report_number(struct job *job, const char *column, double value, const char *format);

/* Median over n steps of the slowest rank's time, NaN on the stand-in, whose times mean nothing.
 * `us` has the same n on all ranks, and is changed. Collective. */
double report_time(const struct rank *me, double *us, uint64_t n);

#endif
