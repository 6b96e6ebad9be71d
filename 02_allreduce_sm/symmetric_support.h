/* SPDX-License-Identifier: Apache-2.0 */
/* Does this communicator run collectives on symmetric windows with NCCL's symmetric kernels?
 *
 * No public call says so directly, and up to NCCL 2.29.1 a window that is not NULL proves nothing:
 * an unsupported communicator gets an ordinary registration in its place. */
#ifndef SYMMETRIC_SUPPORT_H
#define SYMMETRIC_SUPPORT_H

#include <nccl.h>

#ifdef __cplusplus
extern "C" {
#endif

enum symmetric_support { SYMMETRIC_NO, SYMMETRIC_YES, SYMMETRIC_UNKNOWN };

/* Answers for a communicator and a window that was registered with NCCL_WIN_COLL_SYMMETRIC (and
 * was NULL before). *why becomes a text that says what the answer rests on. Collective: every rank
 * of comm has to call it, since the probe for 2.28 is collective. */
enum symmetric_support symmetric_support(ncclComm_t comm, ncclWindow_t window, const char **why);

#ifdef __cplusplus
}
#endif
#endif
