/* SPDX-License-Identifier: Apache-2.0 */
/* AlltoAllV for NCCL: every rank sends a different number of elements to every other rank.
 *
 * NCCL has no such call. Where all ranks of the communicator share memory over NVLink (LSA: load/
 * store accessible memory), this is a kernel that writes into the memory of the peers. Anywhere
 * else (several hosts, PCIe) it is grouped ncclSend and ncclRecv. NCCL 2.28 and CUDA 12.3 or newer.
 *
 *   ncclMemAlloc(&recvbuff, bytes);                       // the receive buffer, equal on all ranks
 *   alltoallv_create(comm, NULL, &handle);                // collective
 *   alltoallv_register(handle, recvbuff, bytes);          // collective
 *   alltoallv_counts(handle, sendcounts, recvcounts);     // collective, where counts are new
 *   alltoallv(handle, sendbuff, sendcounts, NULL, recvbuff, recvcounts, NULL, sizeof(float),
 *             stream);                                    // collective, as often as you like
 *   cudaStreamSynchronize(stream);
 *   alltoallv_get_async_error(handle, &result, &source, &destination);
 *   alltoallv_unregister(handle, recvbuff);               // collective
 *   alltoallv_destroy(handle);                            // collective
 *
 * - Counts and displacements are in elements of `element_bytes` bytes: a float, or a token of many
 *   numbers. Arrays have one entry per rank. The part for rank p is at sendbuff + sdispls[p] *
 *   element_bytes; that from rank p arrives at recvbuff + rdispls[p] * element_bytes. Displacements
 *   that are NULL mean packed: one part after the other in rank order. Host arrays are read before
 *   the call returns.
 * - "Collective": every rank makes the call, in the same order. NCCL's rules apply: one thread at a
 *   time, not beside other NCCL calls on that communicator, not in a group. Use a blocking
 *   communicator, and make its device current. One from ncclCommSplit is fine.
 * - Exchanges are asynchronous and need no barrier between them: none writes into a peer's receive
 *   buffer before the peer's stream has reached it. If two are on different streams, the library
 *   makes the second wait for the first, so keep the first one's stream until then.
 *   (cudaStreamPerThread is many streams: use it from one thread.) NULL is the default stream with
 *   which these files were compiled: compile your program with the same choice.
 * - No barrier is needed before memory is freed either: when a rank's exchanges are over, all that
 *   peers store into its receive buffers has arrived. unregister and destroy wait for that. Several
 *   GPUs in one process need more: freeing memory (destroy does, too) may wait for all GPUs, and a
 *   collective on one of them for the rank that frees. So none starts other NCCL work before all
 *   have freed.
 * - From compute capability 9.0 on an exchange is launched while the previous kernel of the stream
 *   ends, and waits for it. If that was launched so, it must have waited, too. NCCL's symmetric
 *   kernels do not from 2.28.3 until 2.30.7: put a node between that is no kernel, or set
 *   config.no_early_launch. With other releases of NCCL the next kernel, if launched so, takes its
 *   place on the GPU while an exchange still waits for other ranks: it must wait for the end, too,
 *   whatever no_early_launch is.
 * - All blocks of an exchange have to be on the GPU at the same time. If another kernel that waits
 *   for peers (NCCL, a second handle; alltoallv_counts is NCCL's) may run at the same time, or the
 *   stream does not have all multiprocessors (a green context), limit the blocks with
 *   config.max_blocks: else both can deadlock.
 * - Exchanges may be captured into a CUDA graph, on all ranks or on none: on one stream, with no
 *   other exchanges of the handle until the capture ends. The caller orders launches of the graph
 *   with other exchanges. One process per GPU: kernels that wait for each other can deadlock in
 *   graphs of one process (CUDA's rule). On the send/recv path take both buffers from ncclMemAlloc:
 *   NCCL 2.28 hangs with a send buffer from cudaMalloc.
 * - What waits without timeout, because NCCL does: create, register, unregister, destroy and
 *   alltoallv_counts; and every exchange on the send/recv path. There ranks that make different
 *   calls, or pass counts that differ, hang too.
 * - alltoallv_last_error() has a sentence for each error. After one that only one rank gets (a
 *   wrong argument) repeat the call, or end the job: the others wait until their timeout.
 * - Limits: 64 registered buffers; 72 ranks that share memory (more take send/recv); 4 TiB per rank
 *   and exchange; 4 buffers with the same device counts; 264 blocks. Not offered: in place, a
 *   registered buffer that grows, cancelling an exchange.
 * - Nothing here prints or exits. */
#ifndef ALLTOALLV_H
#define ALLTOALLV_H

#include <stdbool.h>
#include <stddef.h>

#include <cuda_runtime.h>
#include <nccl.h>

#define NCCL_EXAMPLES_VERSION 20000 /* 2.0.0; CHANGELOG.md says what changed */

#ifdef __cplusplus
extern "C" {
#endif

/* An AlltoAllV on one communicator: scratch memory, windows, the epoch. */
typedef struct alltoallv_handle *alltoallv_t;

typedef enum {
  ALLTOALLV_AUTO = 0,     /* the kernel where all GPUs are known to be on NVLink; else send/recv */
  ALLTOALLV_SENDRECV = 1, /* grouped ncclSend/ncclRecv only */
  ALLTOALLV_LSA = 2,      /* the kernel; create fails where it cannot run */
} alltoallv_method_t;

/* Zeros are the defaults. All ranks pass the same method. */
typedef struct {
  alltoallv_method_t method;
  double timeout_seconds; /* of the kernel, for a peer, at most 1e9; 0: 60 s, < 0: forever */
  int max_blocks; /* multiprocessors that an exchange may use, at least 2; 0: all. The least of all
                     ranks counts */
  bool no_early_launch; /* on a GPU of capability 9.0 too: begin when the kernel before has ended */
} alltoallv_config_t;

/* ---- set up and tear down ----------------------------------------------------------------- */

/* Collective. Makes a handle for all ranks of `comm`, which must outlive it. `config` may be NULL
 * for the defaults. Allocates at most 14 MiB on each rank, and what NCCL takes for a communicator
 * that it splits off: 235 MiB with NCCL 2.28.3 on H200. Synchronizes the device. Errors come back
 * on all ranks:
 *   ncclInvalidArgument  the configuration of a rank is wrong, or methods differ
 *   ncclInvalidUsage     ALLTOALLV_LSA was requested and is not possible here */
ncclResult_t alltoallv_create(ncclComm_t comm, const alltoallv_config_t *config,
                              alltoallv_t *handle);

/* Collective. Makes [buff, buff + bytes) usable as receive buffer. `buff` comes from ncclMemAlloc
 * and is in no other window, not even in part. Its offset in that allocation, a multiple of 4096,
 * and its size are the same on all ranks; NCCL before 2.30.7 also wants allocations of one size.
 * Any number of receive buffers may lie in one registered range. Send buffers may be any device
 * memory. On the send/recv path nothing is done. Errors come back on all ranks:
 *   ncclInvalidArgument  NULL, zero bytes, bad alignment, or not the same on all ranks
 *   ncclInvalidUsage     more than 64 buffers; a part of it is registered already
 *   ncclRemoteError      on this rank only: the handle has timed out
 *   others               what NCCL said; the handle can only be destroyed */
ncclResult_t alltoallv_register(alltoallv_t handle, void *buff, size_t bytes);

/* Collective, before ncclMemFree(buff). Waits for the device. Graphs that hold exchanges into
 * `buff` must not be launched any more.
 *   ncclInvalidArgument  `buff` is not registered
 *   ncclRemoteError      the handle has timed out: a late rank may still write into `buff`, so it
 *                        has to stay allocated until the process ends
 *   others               what NCCL said; `buff` counts as no longer registered */
ncclResult_t alltoallv_unregister(alltoallv_t handle, void *buff);

/* Collective. Waits for the device, then frees the handle. Unregister the buffers first. After a
 * timeout it leaves allocated what a late rank may still write.
 *   ncclUnhandledCudaError  the last exchange ended in a CUDA error; the handle is freed anyway
 *   others                  what failed first while freeing */
ncclResult_t alltoallv_destroy(alltoallv_t handle);

/* How many ranks the kernel reaches: all, or 0 on the send/recv path. `why` says in words what
 * create chose, and lives as long as the handle. Either may be NULL. Not collective. */
ncclResult_t alltoallv_info(alltoallv_t handle, int *ranks, const char **why);

/* Where this rank sees the registered buffer of `peer`, for your own copies and kernels; NULL on
 * the send/recv path. Valid until unregister. Not collective.
 *   ncclInvalidArgument  `buff` is not registered, or there is no such rank */
ncclResult_t alltoallv_peer(alltoallv_t handle, const void *buff, int peer, void **address);

/* ---- the exchange ------------------------------------------------------------------------- */

/* Collective. recvcounts[p] becomes sendcounts[this rank] of rank p. Host arrays; waits for the
 * other ranks.
 *   ncclInvalidArgument  NULL
 *   ncclRemoteError      on this rank only: the handle has timed out */
ncclResult_t alltoallv_counts(alltoallv_t handle, const size_t sendcounts[], size_t recvcounts[]);

/* Collective. After the handle the order of arguments is MPI_Alltoallv's. sendcounts[j] of rank i
 * must equal recvcounts[i] of rank j: the kernel finds where they differ
 * (alltoallv_get_async_error), send/recv does not. Zero counts are fine and so is any alignment;
 * multiples of 16 bytes are fastest. Parts of the send buffer may overlap.
 *   ncclInvalidArgument  NULL; element_bytes is 0, or 4 GiB or more; a count or displacement
 *                        exceeds 2^55 bytes; a part is outside the registered range
 *   ncclInvalidUsage     recvbuff is not registered (LSA path); parts that are received overlap,
 *                        or send and receive ranges do
 *   ncclRemoteError      the handle has timed out before */
ncclResult_t alltoallv(alltoallv_t handle, const void *sendbuff, const size_t sendcounts[],
                       const size_t sdispls[], void *recvbuff, const size_t recvcounts[],
                       const size_t rdispls[], size_t element_bytes, cudaStream_t stream);

/* Where the parts of the receive buffer lie when the counts are only known on the device. So many
 * bytes from recvbuff on have to be registered:
 *   packed  room * element_bytes
 *   slots   room * element_bytes * number of ranks */
typedef enum {
  ALLTOALLV_PACKED = 0, /* one after the other in rank order; `room` elements fit in all */
  ALLTOALLV_SLOTS = 1,  /* the part of rank p at p * room elements; `room` fit from each rank */
} alltoallv_layout_t;

/* Counts in device memory; a kernel just before the exchange in the stream can write those that are
 * sent. No two of these arrays overlap. */
typedef struct {
  const size_t *sendcounts, *sdispls; /* read; sdispls NULL: packed */
  size_t *recvcounts, *rdispls;       /* written; rdispls may be NULL: where the parts lie */
  size_t *needed;                     /* written, may be NULL: see below */
  size_t room;                        /* elements that fit at this rank; may differ between ranks */
  alltoallv_layout_t layout;
} alltoallv_counts_t;

/* Buffers that are exchanged by the same counts: tokens, and their scales or expert ids. */
typedef struct {
  const void *sendbuff; /* not NULL */
  void *recvbuff;
  size_t element_bytes;
} alltoallv_buffers_t;

/* Collective. As alltoallv(), with counts in device memory and 1 to 4 pairs of buffers, in one
 * exchange. `counts` and `buffers` are read before the call returns. All ranks pass the same
 * layout, nbuffers and element_bytes. On the send/recv path this call waits for the stream and
 * cannot be captured.
 *
 * If the data do not fit at one rank, no rank's receive buffer is changed, recvcounts is 0
 * everywhere, so that what comes next on the stream finds nothing, and every rank gets the error
 * from alltoallv_get_async_error. `needed` is what recvcounts would have been. A count of 2^55
 * bytes or more fits nowhere, and nothing is read for it; of others that do not fit the first
 * bytes are read. Errors as alltoallv(). */
ncclResult_t alltoallv_device_counts(alltoallv_t handle, const alltoallv_counts_t *counts,
                                     const alltoallv_buffers_t buffers[], int nbuffers,
                                     cudaStream_t stream);

/* What has gone wrong on the device so far; never blocks. Not collective. Returns ncclSuccess; the
 * values below are *result. Each of the pointers may be NULL; source and destination are ranks, -1
 * where they do not apply.
 *   ncclSuccess          nothing
 *   ncclInvalidArgument  `source` sent another number of elements than `destination` expected, or
 *                        (device counts) more than fits; source is -1 when the sum over all does
 *                        not fit. Both ranks of the pair get it, for device counts all ranks do.
 *                        The part that is received is undefined (device counts: nothing has moved),
 *                        nothing beside it is written, and the handle stays usable. Asking clears
 *                        it; there may be another one, so ask until there is none.
 *   ncclInvalidUsage     the two ranks made different calls (LSA path); otherwise as above
 *   ncclRemoteError      nothing came from `source` within the timeout. Final: end the job, with
 *                        the receive buffers allocated, since the late rank may still write there.
 *                        The late rank gets this, too, when its own timeout is over: in the same
 *                        exchange, or in the next one if all of the same has come.
 * alltoallv_last_error() then says "rank 0 sends 11 elements to rank 2, which expects 10 (exchange
 * 7)": the seventh of the handle. It gives bytes when the number is not a multiple of
 * element_bytes. On the send/recv path only device counts that do not fit are found, and exchanges
 * have no numbers. */
ncclResult_t alltoallv_get_async_error(alltoallv_t handle, ncclResult_t *result, int *source,
                                       int *destination);

/* The sentence for the last error that this thread got from a function above, one line; "" if none.
 * Where NCCL or CUDA failed, it holds their reason. */
const char *alltoallv_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
