/* SPDX-License-Identifier: Apache-2.0 */
/* The data of an AlltoAllV and its comparison on the device.
 *
 * An element says which source it comes from, which destination it is meant for and which number it
 * has there, so that any misplacement shows. Where nothing belongs (in the gaps between segments
 * and around them) the receive buffer holds guard bytes, which are compared as well. */
#ifndef ELEMENTS_H
#define ELEMENTS_H

#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime.h>

#ifdef __CUDACC__
#define ELEMENTS_FN static inline __host__ __device__
#else
#define ELEMENTS_FN static inline
#endif

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

/* What elements_compare counts, in device memory; zeroed by the caller. */
struct element_errors {
  unsigned long long wrong;          /* elements that differ */
  unsigned long long first_plus_one; /* 1 + the number of one of them in its segment */
  long long source;                  /* of that segment */
};

/* The bit pattern of an element. 8 bytes hold everything as it is. 4 bytes hold source and
 * destination in the upper bits, mixed with an odd multiple of the number, which no other number
 * below 2^32 has. 2 and 1 bytes hold the upper bits of a hash. */
ELEMENTS_FN uint64_t element_bits(const struct segment *s, size_t i)
{
  const uint64_t pair = (uint64_t)s->source << 8 | (uint64_t)s->destination;
  const uint64_t seed = pair ^ (uint64_t)s->round * 0x9e3779b1u;
  if (s->source == ELEMENTS_GUARD) return ~0ULL;
  if (s->size == 8) return seed << 40 ^ i;
  if (s->size == 4) return (uint32_t)(seed << 16) ^ (uint32_t)i * 0x9e3779b1u;
  uint64_t hash = (seed << 40 ^ i) * 0x9e3779b97f4a7c15ULL;
  hash = (hash ^ (hash >> 32)) * 0xd6e8feb86659fd93ULL;
  return hash >> (64 - 8 * s->size);
}

/* Little-endian: the low bytes. */
ELEMENTS_FN void element_store(const struct segment *s, size_t i)
{
  const uint64_t bits = element_bits(s, i);
  if (s->size == 8)
    ((uint64_t *)s->start)[i] = bits;
  else if (s->size == 4)
    ((uint32_t *)s->start)[i] = (uint32_t)bits;
  else if (s->size == 2)
    ((uint16_t *)s->start)[i] = (uint16_t)bits;
  else
    ((uint8_t *)s->start)[i] = (uint8_t)bits;
}

ELEMENTS_FN int element_is_wrong(const struct segment *s, size_t i)
{
  const uint64_t bits = element_bits(s, i);
  if (s->size == 8) return ((const uint64_t *)s->start)[i] != bits;
  if (s->size == 4) return ((const uint32_t *)s->start)[i] != (uint32_t)bits;
  if (s->size == 2) return ((const uint16_t *)s->start)[i] != (uint16_t)bits;
  return ((const uint8_t *)s->start)[i] != (uint8_t)bits;
}

/* Enqueue; return what the launch returned. */
cudaError_t elements_fill(struct segment segment, cudaStream_t stream);
cudaError_t elements_compare(struct segment segment, struct element_errors *errors,
                             cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
