/* SPDX-License-Identifier: Apache-2.0 */
/* half and bfloat16 on the host, from their bits and back. Rounds to the nearest number, in the
 * middle to the even one. NaN has the bits that the device writes. */
#ifndef COMMON_FLOAT16_H
#define COMMON_FLOAT16_H

#include <stdint.h>
#include <string.h>

static inline float float16_of_bits(uint32_t bits)
{
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline uint32_t float16_bits_of(float value)
{
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline float bfloat16_to_float(uint16_t x)
{
  return float16_of_bits((uint32_t)x << 16);
}

static inline uint16_t float_to_bfloat16(float value)
{
  const uint32_t bits = float16_bits_of(value);
  if (value != value) return 0x7fff;
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float half_to_float(uint16_t x)
{
  const uint32_t sign = (uint32_t)(x & 0x8000) << 16, magnitude = x & 0x7fff;
  if (magnitude >= 0x7c00) return float16_of_bits(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  /* read as a float it is too small by 2^112, even if it is subnormal */
  return float16_of_bits(sign | float16_bits_of(float16_of_bits(magnitude << 13) * 0x1p112f));
}

static inline uint16_t float_to_half(float value)
{
  const uint16_t sign = (uint16_t)(float16_bits_of(value) >> 16 & 0x8000);
  uint32_t magnitude = float16_bits_of(value) & 0x7fffffff;
  if (value != value) return 0x7fff;
  if (magnitude >= 0x477ff000) return sign | 0x7c00; /* 65520 and more are infinity */
  if (magnitude < 0x38800000) /* subnormal: a float near 0.5 has a last bit of 2^-24, as well */
    return (uint16_t)(sign |
                      (float16_bits_of(float16_of_bits(magnitude) + 0.5f) - float16_bits_of(0.5f)));
  magnitude -= 112u << 23;
  return (uint16_t)(sign | (magnitude + 0xfff + (magnitude >> 13 & 1)) >> 13);
}

#endif
