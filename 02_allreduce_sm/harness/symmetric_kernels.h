/* SPDX-License-Identifier: Apache-2.0 */
/* Has NCCL a symmetric kernel? Without one, an AllReduce on a window runs as on any memory. */
#ifndef SYMMETRIC_KERNELS_H
#define SYMMETRIC_KERNELS_H

#include <stdbool.h>

#include "launcher.h"

/* Prints on stderr whether NCCL has symmetric kernels for sums of this type in this window, and why
 * that is so. Returns whether they are certain. Collective. */
bool note_symmetric_kernels(const struct rank *me, ncclComm_t comm, ncclDataType_t type,
                            ncclWindow_t window);

/* For other types there are none. */
bool type_has_symmetric_kernel(ncclDataType_t type);

#endif
