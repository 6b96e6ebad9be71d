/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_CPU_CUDA_BF16_H
#define COMMON_CPU_CUDA_BF16_H
#include "float16.h"
struct __nv_bfloat16 {
  uint16_t bits;
  operator float() const { return bfloat16_to_float(bits); }
};
static inline __nv_bfloat16 __ushort_as_bfloat16(uint16_t v)
{
  return {v};
}
static inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 v)
{
  return v.bits;
}
static inline float __bfloat162float(__nv_bfloat16 v)
{
  return bfloat16_to_float(v.bits);
}
static inline __nv_bfloat16 __float2bfloat16_rn(float v)
{
  return {float_to_bfloat16(v)};
}
#endif
