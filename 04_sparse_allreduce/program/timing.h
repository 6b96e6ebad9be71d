/* SPDX-License-Identifier: Apache-2.0 */
/* How --bench measures. Steps are enqueued one after the other, as in training; of the ranks the
 * slowest counts. What is timed is verified before, and again after. On the stand-in, whose times
 * mean nothing, all are NaN. All functions are collective. */
#ifndef TIMING_H
#define TIMING_H

#include "program/runner.h"
#include "verify.h"

enum { GRADIENTS = 3 }; /* buffers that gradients come from in turn */

/* Microseconds of a step. The mean of a cycle, from its begin to its end: its median, least and
 * most over repetitions. The median over all steps, from other cycles, with events between them.
 * And the parts of a step, the mean over some steps that reuse thresholds. */
enum { PHASES = 5 };
struct timing {
  double mean, mean_min, mean_max, median, phases[PHASES];
};
extern const char *const phase_names[PHASES];

/* What a sparse path has to beat, an AllReduce of as many elements: NCCL's on plain buffers, on
 * symmetric windows (where NCCL cannot use those, it is as the plain one), and the direct one of
 * example 02, where all ranks share memory. */
enum dense_kind { PLAIN, SYMMETRIC, DIRECT, DENSE_KINDS };

struct sweep {
  const struct job *job;
  const struct rank *me;
  ncclComm_t comm;
  cudaStream_t stream;
  struct verifier verifier; /* of AllReduces; it has the type of gradients */
  bool graphs;              /* steps are launches of captured graphs */
  struct rows rows;
  double copy_rate;
  int code; /* EXIT_VERIFIED, or of what went wrong last */
  /* of the current size */
  size_t count;
  uint64_t steps; /* of a cycle */
  void *gradients[GRADIENTS];
  struct timing dense[DENSE_KINDS];
  int dense_codes[DENSE_KINDS]; /* EXIT_CANNOT_RUN where it is not possible */
  double dense_us;              /* of the fastest one */
};

/* A path: a step with each gradient, all of it compared with the reference; then its time; then the
 * calls that were timed, graphs among them, once more, and what they leave is compared. `code`
 * becomes an exit code, the same on all ranks; what is wrong has no time. */
struct timing time_path(struct sweep *sweep, struct runner *runner, int *code);

extern const char *const dense_names[DENSE_KINDS];
void time_dense(struct sweep *sweep, enum dense_kind kind); /* into sweep->dense */

/* Bytes per microsecond that a copy within device memory reads and writes. It takes two buffers. */
#ifdef CPU_STANDIN
enum { COPY_BYTES = 1 << 20 };
#else
enum { COPY_BYTES = 256 << 20 };
#endif
double time_copy(struct sweep *sweep);

#endif
