/* SPDX-License-Identifier: Apache-2.0 */
/* The second AlltoAllV: a kernel that stores straight into the receive buffers of the other ranks,
 * between two barriers.
 *
 *   barrier          all ranks have reached the exchange, so their receive buffers may be written
 *   store            this rank's part for rank p to where rank p wants it
 *   barrier          all ranks have stored, so this rank's receive buffer is complete
 *
 * A rank has to know where each peer wants its part. Who calls has gathered that before, so this is
 * for counts that repeat. It is for ranks that share memory (NVLink on one host) and NCCL 2.28 or
 * newer. A failed call ends the job; a peer that never comes is waited for without end. */
#ifndef BARRIER_H
#define BARRIER_H

#include <stddef.h>

#include <cuda_runtime.h>
#include <nccl.h>

#ifdef __cplusplus
extern "C" {
#endif

/* More than the 72 GPUs that one NVLink domain has today. */
enum { BARRIER_MAX_RANKS = 80 };

/* A window of receive memory, and what the barriers need. */
struct barrier_push;

/* Where the parts of an exchange lie; all in elements of `size` bytes, arrays with an entry for
 * each rank. */
struct barrier_parts {
  const size_t *counts; /* what goes to rank p */
  const size_t *from;   /* where it begins in the send buffer */
  const size_t *to;     /* where it begins in the receive buffer of rank p */
  size_t size;
};

/* Collective. Makes `bytes` bytes at `window`, from ncclMemAlloc and of the same size on all ranks,
 * memory that the others can write. NULL on all ranks, and `why`, where that cannot be. */
struct barrier_push *barrier_create(ncclComm_t comm, void *window, size_t bytes, const char **why);

/* Collective. After the last exchange, before the memory is freed. */
void barrier_destroy(struct barrier_push *push);

/* Collective. One exchange, enqueued on the stream. `recv_at` is where the receive buffer begins in
 * the window, in bytes, the same on all ranks. */
void barrier_alltoallv(struct barrier_push *push, const void *sendbuff, size_t recv_at,
                       struct barrier_parts parts, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
