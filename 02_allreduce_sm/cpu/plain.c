/* SPDX-License-Identifier: Apache-2.0 */
/* The sums of 02 in plain C, with which tests compare the kernels. */
#include <stdint.h>
#include <string.h>

#include "float16.h"
#include "allreduce_internal.h"

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

DEFINE_SUM(sum_half, uint16_t, float, half_to_float, float_to_half)
DEFINE_SUM(sum_bfloat16, uint16_t, float, bfloat16_to_float, float_to_bfloat16)
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
