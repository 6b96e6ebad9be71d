/* SPDX-License-Identifier: Apache-2.0 */
/* The plain C twin of the kernel in mlp.cu, for the CPU stand-in. */
#include "cpu.h"
#include "mlp.h"

static void rounds(const void *arguments)
{
  const struct mlp_loop loop = *(const struct mlp_loop *)arguments;
  for (int round = 0; round < loop.rounds; round++) mlp_round(&loop, round);
}

cudaError_t mlp_launch(const struct mlp_loop *loop, cudaStream_t stream)
{
  return cpu_launch(stream, rounds, loop, sizeof *loop);
}
