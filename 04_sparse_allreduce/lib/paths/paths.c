/* SPDX-License-Identifier: Apache-2.0 */
/* The paths: one row each, and nothing else in the library asks which algorithm it is. */
#include "handle.h"

static struct sparse_intervals intervals_of_topkaopt(const struct sparse_constants *c)
{
  return (struct sparse_intervals){.exact_local = c->topkaopt_interval};
}

static struct sparse_intervals intervals_of_oktopk(const struct sparse_constants *c)
{
  return (struct sparse_intervals){.exact_local = c->local_interval,
                                   .exact_global = c->global_interval,
                                   .repartition = c->repartition_interval};
}

static const struct sparse_path paths[SPARSE_ALGORITHMS] = {
    [SPARSE_DENSE] = {.name = "dense",
                      .run = path_dense,
                      .may_be_dense = true,
                      .words = sparse_words_of_allreduce,
                      .host = SPARSE_HOST_NEVER_WAITS},
    [SPARSE_TOPKA] = {.name = "topkA",
                      .run = path_topka,
                      .words = sparse_words_of_lists,
                      .host = SPARSE_HOST_NEVER_WAITS,
                      .selects = true},
    [SPARSE_TOPKA2] = {.name = "topkA2",
                       .run = path_topka2,
                       .words = sparse_words_of_lists,
                       .host = SPARSE_HOST_NEVER_WAITS,
                       .selects = true},
    [SPARSE_TOPKAOPT] = {.name = "topkAopt",
                         .run = path_topkaopt,
                         .words = sparse_words_of_lists,
                         .host = SPARSE_HOST_MAY_WAIT,
                         .intervals = intervals_of_topkaopt,
                         .selects = true},
    [SPARSE_GTOPK] = {.name = "gtopk",
                      .run = path_gtopk,
                      .words = sparse_words_of_tree,
                      .host = SPARSE_HOST_NEVER_WAITS,
                      .selects = true,
                      .own_messages = true},
    [SPARSE_OKTOPK] = {.name = "oktopk",
                       .run = path_oktopk,
                       .run_onesided = path_oktopk_onesided,
                       .words = sparse_words_of_regions,
                       .host = SPARSE_HOST_MAY_WAIT,
                       .intervals = intervals_of_oktopk,
                       .selects = true,
                       .balances = true,
                       .guess_ratio = 0.9}, /* its threshold adapts, so it stays closer */
    [SPARSE_TOPKSA] = {.name = "topkSA",
                       .run = path_topksa,
                       .may_be_dense = true, /* where sums are too many */
                       .words = sparse_words_of_regions,
                       .host = SPARSE_HOST_WAITS, /* are sums too many for a sparse gather? */
                       .selects = true},
    [SPARSE_GAUSSIANK] = {.name = "gaussiank",
                          .run = path_gaussiank,
                          .words = sparse_words_of_lists,
                          .host = SPARSE_HOST_MAY_WAIT,
                          .may_be_gaussian = true,
                          .selects = true},
    [SPARSE_GAUSSIANKCONCAT] = {.name = "gaussiankconcat",
                                .run = path_gaussiankconcat,
                                .words = sparse_words_of_lists,
                                .host = SPARSE_HOST_MAY_WAIT,
                                .may_be_gaussian = true,
                                .selects = true},
    [SPARSE_GAUSSIANKSA] = {.name = "gaussiankSA",
                            .run = path_gaussiansa,
                            .words = sparse_words_of_regions,
                            .host = SPARSE_HOST_MAY_WAIT,
                            .may_be_exact = true,
                            .may_be_gaussian = true,
                            .selects = true},
};

const struct sparse_path *sparse_path_of(sparse_allreduce_algorithm_t algorithm)
{
  return &paths[algorithm];
}

const char *sparse_allreduce_name(sparse_allreduce_algorithm_t algorithm)
{
  return (unsigned)algorithm < SPARSE_ALGORITHMS ? paths[algorithm].name : NULL;
}
