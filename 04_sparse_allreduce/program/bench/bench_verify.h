/* SPDX-License-Identifier: Apache-2.0 */
/* What --bench verifies before it times: up to a few million elements a few steps with the
 * reference, beyond that what can be checked without it. */
#ifndef BENCH_VERIFY_H
#define BENCH_VERIFY_H

#include "launcher.h"
#include "program/version.h"

enum { BENCH_GRADIENTS = 3 }; /* buffers that gradients come from in turn */

/* A step of the handle with each of the gradients. Larger sizes: the results are the same on all
 * ranks, and in samples of all regions no gradient is lost (GTOPK as published loses some).
 * Returns EXIT_VERIFIED, or EXIT_WRONG_DATA after one line on stderr; all ranks the same.
 * Collective. */
int bench_verify_path(const struct rank *me, const sparse_allreduce_config_t *config,
                      const struct version *version, size_t count, void *const gradients[],
                      cudaStream_t stream);

/* The same for an ncclAllReduce that has been enqueued. */
int bench_verify_dense(const struct rank *me, const struct datatype *type, const void *send,
                       const void *recv, size_t count, cudaStream_t stream);

#endif
