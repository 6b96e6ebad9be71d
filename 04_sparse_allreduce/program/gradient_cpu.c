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
  const struct gradient g = a->gradient; /* a copy that nothing can change meanwhile */
  float *floats = a->dst;
  uint16_t *words = a->dst;
  if (a->type == ncclFloat)
    for (size_t i = 0; i < g.count; i++) floats[i] = gradient_float(&g, i);
  else
    for (size_t i = 0; i < g.count; i++) words[i] = gradient_word(&g, a->type, i);
}

cudaError_t gradient_fill(void *dst, ncclDataType_t type, size_t count, enum gradient_kind kind,
                          uint64_t seed, uint64_t step, int rank, int nranks, cudaStream_t stream)
{
  struct arguments arguments = {dst, type, gradient_make(kind, count, seed, step, rank, nranks)};
  return cpu_launch(stream, fill, &arguments, sizeof arguments);
}
