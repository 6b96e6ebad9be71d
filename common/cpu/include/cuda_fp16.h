/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_CPU_CUDA_FP16_H
#define COMMON_CPU_CUDA_FP16_H
#include "float16.h"

/* A type of 16 bits and its functions; cuda_bf16.h has the other one. */
#define CPU_FLOAT16(type, name)                              \
  struct type {                                              \
    uint16_t bits;                                           \
    operator float() const { return name##_to_float(bits); } \
  };                                                         \
  static inline type __ushort_as_##name(uint16_t v)          \
  {                                                          \
    return {v};                                              \
  }                                                          \
  static inline uint16_t __##name##_as_ushort(type v)        \
  {                                                          \
    return v.bits;                                           \
  }                                                          \
  static inline float __##name##2float(type v)               \
  {                                                          \
    return v;                                                \
  }                                                          \
  static inline type __float2##name##_rn(float v)            \
  {                                                          \
    return {float_to_##name(v)};                             \
  }

CPU_FLOAT16(__half, half)
#endif
