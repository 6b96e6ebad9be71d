/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the program: what a path did over all its steps and ranks, one row each. */
#ifndef REPORT_H
#define REPORT_H

#include "program/runner.h"
#include "output_file.h"

/* What happened in the steps of one path on this rank. */
struct path_steps {
  double *us;      /* [job->steps] time of each step */
  uint64_t timed;  /* how many there are */
  uint64_t sparse; /* of them, those that were not dense; the sums below are over these, */
  double local, global, words; /* ... over dense ones where there are no others */
  double xi;                   /* sum of those that the paper would record, */
  uint64_t xi_steps;
  uint64_t last;     /* step that was begun last */
  uint64_t verified; /* steps that were compared */
};

struct report {
  const struct job *job;
  struct rows rows;
  double dense_us; /* NaN until dense was measured */
};

void path_steps_add(struct path_steps *steps, const sparse_allreduce_statistics_t *statistics);

/* Prints the heading; returns an exit code. Collective. */
int report_open(struct report *report, const struct job *job);

/* Prints the row of a path and, as a note, its runner_mode(); `code` is EXIT_VERIFIED if all of its
 * steps were right. Collective. */
void report_path(struct report *report, int path, const struct runner *runner,
                 const struct path_steps *steps, int code);

/* A number of a table; "-" where there is none. */
void report_number(const struct rank *me, int width, int digits, double value, const char *unit);

/* Median over steps of the slowest rank's time, and mean; NaN on the stand-in, whose times mean
 * nothing. `us` has the same `n` on all ranks. Collective. */
struct report_time {
  double median, mean;
};
struct report_time report_time(const struct rank *me, const double *us, uint64_t n);

#endif
