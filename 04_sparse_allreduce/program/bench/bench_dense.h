/* SPDX-License-Identifier: Apache-2.0 */
/* What the sparse paths have to beat: dense AllReduces of the whole gradient, each verified and
 * timed as the paths are: NCCL's on plain buffers and on symmetric windows, and the one that
 * example 02 has written. The fastest of them is what ratios are against. */
#ifndef BENCH_DENSE_H
#define BENCH_DENSE_H

#include "program/bench/bench_time.h"

enum { BENCH_DENSE_WAYS = 3 };
extern const char *const bench_dense_names[BENCH_DENSE_WAYS];

struct bench_dense {
  struct bench_time times[BENCH_DENSE_WAYS]; /* NaN: wrong, or not here */
  int codes[BENCH_DENSE_WAYS];               /* of verification; EXIT_CANNOT_RUN: not here */
  struct bench_time best;                    /* NaN if one of them is wrong */
};

/* Returns an exit code, the same on all ranks. Collective. */
int bench_time_dense(struct bench_timer *timer, struct bench_dense *dense);

#endif
