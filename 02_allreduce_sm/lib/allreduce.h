/* SPDX-License-Identifier: Apache-2.0 */
/* The direct AllReduce, on symmetric windows: sums of float, double, half, bfloat16, and of
 * integers of 32 and 64 bits, signed or not, over ranks that reach each other's memory.
 *
 *   ncclMemAlloc(&recvbuff, bytes);
 *   ncclCommWindowRegister(comm, recvbuff, bytes, &window, NCCL_WIN_COLL_SYMMETRIC);    all ranks
 *   allreduce_create(comm, NULL, &handle);                                              all ranks
 *   allreduce_add_window(handle, window, recvbuff, bytes);
 *   allreduce_run(handle, sendbuff, recvbuff, count, ncclFloat, stream);    all ranks, many times
 *   cudaStreamSynchronize(stream);
 *   allreduce_get_async_error(handle, &result);
 *   allreduce_destroy(handle);                      it forgets the windows, too;        all ranks
 *   ncclCommWindowDeregister(comm, window);                                             all ranks
 *
 * The sum is made in the order of the ranks, so it has the same bits on every rank, in every run
 * and for every way of starting ranks. half and bfloat16 are added in float and rounded once, at
 * the end; integers wrap.
 *
 * Small and medium vectors rely on 16 bytes that arrive together over NVLink. PTX promises that of
 * 8 bytes only. On H100 and H200 our tests never saw anything else; on other GPUs they have not
 * run.
 *
 * Buffers:
 * - sendbuff is any memory that this rank's GPU can read, aligned to an element. It needs no window
 *   and may be anywhere, elsewhere on each rank: only its own rank reads it. Vectors that begin and
 *   end at multiples of 16 bytes are up to 10 % faster.
 * - recvbuff is in a window that the handle knows, aligned to an element and at the same offset on
 *   all ranks. It is the send buffer, on any of the ranks, or has no byte in common with it.
 * - When a call has finished on a rank, no other rank accesses its buffers any more. So no barrier
 *   is needed before they are reused, deregistered or freed. After an error this is different: see
 *   allreduce_get_async_error. Several GPUs in one process need more: freeing memory (destroy does,
 *   too) may wait for all GPUs, and a collective on one of them for the rank that frees. So none
 *   starts other NCCL work before all have freed.
 *
 * The calls of allreduce_run on a handle are the same on all ranks: order, count, type, window and
 * offset of recvbuff. If ranks differ in this, every rank that notices reports it in
 * allreduce_get_async_error. (Calls of up to 16 MiB allow different offsets.)
 * The ranks compare 16 bits, and no windows: another window, and one pair of counts in 65,536, go
 * unnoticed, and results are wrong.
 *
 * Each rank is a thread or a process: create waits for the others. In all calls the communicator's
 * device is current, and no NCCL group is open.
 *
 * About streams, graphs and room on the GPU:
 * - The calls of a handle follow each other: on one stream, or on several that wait for each other
 *   by events. They may be captured, replayed and mixed with others. A graph with such calls must
 *   not be launched after allreduce_destroy.
 * - On GPUs of compute capability 9.0 and later, calls of up to 16 MiB are launched while the
 *   previous kernel in the stream ends, and wait for that end on the device (programmatic dependent
 *   launch). The previous kernel, if launched in this way, must have waited as well. NCCL's
 *   symmetric kernels do not from 2.28.3 to 2.30.6: put a node that is not a kernel
 *   between the two, or set no_early_launch. With other releases of NCCL the next kernel, if
 *   launched in this way, takes its place on the GPU while the call still waits for other ranks: it
 *   must wait for the end, too, whatever no_early_launch is.
 *   Calls are launched early only if nvcc compiles for 9.0 or later; its default is older.
 * - If several ranks are threads of one process, a graph with these calls can deadlock when it is
 *   launched. So can any graph whose kernels wait for other GPUs, including NCCL's. For graphs use
 *   one process for each GPU.
 * - All blocks of a call must run at the same time on all GPUs. So let calls of two handles, or of
 *   a handle and NCCL on another stream, wait for each other by events, in the same order on all
 *   ranks. Or set max_blocks to half of the multiprocessors in both. Otherwise the GPUs can
 *   deadlock: each is full of kernels that wait for a kernel with no room on another GPU. In a
 *   green context, or with MPS's share of a GPU, set max_blocks to the multiprocessors it has.
 *
 * What waits without end: allreduce_create, for a rank that does not call it, because it goes
 * through NCCL; and calls with timeout_seconds < 0. A call of allreduce_run waits on the GPU, for
 * timeout_seconds at most.
 *
 * Functions return NCCL's codes; allreduce_last_error has a message for the last failure of the
 * calling thread. It includes nothing of the suite, never prints and never exits. C and C++. */
#ifndef ALLREDUCE_H
#define ALLREDUCE_H

#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime.h>
#include <nccl.h>

#define NCCL_EXAMPLES_VERSION 20000 /* 2.0.0; CHANGELOG.md says what changed */

#ifdef __cplusplus
extern "C" {
#endif

typedef struct allreduce_handle *allreduce_t;

#define ALLREDUCE_MAX_RANKS 72   /* the largest NVLink domain today */
#define ALLREDUCE_MAX_WINDOWS 64 /* of a handle */

/* Zeros are the defaults, and count as them. For max_blocks and what ends in _bytes all ranks use
 * the lowest value that any of them gave; calls_before is the same on all. */
typedef struct {
  /* A call gives up when another rank is this late; 0: 30 s, < 0: never. At most 1e9. */
  double timeout_seconds;
  int max_blocks; /* of a launch; 0: as many as the GPUs run at once */
  /* The most bytes of a vector that goes as LL lines, as bare lines in one hop between two ranks
   * (with more ranks it is less; allreduce_onehop_bytes), and in two hops (allreduce_twohop.cuh);
   * larger calls are pushed (allreduce_push.cuh). 0, and what is more: the default, the fastest
   * measured; < 0: none */
  long ll_bytes, onehop_bytes, twohop_bytes;
  size_t scratch_bytes;  /* of device memory for pushed calls; 0: 48 MiB (README.md has times) */
  int no_early_launch;   /* 1: a call begins when the previous kernel in the stream has ended */
  uint64_t calls_before; /* for tests: the first call is in the next epoch */
} allreduce_config_t;

/* Collective. Returns ncclInvalidUsage, on all ranks alike, if this AllReduce is not possible; then
 * call NCCL's. Reasons: not all ranks share memory, there are more than ALLREDUCE_MAX_RANKS, a GPU
 * is not reached over NVLink or is older than compute capability 7.0, NCCL is older than 2.28 or
 * than the headers, or, with headers of 2.28, not exactly their release, or it was built with CUDA
 * before 12.3. allreduce_last_error names the reason. ncclRemoteError: a call has failed on another
 * rank. ncclInvalidArgument, on this rank alone: `handle` or `comm` is NULL, or the timeout is more
 * than 1e9. On failure *handle is NULL. `config` may be NULL. comm is a blocking communicator
 * (ncclConfig_t's `blocking` is not 0), may come from ncclCommSplit, and must outlive the handle. A
 * handle takes scratch_bytes and 69 to 77 MiB more of device memory. */
ncclResult_t allreduce_create(ncclComm_t comm, const allreduce_config_t *config,
                              allreduce_t *handle);

/* On all ranks, but none waits for another. Waits for the calls that this rank has made. NULL does
 * nothing. */
ncclResult_t allreduce_destroy(allreduce_t handle);

/* Makes a window known to the handle: `buff` and `bytes` as in ncclCommWindowRegister with
 * NCCL_WIN_COLL_SYMMETRIC. It begins at the same offset in its allocation on all ranks; NCCL
 * assumes this. ncclInvalidUsage if the handle has ALLREDUCE_MAX_WINDOWS, ncclInvalidArgument if it
 * does not have the one to forget. Local; not during capture. Forget it before you deregister the
 * window. */
ncclResult_t allreduce_add_window(allreduce_t handle, ncclWindow_t window, void *buff,
                                  size_t bytes);
ncclResult_t allreduce_forget_window(allreduce_t handle, ncclWindow_t window);

/* Can elements of this type be added? */
int allreduce_has_type(ncclDataType_t type);

/* Collective. Enqueues the AllReduce on the stream. A count of 0 does nothing. ncclInvalidArgument
 * if the handle or the send buffer is NULL, the type has no sums, the elements are too many, the
 * receive buffer is in no window, or the buffers overlap or are not aligned to an element. Nothing
 * is enqueued then, and the other ranks wait until their timeout. */
ncclResult_t allreduce_run(allreduce_t handle, const void *sendbuff, void *recvbuff, size_t count,
                           ncclDataType_t type, cudaStream_t stream);

/* The first error that finished calls have found. Local; does not wait.
 *   ncclSuccess           no error
 *   ncclRemoteError       another rank was later than the timeout
 *   ncclInvalidArgument   another rank has called with another count, type or receive offset
 * After an error, later calls send nothing, return soon, and leave undefined results. The other
 * ranks then time out and report an error too. A late rank may still write the receive buffer of
 * the call that failed, even after this rank's allreduce_destroy. So end the job, or keep it
 * allocated and unused until all ranks have destroyed their handles. (If a rank
 * is suspended in the middle of a call, it may report the timeout only in its next call.) */
ncclResult_t allreduce_get_async_error(allreduce_t handle, ncclResult_t *result);

/* The message of the last call of this thread that failed or reported an error. */
const char *allreduce_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
