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

/* A call of memcpy or memcmp for each element would take longer than all the rest. */
static uint64_t load(const struct segment *s, size_t i)
{
  switch (s->size) {
  case 1:
    return ((const uint8_t *)s->start)[i];
  case 2:
    return ((const uint16_t *)s->start)[i];
  case 4:
    return ((const uint32_t *)s->start)[i];
  default:
    return ((const uint64_t *)s->start)[i];
  }
}

static void compare(const void *arguments)
{
  const struct arguments *a = arguments;
  const struct segment *s = &a->segment;
  const uint64_t mask = ~0ULL >> (64 - 8 * s->size);
  for (size_t i = 0; i < s->count; i++) {
    if (load(s, i) == (element_bits(s, i) & mask)) continue;
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
