/* SPDX-License-Identifier: Apache-2.0 */
/* The decisions of a step: arithmetic on a few numbers of the state, taken by one thread on the
 * device so that no count has to travel to the host. decide/decide.h has the code of each. */
#ifndef DECISIONS_H
#define DECISIONS_H

enum sparse_control {
  SPARSE_THEN_NOTHING,

  /* exact selection of k entries */
  SPARSE_EXACT_LEVELS,    /* of the local pass: candidates are what is above the guess */
  SPARSE_EXACT_SEARCH,    /* after it: search the candidates, or the residual if they do not do */
  SPARSE_EXACT_ENTRIES,   /* after the search: exactly k entries are offered */
  SPARSE_EXACT_THRESHOLD, /* after the search: the k-th magnitude is the threshold, to be exceeded
                           */

  /* selection by the threshold of the step before */
  SPARSE_THRESHOLD_LEVELS, /* of the local pass: the threshold, and what it may be raised to */
  SPARSE_THRESHOLD_CHOOSE, /* after it: how often to raise, or whether there are too many */
  SPARSE_THRESHOLD_OFFER,  /* the same if the owners of regions have got the candidates: they leave
                              out what a raised threshold does not choose */
  SPARSE_THRESHOLD_OVERFLOW, /* after the search that too many entries make necessary */

  /* selection by a Gaussian threshold */
  SPARSE_GAUSSIAN_LEVELS, /* after the local pass with moments */
  SPARSE_GAUSSIAN_CHOOSE, /* after each round of counting: take a threshold or count again */
  SPARSE_GAUSSIAN_BEGIN,  /* of the local pass: candidates above the guess */

  /* Ok-Topk */
  SPARSE_LOCAL_ADAPT,      /* at the end of a step: the local threshold of the next one */
  SPARSE_PROPOSED_REGIONS, /* boundaries from the sum of all ranks' proposals */
  SPARSE_SPLIT_COUNTS,     /* received_counts from the matrix of counts */
  SPARSE_GLOBAL_SEARCH,    /* how many sums the exact global step wants of those gathered, */
  SPARSE_SUMS_SEARCH,      /* or, direct, of those that all ranks have */
  SPARSE_GLOBAL_FOUND,     /* the global threshold is the smallest magnitude of those */
  SPARSE_CHOSEN_ADAPT,     /* after that, direct: local threshold, and the result's counts */
  SPARSE_BOTH_ADAPT,       /* the same, and the global threshold */

  /* flags travel as an entry with index SPARSE_NO_INDEX behind a list */
  SPARSE_SEAL_OFFERED,          /* offered list: one if there is something to say */
  SPARSE_SEAL_REDUCED,          /* reduced list: the same */
  SPARSE_SEAL_FIXED,            /* offered list of k entries: always one */
  SPARSE_FIXED_LISTS,           /* received: k entries and a flag entry from every rank */
  SPARSE_COLLECT_FLAGS,         /* received lists of any length */
  SPARSE_COLLECT_OFFERED_FLAGS, /* the same where they were put together again (gaussiank) */
  SPARSE_COLLECT_RESULT,        /* gathered lists: flags and the number of entries */

  /* the others */
  SPARSE_KEPT_SEARCH,  /* topkA2: the k largest of the reduced sums */
  SPARSE_KEPT_RESULT,  /* result_count is global_count */
  SPARSE_MERGE_SEARCH, /* gtopk: k entries of the merged list */
  SPARSE_FIXED_RESULT, /* gtopk: the result has k entries and a flag entry */
};

#endif
