/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic in every data type. Values are combined in the order of the ranks, so every run gives
 * the same bits. Half and bfloat16 are combined in float and rounded once; integers are combined in
 * 64 bits, whose low bits are those of the type. */
#include "internal.h"

#include <string.h>

#include "float16.h"

/* Type; in C; that of sums; one in which these wrap without undefined behavior; conversions. */
#define FOR_ALL_TYPES(DO)                                            \
  DO(ncclInt8, int8_t, int64_t, uint64_t, , )                        \
  DO(ncclUint8, uint8_t, uint64_t, uint64_t, , )                     \
  DO(ncclInt32, int32_t, int64_t, uint64_t, , )                      \
  DO(ncclUint32, uint32_t, uint64_t, uint64_t, , )                   \
  DO(ncclInt64, int64_t, int64_t, uint64_t, , )                      \
  DO(ncclUint64, uint64_t, uint64_t, uint64_t, , )                   \
  DO(ncclHalf, uint16_t, float, float, half_to_float, float_to_half) \
  DO(ncclFloat, float, float, float, , )                             \
  DO(ncclDouble, double, double, double, , )                         \
  DO(ncclBfloat16, uint16_t, float, float, bfloat16_to_float, float_to_bfloat16)

/* memcpy, because NCCL requires no alignment. */
#define DEFINE_REDUCE(NAME, TYPE, SUM, WRAPS, LOAD, STORE)                                         \
  static void reduce_##NAME(char *out, const char *const *in, int n, size_t count, ncclRedOp_t op) \
  {                                                                                                \
    for (size_t i = 0; i < count; i++) {                                                           \
      TYPE value;                                                                                  \
      memcpy(&value, in[0] + i * sizeof(value), sizeof(value));                                    \
      SUM sum = LOAD(value);                                                                       \
      for (int r = 1; r < n; r++) {                                                                \
        memcpy(&value, in[r] + i * sizeof(value), sizeof(value));                                  \
        const SUM x = LOAD(value);                                                                 \
        switch (op) {                                                                              \
        case ncclProd:                                                                             \
          sum = (SUM)((WRAPS)sum * (WRAPS)x);                                                      \
          break;                                                                                   \
        case ncclMax:                                                                              \
          if (x > sum) sum = x;                                                                    \
          break;                                                                                   \
        case ncclMin:                                                                              \
          if (x < sum) sum = x;                                                                    \
          break;                                                                                   \
        default:                                                                                   \
          sum = (SUM)((WRAPS)sum + (WRAPS)x);                                                      \
        }                                                                                          \
      }                                                                                            \
      value = STORE(op == ncclAvg ? sum / (SUM)n : sum);                                           \
      memcpy(out + i * sizeof(value), &value, sizeof(value));                                      \
    }                                                                                              \
  }
FOR_ALL_TYPES(DEFINE_REDUCE)

static const struct {
  const char *name;
  size_t size;
  void (*reduce)(char *out, const char *const *in, int n, size_t count, ncclRedOp_t op);
} types[] = {
#define ROW(NAME, TYPE, ...) [NAME] = {#NAME, sizeof(TYPE), reduce_##NAME},
    FOR_ALL_TYPES(ROW)};

size_t cpu_type_size(ncclDataType_t type)
{
  return (unsigned)type < ncclNumTypes ? types[type].size : 0;
}

const char *cpu_type_name(ncclDataType_t type)
{
  return types[type].name;
}

void cpu_reduce(void *out, const char *const *in, int n, size_t count, ncclDataType_t type,
                ncclRedOp_t op)
{
  types[type].reduce(out, in, n, count, op);
}
