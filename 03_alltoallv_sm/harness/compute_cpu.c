/* SPDX-License-Identifier: Apache-2.0 */
#include "alltoallv_program.h"
#include "cpu.h"

struct arguments {
  float *numbers;
  size_t count;
  int rounds;
};

static void compute(const void *arguments)
{
  const struct arguments *a = arguments;
  for (size_t i = 0; i < a->count; i++)
    for (int r = 0; r < a->rounds; r++) a->numbers[i] = a->numbers[i] * 0.5f + 1;
}

void compute_launch(float *numbers, size_t count, int rounds, cudaStream_t stream)
{
  const struct arguments arguments = {numbers, count, rounds};
  CUDACHECK(cpu_launch(stream, compute, &arguments, sizeof arguments));
}
