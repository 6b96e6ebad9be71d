/* SPDX-License-Identifier: Apache-2.0 */
/* For --bench: the library's stores to large pairs, without any protocol. Nobody may use that, but
 * it shows what the protocol costs. On GPUs only. */
#ifndef BARE_PUSH_H
#define BARE_PUSH_H

#include "simple/simple.h"

#ifdef __cplusplus
extern "C" {
#endif

/* `window` is registered with the handle. NULL and `why` where the kernel does not reach all. */
struct bare_push;
struct bare_push *bare_push_create(ncclComm_t comm, alltoallv_t handle, const void *window,
                                   const char **why);
void bare_push_call(struct bare_push *push, const void *sendbuff, size_t recv_at,
                    const struct parts *x, cudaStream_t stream);
void bare_push_destroy(struct bare_push *push);

#ifdef __cplusplus
}
#endif
#endif
