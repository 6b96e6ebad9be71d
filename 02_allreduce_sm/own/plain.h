/* SPDX-License-Identifier: Apache-2.0 */
/* The sum in plain C: what the stand-in does in place of the kernels, and what tests compare the
 * kernels with, bit for bit. */
#ifndef ALLREDUCE_PLAIN_H
#define ALLREDUCE_PLAIN_H

#include <stddef.h>

#include <nccl.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Adds `count` elements of from[0] ... from[n - 1] in this order to `to`, which may be one of them.
 * No address need be aligned. The types are those of allreduce_has_type. */
void allreduce_plain_sum(ncclDataType_t type, const void *const *from, int n, size_t count,
                         void *to);

#ifdef __cplusplus
}
#endif
#endif
