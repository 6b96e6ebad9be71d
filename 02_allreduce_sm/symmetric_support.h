/* SPDX-License-Identifier: Apache-2.0 */
/* Does an AllReduce on symmetric windows run with a symmetric kernel of NCCL's?
 *
 * No public call says so directly, and a window that is not NULL proves nothing: up to NCCL 2.29.1
 * an unsupported communicator gets an ordinary registration in its place, and later ones get
 * windows where there are no kernels. */
#ifndef SYMMETRIC_SUPPORT_H
#define SYMMETRIC_SUPPORT_H

#include <stdbool.h>

#include <nccl.h>

#include "launcher.h"

#ifdef __cplusplus
extern "C" {
#endif

enum symmetric_support { SYMMETRIC_NO, SYMMETRIC_YES, SYMMETRIC_UNKNOWN };

/* Of the types that 02 has, NCCL has symmetric kernels for sums of these; others run as on any
 * memory. */
static inline bool symmetric_kernel_for(ncclDataType_t type)
{
  return type == ncclFloat || type == ncclHalf || type == ncclBfloat16;
}

/* Answers for sums of that type over a communicator of all ranks, and a window that was registered
 * with NCCL_WIN_COLL_SYMMETRIC (and was NULL before). *why becomes a text that says what the answer
 * rests on. Collective: what this rank finds out about its own GPU, others may see differently. */
enum symmetric_support symmetric_support(const struct rank *me, ncclComm_t comm,
                                         ncclDataType_t type, ncclWindow_t window,
                                         const char **why);

#ifdef __cplusplus
}
#endif
#endif
