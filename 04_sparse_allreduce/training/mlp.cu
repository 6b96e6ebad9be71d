/* SPDX-License-Identifier: Apache-2.0 */
#include "mlp.h"

static const unsigned THREADS = 128;

static __global__ void rounds(mlp_loop loop)
{
  const unsigned round = blockIdx.x * THREADS + threadIdx.x;
  if (round < (unsigned)loop.rounds) mlp_round(&loop, (int)round);
}

cudaError_t mlp_launch(const mlp_loop *loop, cudaStream_t stream)
{
  if (loop->rounds == 0) return cudaSuccess; /* a rank without images */
  rounds<<<((unsigned)loop->rounds + THREADS - 1) / THREADS, THREADS, 0, stream>>>(*loop);
  return cudaGetLastError();
}
