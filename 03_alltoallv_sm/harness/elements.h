/* SPDX-License-Identifier: Apache-2.0 */
/* The data of an AlltoAllV and its comparison on the device. An element is made of its source, its
 * destination and its number there. So a misplaced one shows: always if it has 8 bytes, almost
 * always if it has fewer. Around the parts there are guard bytes, which are compared as well. */
#ifndef ELEMENTS_H
#define ELEMENTS_H

#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime.h>

#include "hash.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ELEMENTS_GUARD = -1, ELEMENTS_GUARD_BYTE = 0xFF };

/* A piece of a buffer: `count` elements of `size` bytes from `start` on. */
struct segment {
  void *start;
  size_t count, size; /* size: 1, 2, 4 or 8 */
  int source;         /* or ELEMENTS_GUARD: guard bytes */
  int destination;
  uint32_t round; /* makes the data of one exchange differ from those of another */
};

/* What a comparison counts, in device memory; zeroed by the caller. */
struct element_errors {
  unsigned long long wrong;          /* elements that differ */
  unsigned long long first_plus_one; /* 1 + the number of one of them in its segment */
  long long source;                  /* of that segment */
};

/* The bits of an element: a hash, or its first bytes. hash_mix gives different numbers different
 * hashes, and of one exchange all numbers here differ. */
HASH_FN uint64_t element_bits(const struct segment *s, size_t i)
{
  const uint64_t pair = (uint64_t)s->source << 9 | (uint64_t)s->destination;
  const uint64_t seed = pair ^ (uint64_t)s->round * 0x9e3779b1u;
  if (s->source == ELEMENTS_GUARD) return ~0ULL;
  return hash_mix(seed << 40 ^ i) >> (64 - 8 * s->size);
}

/* Stores it, or says whether it is wrong: byte by byte, the low one first, wherever it lies. */
HASH_FN int element_store_or_compare(const struct segment *s, size_t i, int store)
{
  const uint64_t bits = element_bits(s, i);
  uint8_t *at = (uint8_t *)s->start + i * s->size;
  int wrong = 0;
  for (size_t byte = 0; byte < s->size; byte++) {
    if (store) at[byte] = (uint8_t)(bits >> 8 * byte);
    wrong |= at[byte] != (uint8_t)(bits >> 8 * byte);
  }
  return wrong;
}

/* Enqueues: writes the elements of the segment, or with `errors` compares them. */
cudaError_t elements_launch(struct segment segment, struct element_errors *errors,
                            cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
