/* SPDX-License-Identifier: Apache-2.0 */
/* The first AllReduce: every rank adds all vectors by itself, between two barriers.
 *
 *   barrier   all ranks have reached the call, so their send buffers are filled
 *   add       element i of rank 0, of rank 1 ... is read from their memory, and the sum is stored
 *   barrier   all ranks have read, so the send buffers may change
 *
 * Read the kernel first: add_between_barriers. It uses these parts of NCCL's device interface
 * (nccl_device.h):
 *
 *   Lsa                     load/store accessible: memory that a kernel can load and store
 *   ncclGetLsaPointer       the address on this rank of a place in the window of rank p
 *   ncclLsaBarrierSession   a barrier between blocks of different ranks
 *   ncclCoopCta             all threads of this block (CTA) take part in it
 *   __grid_constant__       CUDA's: a large argument is read where it is, and not copied
 *
 * A kernel that waits for other GPUs must have been loaded before its first launch. CUDA loads a
 * kernel when it is first launched, and that may wait for the device, which waits for a peer, which
 * waits for this rank. So setup.cu loads the kernels at once, with cudaFuncGetAttributes. */
#include "allreduce_simple.h"

#include "check.h"

__global__ void __launch_bounds__(THREADS)
    add_between_barriers(const __grid_constant__ ncclDevComm dev_comm, ncclWindow_t window,
                         size_t offset, float *recvbuff, size_t count)
{
  /* Block i meets the blocks i of the other ranks. When they are there, these ranks have reached
   * the call: what their streams did before, such as filling the send buffer, is done. acq_rel:
   * each rank hands over what it wrote (release), and sees what the others did (acquire). */
  ncclLsaBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), dev_comm, ncclTeamTagLsa(), blockIdx.x);
  barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel);

  /* The ranks' memory is mapped here, so an element of another GPU is read like a local one. All
   * ranks add in the same order, so they get the same bits. */
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    float sum = 0;
    for (int p = 0; p < dev_comm.lsaSize; p++)
      sum += ((const float *)ncclGetLsaPointer(window, offset, p))[i];
    recvbuff[i] = sum;
  }

  /* No rank leaves before all have read, because later work may change the send buffer. release:
   * the loads are done before it says so. Nothing of the others is read after it. */
  barrier.sync(ncclCoopCta(), cuda::memory_order_release);
}

void barrier_allreduce(simple *s, const float *sendbuff, float *recvbuff, size_t count,
                       cudaStream_t stream)
{
  const size_t offset = (size_t)(sendbuff - s->base) * sizeof(float);
  add_between_barriers<<<s->blocks, s->threads, 0, stream>>>(s->dev_comm, s->window, offset,
                                                             recvbuff, count);
  CUDACHECK(cudaGetLastError());
}
