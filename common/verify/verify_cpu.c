/* SPDX-License-Identifier: Apache-2.0 */
/* Plain C versions of the kernels in verify.cu, for the CPU stand-in. */
#include <string.h>

#include "cpu.h"
#include "verify_kernels.h"

struct arguments {
  enum verify_operation operation;
  char *buffer;
  size_t count;
  struct verify_data data;
  int rank;
  struct verify_state *state;
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
  const struct arguments *a = arguments;
  const struct verify_data *data = &a->data;
  struct verify_state *state = a->state;
  const uint64_t round = state->round;
  if (a->operation == VERIFY_NEXT_ROUND) state->round++;
  for (size_t i = 0; i < a->count; i++) {
    char *element = a->buffer + i * data->size;
    uint64_t bits = 0; /* little-endian: the element is the low bytes */
    memcpy(&bits, element, data->size);
    if (a->operation == VERIFY_COMPARE)
      compare(state, i, bits, verify_bits(data->type, verify_expected(data, round, i)));
    if (a->operation == VERIFY_DIGEST) state->digest += verify_element_hash(bits, i);
    if (a->operation != VERIFY_FILL) continue;
    bits = verify_bits(data->type, verify_input(data, round, a->rank, i));
    memcpy(element, &bits, data->size);
  }
}

cudaError_t verify_launch(enum verify_operation operation, void *buffer, size_t count,
                          struct verify_data data, int rank, struct verify_state *state,
                          cudaStream_t stream)
{
  const struct arguments arguments = {operation, buffer, count, data, rank, state};
  return cpu_launch(stream, run, &arguments, sizeof arguments);
}
