/* SPDX-License-Identifier: Apache-2.0 */
/* Two AllReduces to understand, each a kernel of 20 to 30 lines: the steps before the library
 * (../lib).
 *
 *   barrier.cu   every rank adds all vectors by itself, between two barriers
 *   lines.cu     every rank sends its vector to all; an epoch in each line shows that it is new
 *
 * Sums of floats, for ranks that share memory (NVLink on one host), NCCL 2.28 and CUDA 12.3. A
 * failed call ends the job. There is no timeout: a rank waits forever for a peer that does not
 * come. */
#ifndef ALLREDUCE_SIMPLE_H
#define ALLREDUCE_SIMPLE_H

#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime.h>
#include <nccl.h>

#ifdef __cplusplus
extern "C" {
#endif

/* All calls are collective. `window` is the window of the memory at `sendbuffs`, which contains all
 * send buffers of barrier_allreduce, at the same offset on all ranks. If it is not possible,
 * returns NULL on all ranks, and the reason in `why`. */
struct simple *simple_create(ncclComm_t comm, ncclWindow_t window, const float *sendbuffs,
                             const char **why);
void simple_destroy(struct simple *s); /* after the last call, before the window goes */

/* Not in place. */
void barrier_allreduce(struct simple *s, const float *sendbuff, float *recvbuff, size_t count,
                       cudaStream_t stream);

/* In place or not, with buffers anywhere. */
void lines_allreduce(struct simple *s, const float *sendbuff, float *recvbuff, size_t count,
                     cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#ifdef __CUDACC__
#include <nccl_device.h>

enum { MAX_BLOCKS = 32, THREADS = 512 };

struct line { /* see lines.cu */
  uint64_t data, epoch;
};
static const size_t ROOM = 1 << 18; /* lines from each rank in a half of the scratch memory */

struct simple {
  ncclComm_t comm;
  int rank, n;
  int blocks;  /* of a kernel; all run at the same time, or those that wait would keep others out */
  int threads; /* of a block: as many as the kernels can have */
  ncclDevComm dev_comm; /* the communicator for kernels */
  ncclWindow_t window;  /* of the send buffers, and where it begins in this rank's memory */
  const float *base;
  line *scratch; /* with a window, for lines */
  ncclWindow_t scratch_window;
  uint64_t *epochs; /* of the last call; on the device: a replayed graph has old arguments */
};

__global__ void add_between_barriers(const __grid_constant__ ncclDevComm dev_comm,
                                     ncclWindow_t window, size_t offset, float *recvbuff,
                                     size_t count);
__global__ void add_lines(ncclWindow_t scratch_window, uint64_t *epochs, int rank, int n,
                          const float *sendbuff, float *recvbuff, size_t count);
#endif
#endif
