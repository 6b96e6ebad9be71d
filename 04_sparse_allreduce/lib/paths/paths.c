/* SPDX-License-Identifier: Apache-2.0 */
/* The paths: one row each, and nothing else in the library asks which algorithm it is. */
#include "handle.h"

enum {
  LISTS = SPARSE_SELECTS,
  REGIONS = SPARSE_SELECTS | SPARSE_VARIES | SPARSE_REGIONS,
};

static const struct sparse_path paths[SPARSE_ALGORITHMS] = {
    [SPARSE_DENSE] = {"dense", 0, path_dense, NULL},
    [SPARSE_TOPKA] = {"topkA", LISTS, path_topka, NULL},
    [SPARSE_TOPKA2] = {"topkA2", LISTS, path_topka2, NULL},
    [SPARSE_TOPKAOPT] = {"topkAopt", LISTS | SPARSE_VARIES | SPARSE_REUSES, path_topkaopt, NULL},
    [SPARSE_GTOPK] = {"gtopk", LISTS | SPARSE_TREE, path_gtopk, NULL},
    [SPARSE_OKTOPK] = {"oktopk", REGIONS | SPARSE_REUSES | SPARSE_ADAPTS | SPARSE_BALANCES,
                       path_oktopk, path_oktopk_onesided},
    [SPARSE_TOPKSA] = {"topkSA", REGIONS | SPARSE_FALLS_BACK, path_topksa, NULL},
    [SPARSE_GAUSSIANK] = {"gaussiank", LISTS | SPARSE_VARIES | SPARSE_GAUSSIAN, path_gaussiank,
                          NULL},
    [SPARSE_GAUSSIANKCONCAT] = {"gaussiankconcat", LISTS | SPARSE_VARIES | SPARSE_GAUSSIAN,
                                path_gaussiankconcat, NULL},
    [SPARSE_GAUSSIANKSA] = {"gaussiankSA", REGIONS | SPARSE_EXACT | SPARSE_GAUSSIAN,
                            path_gaussiansa, NULL},
};

const struct sparse_path *sparse_path_of(sparse_allreduce_algorithm_t algorithm)
{
  return &paths[algorithm];
}

const char *sparse_allreduce_name(sparse_allreduce_algorithm_t algorithm)
{
  return (unsigned)algorithm < SPARSE_ALGORITHMS ? paths[algorithm].name : NULL;
}
