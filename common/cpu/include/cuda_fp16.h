/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_CPU_CUDA_FP16_H
#define COMMON_CPU_CUDA_FP16_H
#include "float16.h"
struct __half {
  uint16_t bits;
  operator float() const { return half_to_float(bits); }
};
static inline __half __ushort_as_half(uint16_t v)
{
  return {v};
}
static inline uint16_t __half_as_ushort(__half v)
{
  return v.bits;
}
static inline float __half2float(__half v)
{
  return half_to_float(v.bits);
}
static inline __half __float2half_rn(float v)
{
  return {float_to_half(v)};
}
#endif
