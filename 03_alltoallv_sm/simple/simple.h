/* SPDX-License-Identifier: Apache-2.0 */
/* The rungs below the library, each with what it is slow at:
 *
 *   send/recv    NCCL's own buffers and handshakes for every pair: everything
 *   barrier      a kernel stores into the receive buffers of the peers, between two barriers: small
 *                exchanges, which are three trips over the link, one after the other
 *   lines        every 8 bytes carry their own flag, so there are no barriers: large exchanges,
 *                since half of what crosses the link is flags, and all is copied twice
 *   copy engine  the GPUs' copy engines move the bytes and leave the multiprocessors to others:
 *                all but large exchanges, which take some 20 us
 *
 * But for send/recv they are for ranks that share memory (NVLink on one host). None notices that
 * counts disagree or that a peer will never come. A failed call ends the job. create and destroy
 * are collective; create returns NULL on all ranks, and `why`, where it cannot be. An exchange is
 * collective, too; it is enqueued on the stream. */
#ifndef SIMPLE_H
#define SIMPLE_H

#include <stddef.h>

#include <cuda_runtime.h>
#include <nccl.h>

#include "lib/alltoallv.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The AlltoAllV that everybody writes first: grouped ncclSend and ncclRecv, anywhere. Arguments as
 * MPI_Alltoallv; `size` is the bytes of an element. Returns NCCL's errors. */
ncclResult_t sendrecv_alltoallv(const void *sendbuff, const size_t sendcounts[],
                                const size_t sdispls[], void *recvbuff, const size_t recvcounts[],
                                const size_t rdispls[], ncclDataType_t datatype, size_t size,
                                int nranks, ncclComm_t comm, cudaStream_t stream);

/* More than the 72 GPUs that one NVLink domain has today. */
enum { SIMPLE_MAX_RANKS = 80 };

/* An exchange. All in elements of `size` bytes, arrays with an entry for each rank p. */
struct parts {
  const size_t *counts, *from;     /* what goes to p, where it begins in the send buffer */
  const size_t *to;                /* and in the receive buffer of p */
  const size_t *recvcounts, *into; /* what comes from p, where it begins in the receive buffer */
  size_t largest;                  /* of the counts of all ranks */
  size_t size;
};

/* `window` is `bytes` bytes from ncclMemAlloc, as many on all ranks, that receive buffers lie in:
 * `recv_at` bytes after its beginning, the same on all ranks. */
struct barrier_push;
struct barrier_push *barrier_create(ncclComm_t comm, void *window, size_t bytes, const char **why);
void barrier_alltoallv(struct barrier_push *push, const void *sendbuff, size_t recv_at,
                       const struct parts *x, cudaStream_t stream);
/* The stores alone, for --bench: nobody may use that, but it shows what waiting costs. */
void barrier_bare_push(struct barrier_push *push, const void *sendbuff, size_t recv_at,
                       const struct parts *x, cudaStream_t stream);
void barrier_destroy(struct barrier_push *push);

struct lines;
struct lines *lines_create(ncclComm_t comm, const char **why);
void lines_alltoallv(struct lines *lines, const void *sendbuff, void *recvbuff,
                     const struct parts *x, cudaStream_t stream);
void lines_destroy(struct lines *lines);

/* `window` is registered with the handle, which knows where the peers' are. */
struct copy_engine;
struct copy_engine *copy_engine_create(ncclComm_t comm, alltoallv_t handle, void *window,
                                       const char **why);
void copy_engine_alltoallv(struct copy_engine *engine, const void *sendbuff, size_t recv_at,
                           const struct parts *x, cudaStream_t stream);
void copy_engine_destroy(struct copy_engine *engine);

/* Flags in memory that the stream itself sets and awaits, for the copy engines. */
struct stream_flag {
  unsigned *address;
  unsigned value;
  int peer; /* whose memory that is; this rank: wait until the value is there, then set it to 0 */
};
void stream_flags(const struct stream_flag *flags, int count, ncclComm_t comm, cudaStream_t stream);

/* Why a kernel of `comm` cannot reach all ranks; "" if it can. */
const char *simple_why_not(ncclComm_t comm, int nranks);

#ifdef __cplusplus
}
#endif
#endif
