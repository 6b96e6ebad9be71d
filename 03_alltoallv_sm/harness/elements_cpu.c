/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU version of the kernel in elements.cu. */
#include "elements.h"

#include "cpu.h"

struct arguments {
  struct segment segment;
  struct element_errors *errors;
};

static void fill_or_compare(const void *arguments)
{
  const struct segment *s = &((const struct arguments *)arguments)->segment;
  struct element_errors *errors = ((const struct arguments *)arguments)->errors;
  for (size_t i = 0; i < s->count; i++) {
    if (!element_store_or_compare(s, i, !errors) || errors->wrong++ > 0) continue;
    errors->first_plus_one = i + 1;
    errors->source = s->source;
  }
}

cudaError_t elements_launch(struct segment segment, struct element_errors *errors,
                            cudaStream_t stream)
{
  struct arguments arguments = {segment, errors};
  return cpu_launch(stream, fill_or_compare, &arguments, sizeof arguments);
}
