/* SPDX-License-Identifier: Apache-2.0 */
/* The paths: one row each, and nothing else in the library asks which algorithm it is. */
#include "handle.h"

enum {
  LISTS = SPARSE_SELECTS,
  GAUSSIAN = SPARSE_SELECTS | SPARSE_VARIES | SPARSE_GAUSSIAN,
  REGIONS = SPARSE_SELECTS | SPARSE_VARIES | SPARSE_REGIONS,
  OKTOPK = REGIONS | SPARSE_REUSES | SPARSE_ADAPTS | SPARSE_CHOOSES | SPARSE_BALANCES,
};

static const struct sparse_path paths[SPARSE_ALGORITHMS] = {
    [SPARSE_DENSE] = {"dense", 0, path_dense},
    [SPARSE_TOPKA] = {"topkA", LISTS, path_lists},
    [SPARSE_TOPKA2] = {"topkA2", LISTS | SPARSE_CHOOSES, path_lists},
    [SPARSE_TOPKAOPT] = {"topkAopt", LISTS | SPARSE_VARIES | SPARSE_REUSES, path_lists},
    [SPARSE_GTOPK] = {"gtopk", LISTS | SPARSE_TREE | SPARSE_CHOOSES, path_gtopk},
    [SPARSE_OKTOPK] = {"oktopk", OKTOPK | SPARSE_ONESIDED, path_oktopk},
    [SPARSE_TOPKSA] = {"topkSA", REGIONS | SPARSE_FALLS_BACK, path_regions},
    [SPARSE_GAUSSIANK] = {"gaussiank", GAUSSIAN, path_lists},
    [SPARSE_GAUSSIANKCONCAT] = {"gaussiankconcat", GAUSSIAN, path_lists},
    [SPARSE_GAUSSIANKSA] = {"gaussiankSA", REGIONS | SPARSE_EXACT, path_regions},
};

const struct sparse_path *sparse_path_of(sparse_allreduce_algorithm_t algorithm)
{
  return &paths[algorithm];
}

const char *sparse_allreduce_name(sparse_allreduce_algorithm_t algorithm)
{
  return (unsigned)algorithm < SPARSE_ALGORITHMS ? paths[algorithm].name : NULL;
}
