/* SPDX-License-Identifier: Apache-2.0 */
/* How the results of a sweep are shown: the table on stdout, the file of --output. For bench.c. */
#ifndef COMMON_BENCH_OUTPUT_H
#define COMMON_BENCH_OUTPUT_H

#include "bench.h"
#include "rows.h"

/* One variant at one size. Times are microseconds per call, NaN where there is none. */
struct bench_cell {
  double us;                           /* median of the repetitions */
  double us_min, us_q1, us_q3, us_max; /* their extremes and quartiles */
  unsigned long long wrong;            /* elements, over all ranks */
};

struct bench_row {
  struct bench_size size;
  struct bench_cell cells[BENCH_MAX_VARIANTS];
};

/* Where rows go. All functions are for rank 0. */
struct bench_output {
  const struct bench *bench;
  const struct options *opt;
  const struct rank *me;
  struct rows rows; /* the file of --output */
  double limit;     /* of the bench; 0: unknown */
};

/* Prints the heading, opens the file. Returns 0, or -1 after a line on stderr. */
int bench_output_start(struct bench_output *out);
/* Says that rows of this series follow. */
void bench_output_series(struct bench_output *out, int series);
void bench_output_row(struct bench_output *out, const struct bench_row *row);
#endif
