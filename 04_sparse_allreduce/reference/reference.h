/* SPDX-License-Identifier: Apache-2.0 */
/* The reference: all ranks of a sparse allreduce emulated in one process, in plain C, written to be
 * read beside the paper. Its loops over ranks and over elements may run on several cores; what
 * comes out does not depend on their number. It shares no code with the operators that it checks
 * and has no tolerance: after a step, what the GPUs hold must equal this bit for bit (SPARSE_DENSE
 * and the Gaussian threshold itself excepted). A NaN that comes out of arithmetic on floats has the
 * bits 0x7fffffff, as on the GPU. */
#ifndef REFERENCE_H
#define REFERENCE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "constants.h"

struct team; /* parallel.h */

/* What one rank holds after a step. After a dense step: nothing offered (above 0x7fffffff, no tie),
 * words counted, the rest as it was. */
struct reference_rank {
  float *acc;        /* [n] gradient + residual of this step, before anything was zeroed */
  float *residual;   /* [n] kept for the next step */
  uint32_t *offered; /* [noffered] indices that the rank offered, ascending */
  size_t noffered;
  uint64_t *region_counts;   /* [nranks] how many of them lie in each region */
  double local_threshold;    /* as in sparse_allreduce_statistics_t */
  double gaussian_threshold; /* mean + z * deviation, before any correction */
  uint32_t selected_above;
  int64_t selected_tie;
  bool overflowed;
  uint64_t words_sent, words_received;
};

/* GTOPK: a partial sum that a node of the tree did not pass on. */
struct reference_discard {
  int node;
  struct sparse_pair entry;
};

struct reference {
  sparse_allreduce_config_t config;
  struct sparse_constants constants; /* of config.preset; tests change them */
  size_t n;
  uint64_t k, t, capacity;
  int nranks;
  struct team *team;            /* that computes steps, see parallel.h; NULL: the caller alone */
  uint64_t step;                /* number of the next step, from 0 */
  struct reference_rank *ranks; /* [nranks] */
  uint64_t *boundaries;         /* [nranks + 1] */
  double global_threshold;
  /* the result of the last step, the same on all ranks */
  float *result;              /* [n] */
  struct sparse_pair *global; /* [nglobal] entries before the division, ascending indices */
  size_t nglobal, most_global;
  float *sums; /* [n] sum over ranks of what was offered, in the order of the path;
                  GTOPK: of what got through the tree */
  bool exact_local, exact_global, repartitioned, dense, fell_back;
  atomic_bool nonfinite;
  struct reference_discard *discarded; /* [ndiscarded] GTOPK, in the order of rounds */
  size_t ndiscarded;
  double gradient_norm; /* of the mean over ranks of this step's gradients */
  /* of the step, while it is computed: what reference_step was given */
  const float *const *gradients;
  const double *gaussian_thresholds;
  /* work space of reference_xi */
  float *mean;       /* [n] */
  uint32_t *largest; /* [k] */
  /* work space of GTOPK: the list of each node, and two lists when they meet */
  struct sparse_pair *lists, *merged;
  float *merged_values;
};

/* NULL if memory does not suffice. The configuration must be valid; gradients are float here. */
struct reference *reference_create(const sparse_allreduce_config_t *config, size_t n, int nranks);
void reference_destroy(struct reference *ref);

/* One step of all ranks; gradients[r] has n elements. gaussian_thresholds: NULL, or for each rank
 * the mean + z * deviation to use in place of the one computed here, which stays in
 * ranks[r].gaussian_threshold for comparison. */
void reference_step(struct reference *ref, const float *const gradients[],
                    const double *gaussian_thresholds);

/* The paper's measure of what selecting costs: the distance between the result and the k largest
 * entries of the mean of all acc, relative to the norm of the mean gradient. 0 after a dense step.
 */
double reference_xi(struct reference *ref);

#endif
