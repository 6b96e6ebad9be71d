/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic in every data type. Values are combined in the order of the ranks, so every run gives
 * the same bits. Half and bfloat16 are combined in float and rounded once; integers are combined in
 * 64 bits, whose low bits are those of the type. */
#include "internal.h"

#include <string.h>

#include "float16.h"

/* ---- combining ----------------------------------------------------------------------------- */

/* One function per class of accumulator. Sums and products go through WIDE, in which signed
 * integers wrap without undefined behavior. */
#define DEFINE_COMBINE(NAME, ACC, WIDE)         \
  static ACC NAME(ACC a, ACC b, ncclRedOp_t op) \
  {                                             \
    switch (op) {                               \
    case ncclProd:                              \
      return (ACC)((WIDE)a * (WIDE)b);          \
    case ncclMax:                               \
      return b > a ? b : a;                     \
    case ncclMin:                               \
      return b < a ? b : a;                     \
    default:                                    \
      return (ACC)((WIDE)a + (WIDE)b);          \
    }                                           \
  }

DEFINE_COMBINE(combine_float, float, float)
DEFINE_COMBINE(combine_double, double, double)
DEFINE_COMBINE(combine_signed, int64_t, uint64_t)
DEFINE_COMBINE(combine_unsigned, uint64_t, uint64_t)

/* memcpy, because NCCL requires no alignment. */
#define DEFINE_REDUCE(NAME, TYPE, ACC, COMBINE, LOAD, STORE)                              \
  static void NAME(char *out, const char *const *in, int n, size_t count, ncclRedOp_t op) \
  {                                                                                       \
    for (size_t i = 0; i < count; i++) {                                                  \
      TYPE value;                                                                         \
      memcpy(&value, in[0] + i * sizeof(value), sizeof(value));                           \
      ACC sum = LOAD(value);                                                              \
      for (int r = 1; r < n; r++) {                                                       \
        memcpy(&value, in[r] + i * sizeof(value), sizeof(value));                         \
        sum = COMBINE(sum, LOAD(value), op);                                              \
      }                                                                                   \
      value = STORE(op == ncclAvg ? sum / (ACC)n : sum);                                  \
      memcpy(out + i * sizeof(value), &value, sizeof(value));                             \
    }                                                                                     \
  }

DEFINE_REDUCE(reduce_int8, int8_t, int64_t, combine_signed, (int64_t), (int8_t))
DEFINE_REDUCE(reduce_uint8, uint8_t, uint64_t, combine_unsigned, (uint64_t), (uint8_t))
DEFINE_REDUCE(reduce_int32, int32_t, int64_t, combine_signed, (int64_t), (int32_t))
DEFINE_REDUCE(reduce_uint32, uint32_t, uint64_t, combine_unsigned, (uint64_t), (uint32_t))
DEFINE_REDUCE(reduce_int64, int64_t, int64_t, combine_signed, (int64_t), (int64_t))
DEFINE_REDUCE(reduce_uint64, uint64_t, uint64_t, combine_unsigned, (uint64_t), (uint64_t))
DEFINE_REDUCE(reduce_half, uint16_t, float, combine_float, half_to_float, float_to_half)
DEFINE_REDUCE(reduce_float, float, float, combine_float, (float), (float))
DEFINE_REDUCE(reduce_double, double, double, combine_double, (double), (double))
DEFINE_REDUCE(reduce_bfloat16, uint16_t, float, combine_float, bfloat16_to_float, float_to_bfloat16)

static const struct {
  const char *name;
  size_t size;
  void (*reduce)(char *out, const char *const *in, int n, size_t count, ncclRedOp_t op);
} types[] = {
    [ncclInt8] = {"ncclInt8", 1, reduce_int8},
    [ncclUint8] = {"ncclUint8", 1, reduce_uint8},
    [ncclInt32] = {"ncclInt32", 4, reduce_int32},
    [ncclUint32] = {"ncclUint32", 4, reduce_uint32},
    [ncclInt64] = {"ncclInt64", 8, reduce_int64},
    [ncclUint64] = {"ncclUint64", 8, reduce_uint64},
    [ncclHalf] = {"ncclHalf", 2, reduce_half},
    [ncclFloat] = {"ncclFloat", 4, reduce_float},
    [ncclDouble] = {"ncclDouble", 8, reduce_double},
    [ncclBfloat16] = {"ncclBfloat16", 2, reduce_bfloat16},
};

size_t cpu_type_size(ncclDataType_t type)
{
  return (unsigned)type < ncclNumTypes ? types[type].size : 0;
}

const char *cpu_type_name(ncclDataType_t type)
{
  return (unsigned)type < ncclNumTypes ? types[type].name : "no type";
}

void cpu_reduce(void *out, const char *const *in, int n, size_t count, ncclDataType_t type,
                ncclRedOp_t op)
{
  types[type].reduce(out, in, n, count, op);
}
