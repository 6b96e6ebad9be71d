/* SPDX-License-Identifier: Apache-2.0 */
#include "plain.h"

#include <stdint.h>
#include <string.h>

#include "types.h"

/* ---- 16-bit types, rounded to the nearest and, in the middle, to the even one ---------------- */

static float float_of(uint32_t bits)
{
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

static uint32_t bits_of(float value)
{
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

static float read_bfloat16(uint16_t x)
{
  return float_of((uint32_t)x << 16);
}

static uint16_t write_bfloat16(float value)
{
  const uint32_t bits = bits_of(value);
  if (value != value) return 0x7fff; /* as the device writes NaN */
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float read_half(uint16_t x)
{
  const uint32_t sign = (uint32_t)(x & 0x8000) << 16, magnitude = x & 0x7fff;
  if (magnitude >= 0x7c00) return float_of(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  /* taken for a float it would be too small by 2^112, also where it is subnormal */
  return float_of(sign | bits_of(float_of(magnitude << 13) * 0x1p112f));
}

static uint16_t write_half(float value)
{
  const uint16_t sign = (uint16_t)(bits_of(value) >> 16 & 0x8000);
  uint32_t magnitude = bits_of(value) & 0x7fffffff;
  if (value != value) return 0x7fff;                 /* as the device writes NaN */
  if (magnitude >= 0x477ff000) return sign | 0x7c00; /* 65520 and more are infinity */
  if (magnitude < 0x38800000) /* subnormal: beside 0.5 a float's last bit is worth 2^-24, too */
    return (uint16_t)(sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f)));
  magnitude -= 112u << 23;
  return (uint16_t)(sign | (magnitude + 0xfff + (magnitude >> 13 & 1)) >> 13);
}

/* ---- sums ------------------------------------------------------------------------------------ */

#define DEFINE_SUM(NAME, ELEMENT, WIDE, READ, WRITE)                       \
  static void NAME(const void *const *from, int n, size_t count, char *to) \
  {                                                                        \
    for (size_t i = 0; i < count; i++) {                                   \
      ELEMENT e;                                                           \
      WIDE sum = 0;                                                        \
      for (int p = 0; p < n; p++) {                                        \
        memcpy(&e, (const char *)from[p] + i * sizeof(e), sizeof(e));      \
        sum = p == 0 ? READ(e) : sum + READ(e);                            \
      }                                                                    \
      e = WRITE(sum);                                                      \
      memcpy(to + i * sizeof(e), &e, sizeof(e));                           \
    }                                                                      \
  }

DEFINE_SUM(sum_half, uint16_t, float, read_half, write_half)
DEFINE_SUM(sum_bfloat16, uint16_t, float, read_bfloat16, write_bfloat16)
DEFINE_SUM(sum_float, float, float, , )
DEFINE_SUM(sum_double, double, double, , )
DEFINE_SUM(sum_int32, uint32_t, uint32_t, , )
DEFINE_SUM(sum_int64, uint64_t, uint64_t, , )

void allreduce_plain_sum(ncclDataType_t type, const void *const *from, int n, size_t count,
                         void *to)
{
#define SUM_OF(type, sum, element) [type] = sum,
  static void (*const sums[])(const void *const *, int, size_t, char *) = {ALLREDUCE_TYPES(SUM_OF)};
  sums[type](from, n, count, to);
}
