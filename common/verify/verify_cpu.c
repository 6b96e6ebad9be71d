/* SPDX-License-Identifier: Apache-2.0 */
/* Plain C versions of the kernels in verify.cu, for the CPU stand-in. */
#include <string.h>

#include <cpu_kernel.h>
#include "verify_kernels.h"

struct arguments {
  enum verify_operation operation;
  struct verify_job job;
};

static void compare(struct verify_state *state, size_t i, uint64_t bits, uint64_t expected)
{
  if (bits == expected) return;
  state->wrong++;
  if (i >= state->first) return;
  state->first = i;
  state->bits = bits;
}

static void run(const void *arguments)
{
  const enum verify_operation operation = ((const struct arguments *)arguments)->operation;
  const struct verify_job *job = &((const struct arguments *)arguments)->job;
  const struct verify_data *data = &job->data;
  const uint64_t round = job->state->round;
  if (operation == VERIFY_NEXT_ROUND) job->state->round++;
  for (size_t i = 0; i < job->count; i++) {
    char *element = (char *)job->buffer + i * data->size;
    uint64_t bits = 0; /* little-endian: the element is the low bytes */
    memcpy(&bits, element, data->size);
    if (operation == VERIFY_COMPARE)
      compare(job->state, i, bits, verify_bits(data->type, verify_expected(data, round, i)));
    if (operation == VERIFY_DIGEST) job->state->digest += verify_element_hash(bits, i);
    if (operation != VERIFY_FILL) continue;
    bits = verify_bits(data->type, verify_input(data, round, job->rank, i));
    memcpy(element, &bits, data->size);
  }
}

cudaError_t verify_launch(enum verify_operation operation, struct verify_job job,
                          cudaStream_t stream)
{
  const struct arguments arguments = {operation, job};
  return cpu_launch(stream, run, &arguments, sizeof arguments);
}
