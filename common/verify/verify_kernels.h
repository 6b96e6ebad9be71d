/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of verify.c on device memory: verify.cu launches kernels for them, verify_cpu.c
 * their plain C versions. Both share what is done with one element, which is here. */
#ifndef COMMON_VERIFY_KERNELS_H
#define COMMON_VERIFY_KERNELS_H

#include "hash.h"
#include "verify.h"

enum verify_operation { VERIFY_FILL, VERIFY_COMPARE, VERIFY_DIGEST, VERIFY_NEXT_ROUND };

struct verify_job {
  void *buffer;
  size_t count; /* its elements */
  struct verify_data data;
  int rank;
  struct verify_state *state;
};

/* Enqueues one of the operations on all elements: write the input of `rank`, compare, add to the
 * digest; or begins the next round, with a count of 0. */
#ifdef __cplusplus
extern "C"
#endif
    cudaError_t
    verify_launch(enum verify_operation operation, struct verify_job job, cudaStream_t stream);

HASH_FN uint64_t verify_input(const struct verify_data *data, uint64_t round, int rank, size_t i)
{
  return hash_mix(i + hash_mix(round << 16 | (uint64_t)(rank + 1))) & data->mask;
}

/* What element i of a result should be. */
HASH_FN uint64_t verify_expected(const struct verify_data *data, uint64_t round, size_t i)
{
  uint64_t sum = 0;
  for (int rank = 0; rank < data->nranks; rank++) sum += verify_input(data, round, rank, i);
  return sum;
}

/* The bit pattern of a whole number that is exact in the type. A floating-point number has the
 * position of its highest bit, and the bits below that (the highest itself is not stored). */
HASH_FN uint64_t verify_float_bits(uint64_t value, int fraction_bits, int bias)
{
  if (value == 0) return 0;
  int top = 31; /* inputs have 16 bits */
  while (!(value >> top)) top--;
  uint64_t fraction =
      top <= fraction_bits ? value << (fraction_bits - top) : value >> (top - fraction_bits);
  return ((uint64_t)(bias + top) << fraction_bits) + (fraction - (1ULL << fraction_bits));
}

HASH_FN uint64_t verify_bits(ncclDataType_t type, uint64_t value)
{
  switch (type) {
  case ncclHalf:
    return verify_float_bits(value, 10, 15);
  case ncclBfloat16:
    return verify_float_bits(value, 7, 127);
  case ncclFloat:
    return verify_float_bits(value, 23, 127);
  case ncclDouble:
    return verify_float_bits(value, 52, 1023);
  default:
    return value;
  }
}

HASH_FN uint64_t verify_element_hash(uint64_t bits, size_t i)
{
  return hash_mix(hash_mix(i + 1) ^ bits);
}
#endif
