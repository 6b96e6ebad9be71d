/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of the published code (Shigangli/Ok-Topk) as they are, mistakes included, for all ranks
 * in one thread: to show what each of our deviations changes. Written from the specification, with
 * nothing of the reference in it; where no mistake strikes, both must agree. */
#ifndef PUBLISHED_H
#define PUBLISHED_H

#include "sparse_allreduce.h"

#include <stdbool.h>

struct published {
  sparse_preset_t job; /* VGG/, LSTM/ and BERT/ are three copies of the code that differ */
  size_t n;
  int nranks;
  double density;
  bool repaired; /* LSTM, BERT: intersect as VGG does */
  long counter;
  float **acc, **residual; /* [nranks][n] */
  double *local_threshold; /* [nranks] */
  double global_threshold;
  bool **offered;               /* [nranks][n] */
  size_t *noffered;             /* [nranks] */
  size_t *boundaries;           /* [nranks + 1] */
  float *sums;                  /* [n] over ranks of what was offered */
  float *arrived;               /* [n] of these, what the result has */
  float *result;                /* [n] on ranks whose top-k takes the first of equals ... */
  float *other_result;          /* [n] ... and on ranks where it takes the last */
  size_t nglobal, left, stayed; /* entries of the result; of those that each rank offered, how many
                                   left the residual and how many stayed though they should not */
};

struct published *published_create(sparse_preset_t job, double density, size_t n, int nranks);
void published_destroy(struct published *p);

/* One step each. NULL, or the exception with which the published program ends. */
const char *published_oktopk(struct published *p, const float *const gradients[]);
const char *published_topksa(struct published *p, const float *const gradients[]);
const char *published_gtopk(struct published *p, const float *const gradients[]);
const char *published_topkaopt(struct published *p, const float *const gradients[]);
/* z: of the normal distribution, such that |x| > z has the probability `density` */
const char *published_gaussiank(struct published *p, const float *const gradients[], double z);

/* Whether gtopk's tree gets to its end with so many ranks. */
const char *published_tree(int nranks);

/* An index after its way through a message of floats. */
uint32_t published_index_on_the_wire(uint32_t index);

#endif
