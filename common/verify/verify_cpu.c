/* SPDX-License-Identifier: Apache-2.0 */
/* Plain C twins of the kernels in verify.cu, for the CPU stand-in. */
#include <string.h>

#include "cpu.h"
#include "verify_kernels.h"

struct arguments {
  char *buffer;
  size_t count;
  struct verify_data data;
  int rank;
  struct verify_state *state;
};

static uint64_t load(const struct arguments *a, size_t i)
{
  uint64_t bits = 0; /* little-endian: the element is the low bytes */
  memcpy(&bits, a->buffer + i * a->data.size, a->data.size);
  return bits;
}

static void fill(const void *arguments)
{
  const struct arguments *a = arguments;
  for (size_t i = 0; i < a->count; i++) {
    uint64_t input = verify_input(&a->data, a->state->round, a->rank, i);
    uint64_t bits = verify_bits(a->data.type, input);
    memcpy(a->buffer + i * a->data.size, &bits, a->data.size);
  }
}

static void compare(const void *arguments)
{
  const struct arguments *a = arguments;
  for (size_t i = 0; i < a->count; i++) {
    const uint64_t bits = load(a, i);
    if (bits == verify_bits(a->data.type, verify_expected(&a->data, a->state->round, i))) continue;
    a->state->wrong++;
    if (i >= a->state->first) continue;
    a->state->first = i;
    a->state->bits = bits;
  }
}

static void digest(const void *arguments)
{
  const struct arguments *a = arguments;
  for (size_t i = 0; i < a->count; i++) a->state->digest += verify_element_hash(load(a, i), i);
}

static void next_round(const void *arguments)
{
  const struct arguments *a = arguments;
  a->state->round++;
}

static cudaError_t launch(void (*twin)(const void *), const void *buffer, size_t count,
                          struct verify_data data, int rank, const struct verify_state *state,
                          cudaStream_t stream)
{
  struct arguments arguments = {(char *)buffer, count, data, rank, (struct verify_state *)state};
  return cpu_launch(stream, twin, &arguments, sizeof arguments);
}

cudaError_t verify_launch_fill(void *buffer, size_t count, struct verify_data data, int rank,
                               const struct verify_state *state, cudaStream_t stream)
{
  return launch(fill, buffer, count, data, rank, state, stream);
}

cudaError_t verify_launch_compare(const void *buffer, size_t count, struct verify_data data,
                                  struct verify_state *state, cudaStream_t stream)
{
  return launch(compare, buffer, count, data, 0, state, stream);
}

cudaError_t verify_launch_digest(const void *buffer, size_t count, struct verify_data data,
                                 struct verify_state *state, cudaStream_t stream)
{
  return launch(digest, buffer, count, data, 0, state, stream);
}

cudaError_t verify_launch_next_round(struct verify_state *state, cudaStream_t stream)
{
  return launch(next_round, NULL, 0, (struct verify_data){0}, 0, state, stream);
}
