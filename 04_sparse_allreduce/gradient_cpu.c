/* SPDX-License-Identifier: Apache-2.0 */
/* The plain C twin of the kernel in gradient.cu, for the CPU stand-in. */
#include "cpu.h"
#include "gradient.h"

struct arguments {
  void *dst;
  ncclDataType_t type;
  struct gradient gradient;
};

static void fill(const void *arguments)
{
  const struct arguments *a = arguments;
  for (size_t i = 0; i < a->gradient.count; i++) {
    const uint32_t bits = gradient_element(&a->gradient, a->type, i);
    if (a->type == ncclFloat)
      ((uint32_t *)a->dst)[i] = bits;
    else
      ((uint16_t *)a->dst)[i] = (uint16_t)bits;
  }
}

cudaError_t gradient_fill(void *dst, ncclDataType_t type, size_t count, enum gradient_kind kind,
                          uint64_t seed, uint64_t step, int rank, int nranks, cudaStream_t stream)
{
  struct arguments arguments = {dst, type, {kind, seed, step, rank, nranks, count}};
  return cpu_launch(stream, fill, &arguments, sizeof arguments);
}
