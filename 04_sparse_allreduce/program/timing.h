/* SPDX-License-Identifier: Apache-2.0 */
/* How --bench measures. Steps are enqueued one after the other, as in training; of the ranks the
 * slowest counts. What is timed is verified before, and again after. On the stand-in, whose times
 * mean nothing, all are NaN. All functions are collective. */
#ifndef TIMING_H
#define TIMING_H

#include "program/runner.h"

enum { GRADIENTS = 3 }; /* buffers that gradients come from in turn */

struct timer {
  const struct rank *me;
  const struct datatype *type; /* of the gradients */
  ncclComm_t comm;
  cudaStream_t stream;
  uint64_t steps; /* of a cycle: at most `most`, may be changed */
  uint64_t most;
  bool graphs;         /* steps are launches of captured graphs */
  cudaEvent_t *events; /* [most + 1] */
  /* of the current size */
  size_t count;
  void *gradients[GRADIENTS];
};

void timer_init(struct timer *timer, const struct rank *me, const struct datatype *type,
                uint64_t most, bool graphs);
void timer_free(struct timer *timer);

/* Microseconds of a step. The mean of a cycle, from its begin to its end: its median, least and
 * most over repetitions. And the median over all steps, from other cycles, with events between
 * them. */
struct timing {
  double mean, mean_min, mean_max, median;
};
extern const struct timing no_timing; /* NaN */

/* A path: a step with each gradient, all of it compared with the reference; then its time; then the
 * calls that were timed, graphs among them, once more, and what they leave is compared.
 * `updates` == false: weights are left out of what is timed. `code` becomes an exit code, the same
 * on all ranks; what is wrong has no time. */
struct timing time_path(struct timer *timer, const struct runner *runner,
                        const sparse_allreduce_config_t *config, bool updates, int *code);

/* The same of an allreduce from one of several send buffers in turn: enqueues it on the timer's
 * stream. */
typedef ncclResult_t allreduce_call(struct timer *timer, const void *send, void *recv);
struct timing time_allreduce(struct timer *timer, allreduce_call *call, void *const send[],
                             void *recv, int *code);

/* The parts of a step, in microseconds: the mean over some steps that reuse thresholds. */
enum { PHASES = 5 };
extern const char *const phase_names[PHASES];
void time_phases(struct timer *timer, const struct runner *runner, double us[PHASES]);

/* Bytes per microsecond that a copy within device memory reads and writes, and the device memory
 * that this takes. */
double time_copy(struct timer *timer);
size_t time_copy_bytes(void);

/* An AllReduce of the whole gradient (dense.c): NCCL's on plain buffers, on symmetric windows, and
 * the direct one of example 02. `codes`: EXIT_CANNOT_RUN where one is not possible. Returns
 * EXIT_VERIFIED, or another code; `best` then has no time. */
enum { DENSE_KINDS = 3 };
extern const char *const dense_names[DENSE_KINDS];
struct dense_times {
  struct timing times[DENSE_KINDS], best;
  int codes[DENSE_KINDS];
};
int time_dense(struct timer *timer, struct dense_times *dense);

#endif
