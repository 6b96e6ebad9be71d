/* SPDX-License-Identifier: Apache-2.0 */
/* Plain C twins of the kernels in elements.cu, for the CPU stand-in. */
#include "elements.h"

#include <string.h>

#include "cpu.h"

struct arguments {
  struct segment segment;
  struct element_errors *errors;
};

static void fill(const void *arguments)
{
  const struct segment *s = &((const struct arguments *)arguments)->segment;
  for (size_t i = 0; i < s->count; i++) {
    uint64_t bits = element_bits(s, i);
    memcpy((char *)s->start + i * s->size, &bits, s->size); /* little-endian: the low bytes */
  }
}

static void compare(const void *arguments)
{
  const struct arguments *a = arguments;
  const struct segment *s = &a->segment;
  for (size_t i = 0; i < s->count; i++) {
    uint64_t bits = element_bits(s, i);
    if (memcmp((const char *)s->start + i * s->size, &bits, s->size) == 0) continue;
    if (a->errors->wrong++ == 0) {
      a->errors->first_plus_one = i + 1;
      a->errors->source = s->source;
    }
  }
}

cudaError_t elements_fill(struct segment segment, cudaStream_t stream)
{
  struct arguments arguments = {segment, NULL};
  return cpu_launch(stream, fill, &arguments, sizeof arguments);
}

cudaError_t elements_compare(struct segment segment, struct element_errors *errors,
                             cudaStream_t stream)
{
  struct arguments arguments = {segment, errors};
  return cpu_launch(stream, compare, &arguments, sizeof arguments);
}
