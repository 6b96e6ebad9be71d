/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU version of the kernels in mlp.cu. */
#include "cpu.h"
#include "mlp.h"

static void images(const void *mlp)
{
  const struct mlp m = *(const struct mlp *)mlp;
  for (int image = 0; image < m.n; image++) mlp_image(&m, image);
}

static void gradient(const void *mlp)
{
  const struct mlp m = *(const struct mlp *)mlp;
  for (int weight = 0; weight < MLP_WEIGHTS; weight++) mlp_gradient(&m, weight);
}

cudaError_t mlp_launch(const struct mlp *mlp, enum mlp_work work, cudaStream_t stream)
{
  return cpu_launch(stream, work == MLP_GRADIENT ? gradient : images, mlp, sizeof *mlp);
}
