/* SPDX-License-Identifier: Apache-2.0 */
#include "datatype.h"

#include <string.h>

#include "float16.h"

static const struct datatype datatypes[] = {
    {"int8", ncclInt8, 1, 7},      {"uint8", ncclUint8, 1, 8},       {"int32", ncclInt32, 4, 31},
    {"uint32", ncclUint32, 4, 32}, {"int64", ncclInt64, 8, 63},      {"uint64", ncclUint64, 8, 64},
    {"half", ncclHalf, 2, 11},     {"bfloat16", ncclBfloat16, 2, 8}, {"float", ncclFloat, 4, 24},
    {"double", ncclDouble, 8, 53},
};

const struct datatype *datatype_find(const char *name)
{
  for (size_t i = 0; i < sizeof datatypes / sizeof *datatypes; i++)
    if (strcmp(datatypes[i].name, name) == 0) return &datatypes[i];
  return NULL;
}

long double datatype_value(const struct datatype *type, uint64_t bits)
{
  double value;
  switch (type->nccl) {
  case ncclInt8:
    return (int8_t)bits;
  case ncclInt32:
    return (int32_t)bits;
  case ncclInt64:
    return (int64_t)bits;
  case ncclHalf:
    return half_to_float((uint16_t)bits);
  case ncclBfloat16:
    return bfloat16_to_float((uint16_t)bits);
  case ncclFloat:
    return float16_of_bits((uint32_t)bits);
  case ncclDouble:
    memcpy(&value, &bits, sizeof value);
    return value;
  default:
    return bits;
  }
}
