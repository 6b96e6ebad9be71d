/* SPDX-License-Identifier: Apache-2.0 */
/* The decisions of a step: arithmetic on a few numbers of the state, taken by one thread on the
 * device so that no count has to travel to the host. decide.h says which code each one is. */
#ifndef DECISIONS_H
#define DECISIONS_H

enum sparse_decision {
  SPARSE_THEN_NOTHING,

  /* ---- statements of a path, or of what paths share: ops_decide() ---- */

  /* local selection, after the local pass */
  SPARSE_SEARCH_K,           /* search the candidates, or the residual if they do not do */
  SPARSE_TAKE_THRESHOLD,     /* what exceeds the threshold; it is raised first if that is much */
  SPARSE_GAUSSIAN_THRESHOLD, /* mean + z * deviation, and a table of levels to correct it by */
  SPARSE_HALVING_THRESHOLD,  /* the same, to be halved or raised by half */

  /* thresholds of Ok-Topk */
  SPARSE_GLOBAL_THRESHOLD, /* is the smallest magnitude that a search for the largest sums found */
  SPARSE_ADAPT_LOCAL,      /* the local threshold of the next step: by how many were offered */
  SPARSE_ADAPT_BOTH,       /* and the global one: by how many are in the result */

  /* how many entries ops_keep_largest() is to keep */
  SPARSE_WANT_K,
  SPARSE_WANT_T, /* n * density, one at least; most likely just above the global threshold */

  /* regions */
  SPARSE_PROPOSED_REGIONS, /* boundaries from the sum of all ranks' proposals */
  SPARSE_SPLIT_COUNTS,     /* received_counts from the matrix of counts */

  /* flags travel as an entry with index SPARSE_NO_INDEX after a list */
  SPARSE_SEAL_OFFERED,          /* offered list: one if there is something to say */
  SPARSE_SEAL_FIXED,            /* offered list of k entries: always one */
  SPARSE_COLLECT_FIXED,         /* received: k entries and a flag entry from every rank */
  SPARSE_COLLECT_FLAGS,         /* received lists of any length */
  SPARSE_COLLECT_OFFERED_FLAGS, /* the same where they were put together again (gaussiank) */
  SPARSE_COLLECT_GATHERED,      /* gathered lists: flags and the number of entries */
  SPARSE_COLLECT_PEER,          /* gtopk: one list of k entries has come, */
  SPARSE_COLLECT_ROOT,          /* and the one of the root, which is the result */

  /* ---- taken at the end of kernels, whose interface says so (ops.h) ---- */

  SPARSE_K_FOUND,          /* ops_select_offered(): the guess of the next step, */
  SPARSE_KTH_FOUND,        /* and the threshold, */
  SPARSE_OVERFLOW_FOUND,   /* of too many entries above a threshold: the k largest */
  SPARSE_GAUSSIAN_CORRECT, /* ops_count_levels(): take a threshold or count again; */
  SPARSE_HALVING_CORRECT,  /* GAUSSIANKSA's way */
  SPARSE_SEAL_REDUCED,     /* ops_reduce(): as SEAL_OFFERED */

  /* oktopk one-sided, where a launch of its own would be too slow */
  SPARSE_OFFER_THRESHOLD,   /* as TAKE_THRESHOLD; the owners of regions have got the candidates and
                               leave out what a raised threshold does not choose */
  SPARSE_COUNT_ADAPT_LOCAL, /* the number of sums has come: as ADAPT_LOCAL, */
  SPARSE_COUNT_ADAPT_BOTH,  /* as ADAPT_BOTH */
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
