/* SPDX-License-Identifier: Apache-2.0 */
/* All that the library knows of a path: a row of one table, paths.c. What a step of it does stands
 * in the path's own file. Not for users: they include sparse_allreduce.h. */
#ifndef PATHS_H
#define PATHS_H

#include <stdbool.h>
#include <stddef.h>

#include "constants.h"

struct sparse_allreduce_handle;

/* Enqueues a step, from the gradient to the result, on every rank in the same way:
 *
 * select    one of select.c's functions makes acc = gradient + residual and the offered list; it is
 *           told what of the list leaves the residual
 * exchange  in front of it a SEAL decision puts a flag entry after the list, behind it a COLLECT
 *           decision reads those that came (decide/decisions.h): so all ranks learn of an error of
 *           one. A list has up to list_room entries, that one included
 * reduce    sums, in an order that is the same on all ranks
 * apply     ops_apply() with sparse_result(), or ops_apply_gathered(), which makes one list of
 *           all owners' sums first: the result is averaged, and written where the user wants it
 *
 * sparse_phase() says where each begins, for those who measure. */
typedef ncclResult_t sparse_path_t(struct sparse_allreduce_handle *h, const void *gradient,
                                   cudaStream_t stream);

/* Words of 32 bits that a step moved between this rank and the others, whatever the exchange. */
typedef ncclResult_t sparse_words_t(const struct sparse_allreduce_handle *h, uint64_t *sent,
                                    uint64_t *received);

/* One step in so many is exact or has new regions; 0: none. */
struct sparse_intervals {
  int exact_local, exact_global, repartition;
};
typedef struct sparse_intervals sparse_intervals_t(const struct sparse_constants *constants);

/* Does the host wait for counts in a step? Such a step cannot be captured. */
enum sparse_host {
  SPARSE_HOST_NEVER_WAITS, /* all lists have k entries, or there are none */
  SPARSE_HOST_MAY_WAIT,    /* where NCCL moves lists: it wants their lengths on the host */
  SPARSE_HOST_WAITS,       /* in every exchange */
};

/* The usual value. A guess above the k-th magnitude costs a search of the whole residual; one far
 * below it costs a long list of candidates. */
#define SPARSE_GUESS_RATIO 0.85

struct sparse_path {
  const char *name;
  sparse_path_t *run;
  sparse_path_t *run_onesided; /* where ranks use each other's lists; NULL: it cannot */
  sparse_words_t *words;
  enum sparse_host host;

  /* Which steps are special: the first sparse one and one in so many. NULL: none. */
  sparse_intervals_t *intervals;
  /* Is the threshold the k-th magnitude in every step? NULL: no. Or can it be Gaussian? */
  bool (*always_exact)(const sparse_allreduce_config_t *, const struct sparse_constants *);
  bool may_be_gaussian;

  bool selects; /* it offers entries, keeps a residual: all but dense */
  /* A step of it may leave a dense result, whatever config.result says. */
  bool may_be_dense;
  bool balances; /* may even out the sums before they are gathered */
  /* It sends and receives itself, with lists of k entries, whatever the handle's exchange. In a
   * graph NCCL maps the whole allocation that a buffer lies in. Before 2.29.2, if ncclSend or
   * ncclRecv came first, a collective takes that for mapped and gets address 0 (NVIDIA/nccl issue
   * 1859). So what it gathers with a collective is an allocation of its own. */
  bool own_messages;

  /* Where the first exact selections look for candidates: above so much of the threshold. Later
   * ones adapt this to how many they found. Only speed depends on it. 0: SPARSE_GUESS_RATIO. */
  double guess_ratio;
};

/* Of an algorithm that sparse_config_error() finds nothing wrong with. */
const struct sparse_path *sparse_path_of(sparse_allreduce_algorithm_t algorithm);

sparse_path_t path_dense, path_topka, path_topka2, path_topkaopt, path_gtopk, path_oktopk,
    path_topksa, path_gaussiank, path_gaussiankconcat, path_gaussiansa;
sparse_path_t path_oktopk_onesided; /* onesided/oktopk_onesided.c */

/* sparse_words.c */
sparse_words_t sparse_words_of_allreduce; /* every element, as a ring moves them */
sparse_words_t sparse_words_of_lists;     /* every rank's list to everybody */
sparse_words_t
    sparse_words_of_tree; /* lists of k entries up a tree, and one from the root to all */
sparse_words_t
    sparse_words_of_regions; /* lists to owners of regions, the owners' sums to everybody */

#endif
