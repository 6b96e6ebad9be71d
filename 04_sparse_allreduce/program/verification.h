/* SPDX-License-Identifier: Apache-2.0 */
/* After a step, everything that the device holds is compared with the reference, bit for bit, on
 * every rank; and the reference's step must obey the invariants. Exceptions: sums of dense steps,
 * whose order is NCCL's, have an error bound; thresholds from mean and deviation may differ by
 * rounding, and then the reference goes on with the device's. */
#ifndef VERIFICATION_H
#define VERIFICATION_H

#include "reference/invariants.h"
#include "launcher.h"
#include "reference/reference.h"
#include "sparse_allreduce.h"

/* What a step left: this rank's. */
struct step_left {
  sparse_allreduce_statistics_t statistics;
  const float *result;               /* in device memory, as `weights`: */
  const float *weights;              /* those of --result entries; else NULL */
  const struct sparse_pair *entries; /* of the result, before the division: in device memory, */
  uint64_t count;                    /* so many. NULL: there is no list of them */
  const uint64_t *boundaries;        /* of regions: ranks + 1 */
  const float *residual; /* on the host; NULL if there is none, or it was not asked for */
};

struct verification {
  const struct rank *me;
  int level; /* an enum program_verify of program.h */
  /* one for all ranks of a process, of whom the first computes the steps */
  bool is_first, one_process;
  struct team *team;             /* the cores that this process may use */
  struct reference *ref;         /* all ranks, emulated */
  struct invariants *invariants; /* of the reference */
  float *gradients;              /* [ranks * n] of the step, of all ranks */
  /* this rank's */
  float *host;               /* [n] what comes from the device */
  float *residual;           /* [n] */
  struct sparse_pair *pairs; /* [ranks * (capacity + 1)] dito */
  float *weights;            /* [n] of --result entries: as they have to be; else NULL */
  /* what is worth telling */
  uint64_t compared; /* steps */
  double xi;         /* sum over the steps that the paper would record, as far as this rank ... */
  uint64_t xi_steps; /* ... computed it: the ranks take turns */
};

/* Returns an exit code: EXIT_USAGE, after one line, if the host's memory does not suffice.
 * verification_free() in any case. Both are collective. */
int verification_init(struct verification *v, const struct rank *me,
                      const sparse_allreduce_config_t *config, size_t count, int level);
void verification_free(struct verification *v);

/* Where the residual of the next step is to go for verification_step(); NULL: it will not look. */
float *verification_residual(const struct verification *v);

/* After a step and its synchronisation. Returns EXIT_VERIFIED, or EXIT_WRONG_DATA after one line on
 * stderr that says what differed first. Collective. */
int verification_step(struct verification *v, const struct step_left *left, const void *gradient,
                      cudaStream_t stream);

/* The same for a copy of that step's result, or of the residual, which is about to leave the
 * program. Not collective. */
int verification_of_result(const struct verification *v, const float *copy);
int verification_of_residual(const struct verification *v, const float *copy);

#endif
