/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU version of the kernels in elements.cu. */
#include "elements.h"

#include "cpu.h"

struct arguments {
  struct segment segment;
  struct element_errors *errors;
};

static void fill(const void *arguments)
{
  const struct segment *s = &((const struct arguments *)arguments)->segment;
  for (size_t i = 0; i < s->count; i++) element_store(s, i);
}

static void compare(const void *arguments)
{
  const struct arguments *a = arguments;
  for (size_t i = 0; i < a->segment.count; i++) {
    if (!element_is_wrong(&a->segment, i) || a->errors->wrong++ > 0) continue;
    a->errors->first_plus_one = i + 1;
    a->errors->source = a->segment.source;
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
