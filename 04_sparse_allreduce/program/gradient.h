/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients to try a sparse allreduce on, generated in device memory.
 *
 * An element depends on (seed, step, rank, index) alone and is made of integers only (a hash, sums
 * and shifts), so the kernel in gradient.cu, its twin in gradient_cpu.c and a test on the host get
 * the same bits. */
#ifndef GRADIENT_H
#define GRADIENT_H

#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime.h>
#include <nccl.h>

#include "hash.h"

#ifdef __CUDACC__
#define GRADIENT_FN static inline __host__ __device__
#else
#define GRADIENT_FN static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum gradient_kind {
  GRADIENT_HEAVY,      /* heavy-tailed, partly the same on all ranks, slowly drifting */
  GRADIENT_NORMAL,     /* about normal */
  GRADIENT_UNIFORM,    /* uniform in [-1, 1) */
  GRADIENT_TIES,       /* a dozen different values */
  GRADIENT_ONE_REGION, /* all that is large lies in one region, another one in each step */
};
#define GRADIENT_KINDS "heavy|normal|uniform|ties|one-region" /* in that order */

/* Enqueues: count elements of ncclFloat, ncclHalf or ncclBfloat16 to dst. Returns what the launch
 * returned. */
cudaError_t gradient_fill(void *dst, ncclDataType_t type, size_t count, enum gradient_kind kind,
                          uint64_t seed, uint64_t step, int rank, int nranks, cudaStream_t stream);

/* Host memory: to[i] = (float)from[i], from being of that type. `to` may be `from` for ncclFloat.
 */
void gradient_widen(float *to, const void *from, size_t count, ncclDataType_t type);

/* ---- one element --------------------------------------------------------------------------- */

/* What one gradient is; small enough to be a kernel argument. */
struct gradient {
  enum gradient_kind kind;
  size_t count;
  uint64_t own, shared;  /* keys of hashes: this rank's in this step, all ranks' */
  uint64_t scale[2];     /* the older and the newer one */
  uint32_t age;          /* steps since the newer one began */
  size_t region, length; /* of GRADIENT_ONE_REGION: where it begins */
};

GRADIENT_FN uint64_t gradient_key(uint64_t seed, uint64_t who, uint64_t when)
{
  return hash_mix(seed + hash_mix(who + hash_mix(when + 0x9e3779b97f4a7c15ULL)));
}

GRADIENT_FN struct gradient gradient_make(enum gradient_kind kind, size_t count, uint64_t seed,
                                          uint64_t step, int rank, int nranks)
{
  const uint64_t all = 1 << 20, scales = all + 1; /* no ranks */
  struct gradient g;
  g.kind = kind;
  g.count = count;
  g.own = gradient_key(seed, (uint64_t)rank, step);
  g.shared = gradient_key(seed, all, step);
  g.scale[0] = gradient_key(seed, scales, step / 32);
  g.scale[1] = gradient_key(seed, scales, step / 32 + 1);
  g.age = (uint32_t)(step % 32);
  g.length = count / (2 * (size_t)nranks) + 1;
  g.region = (size_t)(step % (2 * (uint64_t)nranks)) * g.length;
  return g;
}

/* The element is this whole number, below 2^25 in size, times 2^-20. It has less than 24 digits
 * in front of its zeros, so it has an exact value as a float. */
GRADIENT_FN int32_t gradient_integer(const struct gradient *g, size_t i)
{
  const uint64_t hash = hash_mix(i + g->own);
  int32_t sum;
  switch (g->kind) {
  case GRADIENT_HEAVY: {
    /* The scale of an element is the same on all ranks and changes every 32 steps, at another time
     * for each element; two thirds of what it scales are common, too. A hash's lowest bit that is
     * one is a power of two, each half as frequent as the one before: the tail is that of a Pareto
     * distribution. */
    const uint32_t phase = (uint32_t)(i * 0x9e3779b97f4a7c15ULL >> 59);
    const uint32_t bits = (uint32_t)hash_mix(i + g->scale[g->age + phase >= 32]) | 1 << 12;
    const int32_t shared = (int32_t)(hash_mix(i + g->shared) >> 52) - 2048;
    const int32_t own = (int32_t)(hash >> 52) - 2048;
    return (2 * shared + own) * (int32_t)(bits & (0 - bits));
  }
  case GRADIENT_NORMAL: /* of twelve uniform numbers, the sum */
    sum = -6 * 0xffff;
    for (int j = 0; j < 3; j++)
      for (int k = 0; k < 64; k += 16) sum += (int32_t)(hash_mix(hash + (uint64_t)j) >> k & 0xffff);
    return sum * 16;
  case GRADIENT_UNIFORM:
    return ((int32_t)(hash >> 40) - 0x800000) / 8;
  case GRADIENT_TIES:
    return ((int32_t)(hash >> 60) / 2 - 4) * (1 << (18 + (int)(hash & 1)));
  default: {
    const int32_t value = ((int32_t)(hash >> 40) - 0x800000) / 8;
    return i >= g->region && i - g->region < g->length ? value : value / 65536;
  }
  }
}

/* Bits of `integer` * 2^-20 in a type of 16 bits, rounded to nearest even. */
GRADIENT_FN uint16_t gradient_round(int32_t integer, int fraction_bits, int bias)
{
  const uint32_t size = integer < 0 ? 0u - (uint32_t)integer : (uint32_t)integer;
  const uint32_t sign = integer < 0 ? 0x8000 : 0;
  int top = 31;
  if (size == 0) return 0;
  while (!(size >> top)) top--;
  int exponent = top - 20 + bias; /* as it is stored */
  int shift = top - fraction_bits;
  if (exponent < 1) { /* a subnormal number of half: all have the scale of exponent 1 */
    shift += 1 - exponent;
    exponent = 1;
  }
  uint32_t fraction = shift <= 0 ? size << -shift : size >> shift;
  if (shift > 0) {
    const uint32_t rest = size & ((1u << shift) - 1), half = 1u << (shift - 1);
    if (rest > half || (rest == half && (fraction & 1))) fraction++; /* may carry: see below */
  }
  /* The leading one of a normal number, which is not stored, adds the last 1 of the exponent; a
   * subnormal number lacks it; a carry raises the exponent. All three are one sum. */
  return (uint16_t)(sign | (((uint32_t)(exponent - 1) << fraction_bits) + fraction));
}

GRADIENT_FN float gradient_float(const struct gradient *g, size_t i)
{
  return (float)gradient_integer(g, i) * 0x1p-20f; /* both exact */
}

GRADIENT_FN uint16_t gradient_word(const struct gradient *g, ncclDataType_t type, size_t i)
{
  const int32_t integer = gradient_integer(g, i);
  return type == ncclHalf ? gradient_round(integer, 10, 15) : gradient_round(integer, 7, 127);
}

#ifdef __cplusplus
}
#endif
#endif
