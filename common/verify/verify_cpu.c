/* SPDX-License-Identifier: Apache-2.0 */
/* Plain C versions of the kernels in verify.cu, for the CPU stand-in. */
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

cudaError_t verify_launch(enum verify_operation operation, void *buffer, size_t count,
                          struct verify_data data, int rank, struct verify_state *state,
                          cudaStream_t stream)
{
  static void (*const functions[])(const void *) = {fill, compare, digest, next_round};
  const struct arguments arguments = {buffer, count, data, rank, state};
  return cpu_launch(stream, functions[operation], &arguments, sizeof arguments);
}
