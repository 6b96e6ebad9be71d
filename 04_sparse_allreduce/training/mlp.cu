/* SPDX-License-Identifier: Apache-2.0 */
#include "mlp.h"

static const unsigned THREADS = 64;

static __global__ void images(mlp mlp)
{
  const unsigned image = blockIdx.x * THREADS + threadIdx.x;
  if (image < (unsigned)mlp.n) mlp_image(&mlp, (int)image);
}

static __global__ void gradient(mlp mlp)
{
  const unsigned weight = blockIdx.x * THREADS + threadIdx.x;
  if (weight < (unsigned)MLP_WEIGHTS) mlp_gradient(&mlp, (int)weight);
}

cudaError_t mlp_launch(const mlp *mlp, mlp_work work, cudaStream_t stream)
{
  if (work == MLP_GRADIENT)
    gradient<<<(MLP_WEIGHTS + THREADS - 1) / THREADS, THREADS, 0, stream>>>(*mlp);
  else if (mlp->n > 0) /* a rank may be without images */
    images<<<((unsigned)mlp->n + THREADS - 1) / THREADS, THREADS, 0, stream>>>(*mlp);
  return cudaGetLastError();
}
