/* SPDX-License-Identifier: Apache-2.0 */
/* The constants of the paper's training jobs. Users choose a preset. Tests draw their own. */
#ifndef SPARSE_CONSTANTS_H
#define SPARSE_CONSTANTS_H

#include "sparse_allreduce.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SPARSE_MAX_RAISES 5
#define SPARSE_MAX_CORRECTIONS 50

/* num/den, of k (sparse_correction_t) or of t = floor(count * density) (all others); k = max(t, 1).
 * Both are below 2^20, so that count * den stays below 2^63. */
typedef struct {
  int num, den;
} sparse_fraction_t;

/* How a threshold follows the number of selected entries from step to step (OKTOPK): below `low`:
 * threshold /= low_factor; above `high`: threshold *= high_factor. Factors are at least 1. */
typedef struct {
  sparse_fraction_t low, high;
  double low_factor, high_factor;
} sparse_band_t;

/* Corrections of the Gaussian threshold within a step (GAUSSIANK, GAUSSIANKCONCAT): if fewer than
 * floor(lower_below * k) are selected, threshold /= lower_factor, at most lower_steps times, until
 * there are at least floor(lower_until * k); else if more than floor(raise_above * k) are,
 * threshold *= raise_factor, at most raise_steps times, until there are no more than that. */
typedef struct {
  sparse_fraction_t lower_below, lower_until, raise_above;
  double lower_factor, raise_factor;
  int lower_steps, raise_steps; /* at most SPARSE_MAX_CORRECTIONS each */
} sparse_correction_t;

struct sparse_constants {
  int topkaopt_interval;    /* steps from one exact threshold to the next (TOPKAOPT) */
  int local_interval;       /* the same of local thresholds (OKTOPK) */
  int global_interval;      /* of global thresholds (OKTOPK) */
  int repartition_interval; /* of new regions (OKTOPK) */
  /* OKTOPK, in a step that reuses a threshold: while more than raise_above of t is selected, at
   * most raise_steps times (SPARSE_MAX_RAISES), local threshold *= raise_factor */
  int raise_steps;
  sparse_fraction_t raise_above;
  double raise_factor;
  sparse_band_t local_band, global_band; /* OKTOPK: for the next step */
  sparse_correction_t correction;        /* GAUSSIANK, GAUSSIANKCONCAT */
};

/* The published ones: Ok-Topk's VGG/, LSTM/ and BERT/. */
void sparse_constants_init(struct sparse_constants *constants, sparse_preset_t preset);

/* sparse_allreduce_create() with constants that are not those of config->preset (NULL: those). They
 * must be the same on all ranks, and are not checked. */
ncclResult_t sparse_allreduce_create_with(ncclComm_t comm, size_t count,
                                          const sparse_allreduce_config_t *config,
                                          const struct sparse_constants *constants,
                                          sparse_allreduce_t *handle);

#ifdef __cplusplus
}
#endif
#endif
