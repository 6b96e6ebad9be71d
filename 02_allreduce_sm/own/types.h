/* SPDX-License-Identifier: Apache-2.0 */
/* The types whose elements can be added: X(NCCL's type, the sum, the bits of an element). The sum
 * is a type in sum.cuh and a function in plain.c. Host code, kernels and plain C twin go by this
 * list: a line without its sum does not compile. */
#ifndef ALLREDUCE_TYPES_H
#define ALLREDUCE_TYPES_H

#include <stdint.h>

#include <nccl.h>

#define ALLREDUCE_TYPES(X)                \
  X(ncclHalf, sum_half, uint16_t)         \
  X(ncclBfloat16, sum_bfloat16, uint16_t) \
  X(ncclFloat, sum_float, float)          \
  X(ncclDouble, sum_double, double)       \
  X(ncclInt64, sum_int64, uint64_t)       \
  X(ncclUint64, sum_int64, uint64_t)      \
  X(ncclInt32, sum_int32, uint32_t)       \
  X(ncclUint32, sum_int32, uint32_t)

#endif
