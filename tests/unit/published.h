/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of the published code (Shigangli/Ok-Topk), slow and literal, for all ranks in one
 * thread. With nothing of the reference in it; both must agree to the bit. (LSTM/ and BERT/ search
 * in a list that is not sorted: that mistake is repaired here.) */
#ifndef PUBLISHED_H
#define PUBLISHED_H

#include "sparse_allreduce.h"

#include <stdbool.h>

struct published {
  sparse_preset_t job; /* VGG/, LSTM/ and BERT/ are three copies of the code that differ */
  size_t n;
  int nranks;
  double density;
  long counter;
  float **acc, **residual; /* [nranks][n] */
  double *local_threshold; /* [nranks] */
  double global_threshold;
  bool **offered;     /* [nranks][n] */
  size_t *noffered;   /* [nranks] */
  size_t *boundaries; /* [nranks + 1] */
  float *sums;        /* [n] over ranks of what was offered */
  float *result;      /* [n] */
  size_t nglobal;     /* entries of the result */
};

struct published *published_create(sparse_preset_t job, double density, size_t n, int nranks);
void published_destroy(struct published *p);

/* One step each. NULL, or the exception with which the published program ends. */
const char *published_oktopk(struct published *p, const float *const gradients[]);
const char *published_topkaopt(struct published *p, const float *const gradients[]);
/* z: of the normal distribution, such that |x| > z has the probability `density` */
const char *published_gaussiank(struct published *p, const float *const gradients[], double z);

#endif
