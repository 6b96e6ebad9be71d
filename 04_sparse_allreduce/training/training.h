/* SPDX-License-Identifier: Apache-2.0 */
/* What is trained how, from the command line; and the table of what came out. */
#ifndef TRAINING_H
#define TRAINING_H

#include "launcher.h"
#include "program/rows.h"
#include "sparse_allreduce.h"

/* As NCCLCHECK, with the sentence that sparse_allreduce.h has for the error. */
#define SPARSECHECK(call) CHECK_NCCL_RESULT(call, #call, sparse_allreduce_last_error())

/* A way to make one gradient of those of all ranks. */
struct path {
  sparse_allreduce_algorithm_t algorithm;
  bool forgets; /* the residual is cleared in each step: what is not sent is lost */
  char name[40];
};

enum { MAX_PATHS = 2 * SPARSE_ALGORITHMS };

struct training {
  struct path paths[MAX_PATHS];
  int npaths;
  double density, rate;
  long epochs, batch, seed, seeds;
  sparse_exchange_t exchange;
  const char *table;
};

extern const struct option_spec training_option_table[];

/* What the options ask for. Returns an exit code, after a line on stderr. Collective. */
int training_open(struct training *training, const struct rank *me);

/* What the library is to do for a path. */
sparse_allreduce_config_t training_config(const struct training *training, const struct path *path);

/* How the steps of a handle move entries, in words. Not collective. */
const char *training_mode(const struct path *path, sparse_allreduce_t handle);

/* ---- the table ------------------------------------------------------------------------------- */

/* After an epoch, over all ranks: the mean loss of the images to learn from, and how many of the
 * held-out ones were given their digit. */
struct epoch {
  long seed, number;
  double loss;
  int right;
};

/* A path so far, with all its seeds. */
struct course {
  const struct path *path;
  const char *mode; /* how entries move */
  double *us;       /* of each step: the exchange on this rank */
  long steps;
  double words; /* sent by this rank, all steps */
  double loss;  /* sums over seeds, after their last epochs, ... */
  long right, seeds;
  int lowest, highest; /* ... and the extremes of `right` */
};

struct table {
  const struct training *training;
  const struct rank *me;
  struct rows rows; /* of -J, a row for each epoch */
};

/* Prints the heading. Returns an exit code. Collective. */
int table_open(struct table *table, const struct training *training, const struct rank *me);

/* An epoch has ended: a row of -J, and on a terminal how far all is. Collective. */
void table_epoch(struct table *table, const struct course *course, const struct epoch *epoch);

/* A path has ended: its line, and its mode as a note. `code` is EXIT_VERIFIED if all ranks had the
 * same weights. Collective. */
void table_path(struct table *table, const struct course *course, int code);

/* Gives the file of -J its name, if there is reason to. Returns the exit code. Collective. */
int table_close(struct table *table, int code);

#endif
