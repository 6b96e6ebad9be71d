/* SPDX-License-Identifier: Apache-2.0 */
/* How --bench measures. Steps are enqueued one after the other, as in training; of the ranks the
 * slowest counts. On the stand-in, whose times mean nothing, all are NaN. All functions are
 * collective. */
#ifndef BENCH_TIME_H
#define BENCH_TIME_H

#include "program/bench/bench_verify.h"
#include "program/report.h"

struct bench_timer {
  const struct rank *me;
  const struct datatype *type; /* of the gradients */
  ncclComm_t comm;
  cudaStream_t stream;
  uint64_t steps; /* of a cycle: at most `most`, may be changed */
  uint64_t most;
  bool graphs;         /* steps are launches of captured graphs */
  bool updates;        /* and with --result entries weights are updated in them */
  cudaEvent_t *events; /* [most + 1] */
  /* of the current size */
  size_t count;
  void *gradients[BENCH_GRADIENTS];
};

void bench_timer_init(struct bench_timer *timer, const struct rank *me, const struct datatype *type,
                      uint64_t most, bool graphs);
void bench_timer_free(struct bench_timer *timer);

/* Microseconds of a step. The mean of a cycle, from its begin to its end: its median, least and
 * most over repetitions. And the median over all steps, from other cycles, with events between
 * them. */
struct bench_time {
  double mean, mean_min, mean_max, median;
};
extern const struct bench_time bench_no_time; /* NaN */
struct bench_time bench_time_path(struct bench_timer *timer, const struct version *version);

/* The same of an allreduce from one of several send buffers in turn: enqueues it on the timer's
 * stream. Verified first; `code` is that exit code, the same on all ranks, and what is wrong has no
 * time. */
typedef ncclResult_t bench_allreduce_t(struct bench_timer *timer, const void *send, void *recv);
struct bench_time bench_time_allreduce(struct bench_timer *timer, bench_allreduce_t *allreduce,
                                       void *const send[], void *recv, int *code);

/* The parts of a step, in microseconds: the mean over some steps that reuse thresholds. */
enum { BENCH_PHASES = 5 };
extern const char *const bench_phase_names[BENCH_PHASES];
void bench_time_phases(struct bench_timer *timer, sparse_allreduce_t handle,
                       double us[BENCH_PHASES]);

/* Bytes per microsecond that a copy within device memory reads and writes. */
double bench_copy_rate(struct bench_timer *timer);

/* Device memory that takes. */
size_t bench_copy_bytes(void);

#endif
