/* SPDX-License-Identifier: Apache-2.0 */
/* The decisions of a step: arithmetic on a few numbers of the state, taken by one thread on the
 * device so that no count has to travel to the host. decide.h says which code each one is. */
#ifndef DECISIONS_H
#define DECISIONS_H

enum sparse_decision {
  SPARSE_THEN_NOTHING,

  /* ---- statements of a path, or of what paths share: ops_decide() ---- */

  /* local selection, after the local pass */
  SPARSE_SEARCH_K,           /* search the candidates; the residual if they are too few, or too
                                many for the list */
  SPARSE_TAKE_THRESHOLD,     /* choose what exceeds the threshold, raised if that is too much */
  SPARSE_GAUSSIAN_THRESHOLD, /* mean + z * deviation, and a table of levels to correct it by */
  SPARSE_HALVING_THRESHOLD,  /* mean + z * deviation, to be halved or raised by half */

  /* thresholds of Ok-Topk */
  SPARSE_GLOBAL_THRESHOLD, /* becomes the smallest of the largest sums that a search has found */
  SPARSE_ADAPT_LOCAL,      /* the local threshold follows how many entries were offered */
  SPARSE_ADAPT_BOTH,       /* the same; and the global one follows how many are in the result */

  /* ops_keep_largest() is to keep the k largest entries. Where it looks for the k-th first only
     changes its speed. */
  SPARSE_WANT_K,                /* it looks everywhere */
  SPARSE_WANT_K_NEAR_THRESHOLD, /* it looks above 0.85 of the global threshold first, since that
                                   has followed the k-th sum from step to step */

  /* regions */
  SPARSE_PROPOSED_REGIONS, /* boundaries from the sum of all ranks' proposals */
  SPARSE_SPLIT_COUNTS,     /* received_counts from the matrix of counts */

  /* flags travel as an entry with index SPARSE_NO_INDEX after a list */
  SPARSE_SEAL_OFFERED,          /* one follows the offered list if there is something to say */
  SPARSE_SEAL_FIXED,            /* one always follows the offered list of k entries */
  SPARSE_COLLECT_FIXED,         /* k entries and a flag entry have come from every rank */
  SPARSE_COLLECT_FLAGS,         /* lists of any length have come, to `received` */
  SPARSE_COLLECT_OFFERED_FLAGS, /* gaussiank: lists of any length were put together in `offered` */
  SPARSE_COLLECT_GATHERED,      /* sums have come, to `gathered`: flags, and how many they are */
  SPARSE_COLLECT_PEER,          /* gtopk: a list of k entries has come from a rank of the tree */
  SPARSE_COLLECT_ROOT,          /* gtopk: the list of the root has come, which is the result */

  /* ---- taken at the end of kernels, whose interface says so (ops.h) ---- */

  /* ops_select_offered() has found the k-th magnitude */
  SPARSE_K_FOUND,        /* the next step's guess follows from it */
  SPARSE_KTH_FOUND,      /* the same; and it becomes the local threshold */
  SPARSE_OVERFLOW_FOUND, /* if a threshold chose too many, it becomes the local threshold */

  /* ops_count_levels() has counted */
  SPARSE_GAUSSIAN_CORRECT, /* a threshold of the table is taken, or counting goes on */
  SPARSE_HALVING_CORRECT,  /* the threshold is taken, or changed by half and counted again */

  SPARSE_SEAL_REDUCED, /* ops_reduce(): a flag entry follows the sums, as in SEAL_OFFERED */

  /* oktopk one-sided, where a launch of its own would be too slow */
  SPARSE_OFFER_THRESHOLD,   /* as TAKE_THRESHOLD, but the candidates were already sent, and their
                               owners leave out what a raised threshold does not choose */
  SPARSE_COUNT_ADAPT_LOCAL, /* counts the sums, which have come; then as ADAPT_LOCAL */
  SPARSE_COUNT_ADAPT_BOTH,  /* counts the sums, which have come; then as ADAPT_BOTH */
};

/* Which elements the local pass gathers: the candidates for what a rank offers. */
enum sparse_candidates {
  SPARSE_ABOVE_LEVELS,       /* above state->levels[0], and not above state->limit; counts them by
                                all levels */
  SPARSE_ABOVE_GUESS,        /* above a guess, somewhat below the threshold of the step before */
  SPARSE_FINITE_ABOVE_GUESS, /* the same, without NaN */
  SPARSE_ABOVE_THRESHOLD,    /* above the threshold, without NaN */
  SPARSE_ABOVE_THRESHOLDS,   /* the same, counting by those that it may be raised to */
};

#endif
