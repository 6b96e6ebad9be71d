/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the CPU stand-in: elements of all types. */
#include "standin.h"

const ncclDataType_t all_types[TYPES] = {ncclInt8,    ncclUint8,   ncclInt32,   ncclUint32,
                                         ncclInt64,   ncclUint64,  ncclFloat16, ncclFloat32,
                                         ncclFloat64, ncclBfloat16};

size_t size_of(ncclDataType_t type)
{
  static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return sizes[type];
}

float float_from(uint32_t bits)
{
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

uint32_t bits_from(float value)
{
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

/* Written another way than in the stand-in, so that a mistake does not cancel out. */
double half_value(uint16_t x)
{
  int exponent = x >> 10 & 31;
  double fraction = x & 1023;
  double magnitude = exponent == 0 ? fraction * 0x1p-24 : (1024 + fraction) * 0x1p-25;
  for (int e = 0; e < exponent; e++)
    if (exponent > 0) magnitude *= 2;
  return x >> 15 != 0 ? -magnitude : magnitude;
}

static void put(void *buffer, size_t i, ncclDataType_t type, int value)
{
  char *at = (char *)buffer + i * size_of(type);
  int64_t integer = value;
  float single = (float)value;
  double real = value;
  uint16_t brain = (uint16_t)(bits_from(single) >> 16);
  switch (type) {
  case ncclFloat16:
    for (unsigned x = 0;; x++)
      if (half_value((uint16_t)x) == (value < 0 ? -real : real)) {
        uint16_t half = (uint16_t)(x | (value < 0 ? 0x8000 : 0));
        memcpy(at, &half, 2);
        return;
      }
  case ncclBfloat16:
    memcpy(at, &brain, 2);
    return;
  case ncclFloat32:
    memcpy(at, &single, 4);
    return;
  case ncclFloat64:
    memcpy(at, &real, 8);
    return;
  default:
    memcpy(at, &integer, size_of(type)); /* little-endian */
  }
}

double get(const void *buffer, size_t i, ncclDataType_t type)
{
  const char *at = (const char *)buffer + i * size_of(type);
  int8_t i8;
  uint8_t u8;
  int32_t i32;
  uint32_t u32;
  int64_t i64;
  uint64_t u64;
  uint16_t u16;
  float f32;
  double f64;
  switch (type) {
  case ncclInt8:
    return memcpy(&i8, at, 1), (double)i8;
  case ncclUint8:
    return memcpy(&u8, at, 1), (double)u8;
  case ncclInt32:
    return memcpy(&i32, at, 4), (double)i32;
  case ncclUint32:
    return memcpy(&u32, at, 4), (double)u32;
  case ncclInt64:
    return memcpy(&i64, at, 8), (double)i64;
  case ncclUint64:
    return memcpy(&u64, at, 8), (double)u64;
  case ncclFloat16:
    return memcpy(&u16, at, 2), half_value(u16);
  case ncclBfloat16:
    return memcpy(&u16, at, 2), (double)float_from((uint32_t)u16 << 16);
  case ncclFloat32:
    return memcpy(&f32, at, 4), (double)f32;
  default:
    return memcpy(&f64, at, 8), f64;
  }
}

/* The element i of rank r's block b: small, so that sums of 7 ranks are exact in all types and
 * products of 7 fit into a byte. */
int element(int rank, size_t i, int block)
{
  return (int)((i * 7 + i / 251 + (size_t)rank * 3 + (size_t)block * 5) % 8);
}

/* The same for all tests: values 0..7 of every type, ready to be copied. */
static char patterns[TYPES][8][8];

void make_patterns(void)
{
  for (int t = 0; t < TYPES; t++)
    for (int v = 0; v < 8; v++) put(patterns[t][v], 0, all_types[t], v);
}

void fill(void *buffer, size_t count, int type, int rank, int block)
{
  size_t size = size_of(all_types[type]);
  for (size_t i = 0; i < count; i++)
    memcpy((char *)buffer + i * size, patterns[type][element(rank, i, block)], size);
}

double reduced(int n, size_t i, int block, ncclRedOp_t op, bool integer)
{
  double result = element(0, i, block);
  for (int r = 1; r < n; r++) {
    double x = element(r, i, block);
    result = op == ncclProd  ? result * x
             : op == ncclMax ? (x > result ? x : result)
             : op == ncclMin ? (x < result ? x : result)
                             : result + x;
  }
  if (op == ncclAvg) result = integer ? (double)((int)result / n) : result / n;
  return result;
}

bool close_to(double x, double y, ncclDataType_t type, ncclRedOp_t op)
{
  if (op == ncclProd && size_of(type) == 1) return true; /* wraps; tested on its own */
  double unit = type == ncclFloat16    ? 0x1p-11
                : type == ncclBfloat16 ? 0x1p-8
                : type == ncclFloat32  ? 0x1p-23
                                       : 0;
  if (op == ncclSum || op == ncclMax || op == ncclMin) unit = 0; /* exact */
  double difference = x < y ? y - x : x - y;
  return difference <= unit * (y < 0 ? -y : y) + (op == ncclAvg ? 1e-15 * y : 0);
}
