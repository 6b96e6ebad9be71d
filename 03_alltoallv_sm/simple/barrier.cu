/* SPDX-License-Identifier: Apache-2.0 */
/* The second AlltoAllV: a kernel that stores straight into the receive buffers of the other ranks,
 * between two barriers.
 *
 *   barrier   all ranks have reached the exchange, so their receive buffers may be written
 *   store     this rank's part for rank p to where rank p wants it: the caller has asked before
 *   barrier   all ranks have stored, so this rank's receive buffer is complete */
#include "stores.cuh"

static __global__ void __launch_bounds__(THREADS)
    push_between_barriers(const __grid_constant__ push_args a)
{
  /* Block i meets the blocks i of the other ranks. When they are there, what their streams did with
   * the receive buffers before is done. Relaxed is enough: nothing that they wrote is read here.
   * (02's kernel reads their send buffers, so its barrier is acq_rel.) */
  ncclLsaBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), a.dev_comm, ncclTeamTagLsa(),
                                             blockIdx.x);
  barrier.sync(ncclCoopCta(), cuda::memory_order_relaxed);

  push(a);

  /* Release: what was stored before it has arrived when the peer comes out of this barrier. So all
   * data have when the kernel ends. To read them in this kernel would take acq_rel. */
  barrier.sync(ncclCoopCta(), cuda::memory_order_release);
}

extern "C" const void *const barrier_kernel = (const void *)push_between_barriers;

void barrier_call(const exchange *x, const char *send, char *recv, cudaStream_t stream)
{
  push_between_barriers<<<x->simple.blocks, x->simple.threads, 0, stream>>>(
      make_push_args(x, send, recv));
  CUDACHECK(cudaGetLastError());
}
