/* SPDX-License-Identifier: Apache-2.0 */
/* The first AllReduce of one's own: every rank adds all vectors by itself, between two barriers.
 *
 *   barrier   all ranks have reached the call, so their send buffers hold what is to be added
 *   add       element i of rank 0, of rank 1 ... read from their memory, the sum to this rank's own
 *   barrier   all ranks have read, so the send buffers may change
 *
 * To understand: floats, and not in place. For ranks that share memory (NVLink on one host) and
 * NCCL 2.28 or newer. A failed call ends the job; a peer that never comes is waited for without
 * end. */
#ifndef ONESHOT_H
#define ONESHOT_H

#include <stddef.h>

#include <cuda_runtime.h>
#include <nccl.h>

#ifdef __cplusplus
extern "C" {
#endif

struct oneshot;

/* Collective. `window` is that of the memory at `sendbuffs`, in which all send buffers will lie.
 * NULL on all ranks, and `why`, where it cannot be. */
struct oneshot *oneshot_create(ncclComm_t comm, ncclWindow_t window, const float *sendbuffs,
                               const char **why);

/* Collective. After the last call, before the window goes. */
void oneshot_destroy(struct oneshot *oneshot);

/* Collective. One AllReduce, enqueued on the stream. sendbuff has the same place in the window on
 * all ranks. */
void oneshot_allreduce(struct oneshot *oneshot, const float *sendbuff, float *recvbuff,
                       size_t count, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
