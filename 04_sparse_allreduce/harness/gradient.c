/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients to try a sparse allreduce on. An element depends only on (seed, step, rank, index). It
 * is made of integers (a hash, sums and shifts), so it has the same bits on every machine. */
#include "float16.h"
#include "hash.h"
#include "program.h"

/* What one gradient is. */
struct gradient {
  enum gradient_kind kind;
  uint64_t own, shared;  /* keys of hashes: this rank's in this step, all ranks' */
  uint64_t scale[2];     /* the older and the newer one */
  uint32_t age;          /* steps since the newer one began */
  size_t region, length; /* of GRADIENT_ONE_REGION: its begin */
};

static uint64_t key(uint64_t seed, uint64_t rank, uint64_t step)
{
  return hash_mix(seed + hash_mix(rank + hash_mix(step + 0x9e3779b97f4a7c15ULL)));
}

/* The element is this integer, below 2^25 in magnitude, times 2^-20. Its significant bits are fewer
 * than 24, so a float has its exact value. */
static int32_t integer(const struct gradient *g, size_t i)
{
  const uint64_t hash = hash_mix(i + g->own);
  int32_t sum;
  switch (g->kind) {
  case GRADIENT_HEAVY: {
    /* The scale of an element is the same on all ranks and changes every 32 steps, at another time
     * for each element. Two thirds of what it scales are common, too. The lowest set bit of a hash
     * is a power of two, each half as frequent as the one before: a Pareto distribution. */
    const uint32_t phase = (uint32_t)(i * 0x9e3779b97f4a7c15ULL >> 59);
    const uint32_t bits = (uint32_t)hash_mix(i + g->scale[g->age + phase >= 32]) | 1 << 12;
    const int32_t shared = (int32_t)(hash_mix(i + g->shared) >> 52) - 2048;
    const int32_t own = (int32_t)(hash >> 52) - 2048;
    return (2 * shared + own) * (int32_t)(bits & (0 - bits));
  }
  case GRADIENT_NORMAL: /* the sum of twelve uniform numbers */
    sum = -6 * 0xffff;
    for (int j = 0; j < 3; j++)
      for (int k = 0; k < 64; k += 16) sum += (int32_t)(hash_mix(hash + (uint64_t)j) >> k & 0xffff);
    return sum * 16;
  case GRADIENT_TIES:
    return ((int32_t)(hash >> 60) / 2 - 4) * (1 << (18 + (int)(hash & 1)));
  default: {
    const int32_t value = ((int32_t)(hash >> 40) - 0x800000) / 8;
    return i >= g->region && i - g->region < g->length ? value : value / 65536;
  }
  }
}

void gradient_fill(void *to, ncclDataType_t type, size_t count, enum gradient_kind kind,
                   uint64_t seed, uint64_t step, int rank, int nranks)
{
  const uint64_t all = 1 << 20, scales = all + 1, regions = 2 * (uint64_t)nranks; /* no ranks */
  const size_t length = count / regions + 1;
  const struct gradient g = {
      .kind = kind,
      .own = key(seed, (uint64_t)rank, step),
      .shared = key(seed, all, step),
      .scale = {key(seed, scales, step / 32), key(seed, scales, step / 32 + 1)},
      .age = (uint32_t)(step % 32),
      .region = (size_t)(step % regions) * length,
      .length = length,
  };
  for (size_t i = 0; i < count; i++) {
    const float value = (float)integer(&g, i) * 0x1p-20f; /* both exact */
    if (type == ncclFloat)
      ((float *)to)[i] = value;
    else
      ((uint16_t *)to)[i] = type == ncclHalf ? float_to_half(value) : float_to_bfloat16(value);
  }
}
