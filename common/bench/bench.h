/* SPDX-License-Identifier: Apache-2.0 */
/* --bench: a sweep over sizes that times several variants of one operation.
 *
 * At every size each variant is verified, then all variants are timed in turns, and the results of
 * the last repetition are verified again. So a variant with a wrong result gets no time, and a
 * drift of the machine's speed affects all variants alike. A repetition is n calls (a loop, or one
 * CUDA graph) between two events; its time is that of the slowest rank, divided by n. The table
 * shows the median of the repetitions. */
#ifndef COMMON_BENCH_H
#define COMMON_BENCH_H

#include <stdbool.h>

#include "launcher.h"

/* One row of the table. */
struct bench_size {
  int series;   /* which of bench.series */
  size_t bytes; /* of one call, per rank */
  size_t count; /* elements: bytes / size of the type */
  long calls;   /* in one repetition, or in its graph */
  long slots;   /* calls whose data fit into buffers of maxbytes, at most `calls` */
};

/* One way to do the operation. The functions are called on every rank in the same order, with the
 * variant's `state`. Functions that enqueue must not wait. */
struct bench_variant {
  const char *name; /* column heading */
  void *state;
  /* Once before the sweep and once after it; NULL: nothing to do. */
  void (*setup)(void *state);
  void (*teardown)(void *state);
  /* Enqueues the operation on slot 0 <= slot < size.slots: this is what is timed. */
  void (*call)(void *state, struct bench_size size, long slot, cudaStream_t stream);
  /* Writes the input of all slots and poisons their output; then, after calls for all slots, waits
   * for the stream and returns the number of wrong elements of this rank. */
  void (*fill)(void *state, struct bench_size size);
  unsigned long long (*check)(void *state, struct bench_size size);
};

struct bench {
  const char *title;                    /* "AllReduce, user buffer registration" */
  const struct bench_variant *variants; /* the others are compared with [0] */
  int nvariants;                        /* at most BENCH_MAX_VARIANTS */
  /* The name of the rate, bytes on the link / time: "busbw" as nccl-tests defines it for the
   * collective, or "wire", the most that any rank sends to others or receives from them. */
  const char *rate;
  double (*moved)(const struct bench *bench, const struct rank *me, struct bench_size size);
  const void *context; /* for `moved` */
  /* Several sweeps, such as the patterns of an AlltoAllV; NULL: one sweep without a name. */
  const char *const *series;
  int nseries;
  const char *series_name; /* "pattern" */
  double limit;            /* GB/s; rates are also shown as a percentage of it; 0: unknown */
};

enum { BENCH_MAX_VARIANTS = 8 };

/* Runs the sweep of the options on `stream`, prints the table (rank 0) and writes --output.
 * Returns EXIT_VERIFIED, EXIT_WRONG_DATA, or EXIT_FAILED_CALL if the file cannot be written.
 * Collective. */
int bench_run(const struct rank *me, const struct options *opt, const struct bench *bench,
              cudaStream_t stream);

/* False on the stand-in, whose times are left out; tests of the arithmetic set it. */
extern bool bench_shows_times;

/* The median of n values, which it sorts. */
double bench_median(double *values, long n);

#endif
