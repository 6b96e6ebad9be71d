/* SPDX-License-Identifier: Apache-2.0 */
#include "gradient.h"

#include <math.h>
#include <string.h>

static float from_bits(uint32_t bits)
{
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static float half_to_float(uint16_t half)
{
  const uint32_t sign = (uint32_t)(half & 0x8000) << 16;
  const uint32_t exponent = half >> 10 & 31, fraction = half & 1023;
  if (exponent == 0) return copysignf(ldexpf((float)fraction, -24), from_bits(sign | 0x3f800000));
  return from_bits(sign | (exponent == 31 ? 255u : exponent + 112) << 23 | fraction << 13);
}

void gradient_widen(float *to, const void *from, size_t count, ncclDataType_t type)
{
  const uint16_t *words = from;
  if (type == ncclFloat) {
    if (to != from) memcpy(to, from, count * sizeof *to);
    return;
  }
  for (size_t i = 0; i < count; i++)
    to[i] = type == ncclHalf ? half_to_float(words[i]) : from_bits((uint32_t)words[i] << 16);
}
