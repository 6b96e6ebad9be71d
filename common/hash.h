/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers that look random and are the same on every machine, for test data. */
#ifndef COMMON_HASH_H
#define COMMON_HASH_H

#include <stdint.h>

#ifdef __CUDACC__
#define HASH_FN static inline __host__ __device__
#else
#define HASH_FN static inline
#endif

/* Murmur3's finalizer: every input bit reaches every output bit. */
HASH_FN uint64_t hash_mix(uint64_t x)
{
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ULL;
  return x ^ (x >> 33);
}

/* SplitMix64: the next number of a sequence. */
HASH_FN uint64_t hash_next(uint64_t *state)
{
  uint64_t z = *state += 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

#endif
