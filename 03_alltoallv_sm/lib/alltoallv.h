/* SPDX-License-Identifier: Apache-2.0 */
/* AlltoAllV for NCCL: every rank sends a different number of elements to every other rank.
 *
 * NCCL has no such call. This one is a kernel that writes into the memory of the peers (LSA:
 * load/store accessible memory, NCCL 2.28 and later, CUDA 12.3 and later): large pairs straight
 * into the receive buffer, small ones through scratch memory there. Where that is not possible,
 * between hosts, without symmetric memory, with an older NCCL, it is grouped ncclSend and ncclRecv.
 *
 *   ncclMemAlloc(&recvbuff, bytes);                       // the receive buffer, equal on all ranks
 *   alltoallv_init(comm, NULL, &handle);                  // collective
 *   alltoallv_register(handle, recvbuff, bytes);          // collective
 *   alltoallv_counts(sendcounts, recvcounts, handle);     // collective, where counts are new
 *   alltoallv(sendbuff, sendcounts, NULL, recvbuff, recvcounts, NULL, ncclFloat, handle,
 *             stream);                                    // collective, as often as you like
 *   cudaStreamSynchronize(stream);
 *   alltoallv_get_async_error(handle, &result, &source, &destination);
 *   alltoallv_unregister(handle, recvbuff);               // collective
 *   alltoallv_destroy(handle);                            // collective
 *
 * Rules that hold for everything below.
 * - Counts, displacements and capacities are in elements of `datatype`, as in MPI_Alltoallv; their
 *   type is size_t, so a pair may hold more than 4 GiB. Arrays have one entry per rank of the
 *   communicator. Element i of the part for rank p is sendbuff[sdispls[p] + i]; element i of the
 *   part from rank p arrives at recvbuff[rdispls[p] + i].
 * - In the calls that end in _rows they are in rows of `row_elements` elements each. For tokens
 *   that go to experts, a count is a number of tokens and row_elements the hidden size. The calls
 *   without _rows are those with rows of one element; all else is the same.
 * - Displacements that are NULL mean packed: one part after the other in rank order, without gaps.
 * - "Collective" means: every rank of the communicator makes the call, in the same order. The rules
 *   of NCCL for collectives apply to them: on one communicator, from one thread at a time, and not
 *   concurrently with other NCCL calls on that communicator. They do not belong between
 *   ncclGroupStart and ncclGroupEnd, where NCCL would only queue what they wait for.
 * - The communicator is a blocking one (ncclConfig_t's `blocking` is not 0). In every call the
 *   thread's current device is that of the communicator.
 * - Exchanges are asynchronous: they enqueue work on `stream` and return. Buffers must stay valid
 *   and sendbuff unchanged until the stream gets there. No barrier is needed between exchanges: an
 *   exchange does not write into a peer's receive buffer before the peer's stream has reached it.
 * - Two exchanges of one handle never run at the same time. When a call comes on another stream
 *   than the one before (captured ones do not count), it waits for that one by an event, so that
 *   stream must still exist. cudaStreamPerThread is a stream of each thread under one name, which
 *   nothing here can tell apart: use it from one thread only.
 * - The blocks of an exchange wait for each other, so all of them have to run at once. What can
 *   overlap with it and waits for other ranks too, an exchange of another handle or a collective of
 *   NCCL on another communicator, needs room beside it on all GPUs: set config.max_blocks.
 * - Exchanges may be captured into a CUDA graph, on all ranks or on none, and replayed. Those of a
 *   capture are on one stream, and until it ends there are no other exchanges of the handle.
 *   Buffers, plan and handle must outlive the graph; graph launches must be ordered with other
 *   exchanges of the handle by the caller. Use graphs with one process per GPU: one process that
 *   launches graphs of kernels that wait for each other on several GPUs can deadlock (CUDA's rule).
 * - Host arrays are read before the call returns. Results of type ncclResult_t mean what NCCL's
 *   documentation says; alltoallv_last_error() has the sentence. After an error that only one rank
 *   gets (a wrong argument, say) the other ranks wait for that exchange, and would take this rank's
 *   next one for it. So repeat the call with right arguments, or end the job: the others give up
 *   after their timeout, without the kernel never.
 * - Segments of the send buffer may overlap or be the same, since they are only read; segments of
 *   the receive buffer must not, and are refused. Empty ones may lie anywhere.
 * - Limits: 64 registered buffers at a time; 72 ranks that share memory (more take send/recv);
 *   8 TiB per rank and exchange; a row is smaller than 4 GiB.
 * - On the send/recv path inside a graph, take both buffers from ncclMemAlloc: NCCL 2.28 hangs with
 *   a send buffer from cudaMalloc and a receive buffer from ncclMemAlloc (above 512 KiB per pair).
 * - Nothing here prints or exits.
 *
 * What is not here, and what to do instead.
 * - In place (MPI_IN_PLACE): send and receive buffer are two, since peers write into the one while
 *   this rank still reads the other.
 * - A registered buffer does not grow. On all ranks: wait for the exchanges into it,
 *   alltoallv_unregister, agree on the new size, ncclMemFree, ncclMemAlloc, alltoallv_register, and
 *   make its plans anew. The size is that of the rank that needs most. alltoallv_counts() tells
 *   what each needs (one's own need is every entry of sendcounts), and since it waits for all
 *   ranks, nobody frees a buffer too early.
 * - An exchange cannot be cancelled. The kernel ends by itself after config.timeout_seconds. Send
 *   and receive, and the copy engines of a plan, wait for a peer that has died until the process
 *   ends: end the job (MPI_Abort), or choose ALLTOALLV_LSA on one host. */
#ifndef ALLTOALLV_H
#define ALLTOALLV_H

#include <stddef.h>

#include <cuda_runtime.h>
#include <nccl.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of this header: 10000 * major + 100 * minor + patch. 1.1 is the first with rows, alltoallv_counts
 * and config.size. */
#define ALLTOALLV_VERSION 10100

/* An AlltoAllV on one communicator: scratch memory, windows, the number of the current exchange. */
typedef struct alltoallv_handle *alltoallv_t;

/* An exchange whose counts repeat, as MPI-4's persistent MPI_Alltoallv_init. */
typedef struct alltoallv_plan_state *alltoallv_plan_t;

/* How the bytes move. Chosen in alltoallv_init for all ranks together and never changed later: a
 * choice that one rank could make alone would deadlock. */
typedef enum {
  ALLTOALLV_AUTO = 0,        /* the kernel where it can run, else send/recv; plans of large
                                exchanges use the copy engines */
  ALLTOALLV_SENDRECV = 1,    /* grouped ncclSend/ncclRecv only */
  ALLTOALLV_LSA = 2,         /* the kernel within a host, send/recv between hosts, in plans too;
                                init fails where the kernel cannot run. It adds to counters in the
                                memory of other GPUs, which takes NVLink. AUTO asks CUDA, and NVML
                                for GPUs that this process does not see, and takes send/recv where
                                one is reached over PCIe or nobody knows; LSA fails over PCIe and
                                takes your word where nobody knows */
  ALLTOALLV_COPY_ENGINE = 3, /* as ALLTOALLV_LSA, but on one host plans use the copy engines, at
                                any size, unless they are captured */
} alltoallv_method_t;

/* Fill it with ALLTOALLV_CONFIG_INITIALIZER, then change what you need. All ranks must pass the
 * same values (alltoallv_init checks it), max_blocks and timeout_seconds excepted. */
typedef struct {
  size_t size; /* of this struct, set by the initializer. alltoallv_init refuses any other: a struct
                  that was not initialized, or one of another version of this header */
  alltoallv_method_t method;
  double timeout_seconds; /* the kernel gives up when a peer is this late; 0: never. Send/recv, copy
                             engines and the collective calls of set-up wait for ever */
  int max_blocks;      /* blocks (multiprocessors) that an exchange may use, at least 2, for users
                          who overlap it with compute; 0: all */
  int check_counts;    /* 1: also compare counts on the send/recv path, which costs a round trip
                          and a host synchronisation per exchange (so: no capture) */
  size_t ll_threshold; /* bytes; pairs up to this size take the low-latency protocol. Scratch is
                          about 2.7 times this per rank. ALLTOALLV_DEFAULT: 512 KiB */
  unsigned first_call; /* number of the first exchange, for tests of the wrap-around; else 0 */
} alltoallv_config_t;

#define ALLTOALLV_DEFAULT ((size_t)-1)
#define ALLTOALLV_CONFIG_INITIALIZER                                             \
  {                                                                              \
    sizeof(alltoallv_config_t), ALLTOALLV_AUTO, 60.0, 0, 0, ALLTOALLV_DEFAULT, 0 \
  }

/* ---- set up and tear down ----------------------------------------------------------------- */

/* Collective. Makes a handle for all ranks of `comm`. Synchronises the device. `config` may be NULL
 * for the defaults. Agrees with the other ranks on the path, loads the kernels and allocates the
 * scratch memory, so that exchanges allocate nothing. The communicator stays the caller's and must
 * outlive the handle; the handle splits one off for itself, so that registered receive buffers stay
 * unknown to the caller's own NCCL calls. ncclInvalidArgument  the configuration is wrong, was not
 * initialized or differs between ranks ncclInvalidUsage     ALLTOALLV_LSA or ALLTOALLV_COPY_ENGINE
 * asked for and not possible here These and a lack of memory on one rank come back on all ranks,
 * unless that rank cannot even get the few KiB that it takes to tell. */
ncclResult_t alltoallv_init(ncclComm_t comm, const alltoallv_config_t *config, alltoallv_t *handle);

/* Collective. Makes [buff, buff + bytes) usable as receive buffer. `buff` comes from ncclMemAlloc
 * and is in no other window. On all ranks it has the same size, and starts at the same place in its
 * allocation, a multiple of 4096 bytes; NCCL before 2.30.7 also wants allocations of one size.
 * (NCCL finds a peer's buffer by the place of one's own.) Send buffers need no registration: any
 * device memory will do. Works on the default stream and waits. On the send/recv path this does
 * nothing, but call it all the same. ncclInvalidArgument  (on all ranks) NULL, zero bytes, sizes
 * that differ, bad alignment ncclInvalidUsage     (on all ranks) more than 64 buffers, or not the
 * same ones on all ranks others               (on all ranks) what NCCL said; the handle can only be
 * destroyed */
ncclResult_t alltoallv_register(alltoallv_t handle, void *buff, size_t bytes);

/* Collective, before ncclMemFree(buff). Waits until the device has nothing more to do. Plans
 * with which any rank receives into `buff` cannot be started any more, only destroyed; graphs that
 * hold exchanges into it must not be launched any more.
 *   ncclInvalidArgument  `buff` is not registered
 *   ncclRemoteError      the handle has timed out: a late rank may still write into `buff`, so it
 *                        has to stay allocated until the process ends
 *   others               what NCCL said; `buff` counts as no longer registered */
ncclResult_t alltoallv_unregister(alltoallv_t handle, void *buff);

/* Collective. Waits for the last exchange, then frees the handle, its plans excluded (destroy those
 * first). Unregister the buffers first. After a timeout it waits for no other rank, and leaves
 * allocated what a late one may still write: scratch memory and windows, until the process ends.
 * Synchronises the device. ncclUnhandledCudaError  the last exchange ended in a CUDA error; the
 * handle is freed anyway others                  what failed first while freeing; the rest is freed
 * all the same */
ncclResult_t alltoallv_destroy(alltoallv_t handle);

/* The path that init chose (never ALLTOALLV_AUTO), and in words why; the text lives as long as the
 * handle. Either pointer may be NULL. Not collective. */
ncclResult_t alltoallv_method(alltoallv_t handle, alltoallv_method_t *method, const char **why);

/* How many ranks the kernel reaches, this one included: those of the host, 0 on the send/recv path.
 * If these are all ranks, alltoallv_device_counts() never waits and can be captured. Not
 * collective. */
ncclResult_t alltoallv_reach(alltoallv_t handle, int *ranks);

/* Where this rank sees the registered buffer of `peer`, for kernels of one's own that load from and
 * store to it; NULL if that rank is out of the kernel's reach. Valid until the buffer is
 * unregistered. Not collective.
 *   ncclInvalidArgument  `buff` is not registered, or there is no such rank */
ncclResult_t alltoallv_peer(alltoallv_t handle, const void *buff, int peer, void **address);

/* ---- the exchange ------------------------------------------------------------------------- */

/* Collective. What this rank will receive, from what all ranks send: recvcounts[p] becomes
 * sendcounts[this rank] of rank p. Host arrays; the unit is the caller's, in elements or in rows.
 * It waits for the other ranks, and belongs before exchanges whose counts only their senders know.
 * Counts that a kernel makes need not come to the host for it: alltoallv_device_counts.
 *   ncclInvalidArgument  (on all ranks) NULL on one of them */
ncclResult_t alltoallv_counts(const size_t sendcounts[], size_t recvcounts[], alltoallv_t handle);

/* Collective. The order of arguments is MPI_Alltoallv's (MPI 4.1, section 6.8), with the handle for
 * the communicator and CUDA's stream at the end; counts and displacements are host arrays, and
 * displacements may be NULL (packed). What rank i sends to j, sendcounts[j] of i, must equal
 * recvcounts[i] of j. Zero counts are fine and so is any alignment that the type itself has;
 * multiples of 16 bytes are fastest. sendbuff and recvbuff must not overlap (no MPI_IN_PLACE).
 * Counts that differ between two ranks are found by the kernel always, by send/recv with
 * check_counts (those of a rank and itself always): alltoallv_get_async_error.
 *   ncclInvalidArgument  NULL, unknown type, row_elements 0, a count that overflows in bytes, a
 *                        segment outside the registered range
 *   ncclInvalidUsage     recvbuff is not registered (LSA path), receive segments overlap, send and
 *                        receive ranges overlap, an exchange of the same capture is on another
 *                        stream, or the exchange before was on a stream that is being captured now
 *   ncclRemoteError      the handle has timed out before */
ncclResult_t alltoallv(const void *sendbuff, const size_t sendcounts[], const size_t sdispls[],
                       void *recvbuff, const size_t recvcounts[], const size_t rdispls[],
                       ncclDataType_t datatype, alltoallv_t handle, cudaStream_t stream);

/* Collective. alltoallv() with counts and displacements in rows of `row_elements` elements of
 * `datatype`, at least 1. The result is that of alltoallv() with all numbers multiplied by
 * row_elements; errors speak of rows. */
ncclResult_t alltoallv_rows(const void *sendbuff, const size_t sendcounts[], const size_t sdispls[],
                            void *recvbuff, const size_t recvcounts[], const size_t rdispls[],
                            size_t row_elements, ncclDataType_t datatype, alltoallv_t handle,
                            cudaStream_t stream);

/* Where the parts of the receive buffer lie when the counts are only known on the device. */
typedef enum {
  ALLTOALLV_PACKED = 0, /* one after the other in rank order; rdispls is written */
  ALLTOALLV_SLOTS = 1, /* at rdispls, which the caller gives; the part of a rank must end before the
                          next higher displacement, or the capacity, is reached. Where several
                          displacements are equal, the highest of these ranks has the room, and
                          nothing fits for the others */
} alltoallv_layout_t;

/* Collective. As alltoallv(), but sendcounts and sdispls are device arrays that the kernel reads,
 * so that a kernel just before it in the stream can write them, and nobody knows the receive counts
 * yet. sdispls may be NULL: packed in rank order. recvcounts (device, written) receives the counts;
 * rdispls (device) is written (ALLTOALLV_PACKED; NULL: packed all the same, and nothing is written)
 * or read (ALLTOALLV_SLOTS; not NULL). No two of the four arrays overlap. recvcapacity is the
 * number of elements that fit into recvbuff. sendbuff must not be NULL, also where nothing will be
 * sent, since the host cannot know: any device address will do then. All ranks pass the same layout
 * and a type of the same size, for rows also the same row_elements. Equal or overlapping send
 * segments make it a gather: with all sdispls and counts the same, every rank gets the same segment
 * from each. If the data do not fit at one rank, no rank's receive buffer is changed, recvcounts is
 * 0 everywhere, and every rank gets the error from alltoallv_get_async_error. So what comes next on
 * the stream, the exchange back, say, finds nothing to work on. `needed` (device, written, may be
 * NULL) is what recvcounts would have been: where the two differ, data did not fit. A count that
 * cannot be meant, of 2^55 bytes or more, fits nowhere. On the send/recv path (and on several
 * hosts) this call waits for the stream and cannot be captured; on the LSA path it never waits.
 * Errors as alltoallv(). */
ncclResult_t alltoallv_device_counts(const void *sendbuff, const size_t *sendcounts,
                                     const size_t *sdispls, void *recvbuff, size_t recvcapacity,
                                     size_t *recvcounts, size_t *rdispls, size_t *needed,
                                     alltoallv_layout_t layout, ncclDataType_t datatype,
                                     alltoallv_t handle, cudaStream_t stream);

/* Collective. alltoallv_device_counts() with counts, displacements and capacity in rows of
 * `row_elements` elements of `datatype`, at least 1: what a routing kernel counts need not be
 * multiplied by the length of a row. recvcounts and rdispls come out in rows, too. */
ncclResult_t alltoallv_device_counts_rows(const void *sendbuff, const size_t *sendcounts,
                                          const size_t *sdispls, void *recvbuff,
                                          size_t recvcapacity, size_t *recvcounts, size_t *rdispls,
                                          size_t *needed, alltoallv_layout_t layout,
                                          size_t row_elements, ncclDataType_t datatype,
                                          alltoallv_t handle, cudaStream_t stream);

/* What went wrong on the device, as ncclCommGetAsyncError: to be asked after the stream has been
 * synchronised, or at any time before (it never blocks). Not collective.
 *   ncclSuccess          nothing
 *   ncclInvalidArgument  `source` sent another number of elements than `destination` expected, or
 *                        (device counts) more than fits; source is -1 when it is the sum over all
 *                        sources that does not fit. Both ranks of the pair get it, for device
 *                        counts all ranks do. What the receive segment of that pair holds is
 *                        undefined (device counts: nothing has moved), nothing beside it is
 *                        written, and the handle stays usable. Asking clears it; there may be
 *                        another one, so ask until there is none.
 *   ncclInvalidUsage     the two ranks made different calls; otherwise as above
 *   ncclRemoteError      nothing came from `source` within the timeout. Final: the handle can only
 *                        be destroyed. The late rank may still write into the receive buffers:
 *                        leave them allocated, and end the job.
 * source and destination are ranks of the communicator, -1 where they do not apply. Each of the
 * three pointers may be NULL. For an error, alltoallv_last_error() says it with both numbers, in
 * what the calling rank counts in: "rank 0 sends 11 elements to rank 2, which expects 10" (rows
 * instead of elements in the calls with rows, bytes where they are no whole number of either). */
ncclResult_t alltoallv_get_async_error(alltoallv_t handle, ncclResult_t *result, int *source,
                                       int *destination);

/* ---- repeated counts ---------------------------------------------------------------------- */

/* Collective. Arguments as alltoallv(). Exchanges counts and displacements once, checks them (a
 * pair that disagrees is ncclInvalidArgument on all ranks, alltoallv_last_error() names it), and
 * decides for all ranks whether starts use the kernel or the copy engines. Waits for the other
 * ranks. A rank whose arguments are wrong, or that has no memory left, fails the plan on all.
 *   ncclInvalidArgument, ncclInvalidUsage  as alltoallv(), on all ranks
 *   ncclSystemError                        (on all ranks) no memory on one */
ncclResult_t alltoallv_plan(const void *sendbuff, const size_t sendcounts[], const size_t sdispls[],
                            void *recvbuff, const size_t recvcounts[], const size_t rdispls[],
                            ncclDataType_t datatype, alltoallv_t handle, alltoallv_plan_t *plan);

/* Collective. The same with counts and displacements in rows of `row_elements` elements. */
ncclResult_t alltoallv_plan_rows(const void *sendbuff, const size_t sendcounts[],
                                 const size_t sdispls[], void *recvbuff, const size_t recvcounts[],
                                 const size_t rdispls[], size_t row_elements,
                                 ncclDataType_t datatype, alltoallv_t handle,
                                 alltoallv_plan_t *plan);

/* Collective. Does the planned exchange on `stream`; everything said of alltoallv() holds. The copy
 * engines need no multiprocessor and reach the full rate of the link, but cost about 20 us more and
 * cannot time out: when a peer has died, the stream waits for ever. Inside a graph the kernel is
 * used instead.
 *   ncclInvalidArgument  NULL
 *   ncclInvalidUsage     a receive buffer of the plan, of any rank, has been unregistered since (on
 *                        all ranks); otherwise as alltoallv()
 *   ncclRemoteError      as alltoallv() */
ncclResult_t alltoallv_start(alltoallv_plan_t plan, cudaStream_t stream);

/* Frees the plan. Not collective, but no start of it may be running any more.
 *   ncclInvalidArgument  NULL */
ncclResult_t alltoallv_plan_destroy(alltoallv_plan_t plan);

/* The sentence for the last error that this thread got from a function above, one line without its
 * end; "" if none. Where NCCL or CUDA failed, it holds their reason. */
const char *alltoallv_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
