/* SPDX-License-Identifier: Apache-2.0 */
/* datatype.c: names, and the number behind a bit pattern. */
#include "datatype.h"

#include <math.h>
#include <stdbool.h>

#include "unit.h"

struct value {
  const char *type;
  uint64_t bits;
  double value;
};

static const struct value values[] = {
    {"half", 0x0000, 0.0},
    {"half", 0x3C00, 1.0},
    {"half", 0xC000, -2.0},
    {"half", 0x7BFF, 65504.0},                /* the largest */
    {"half", 0x0400, 6.103515625e-05},        /* the smallest normal number */
    {"half", 0x0001, 5.9604644775390625e-08}, /* the smallest denormal one */
    {"half", 0x83FF, -6.0975551605224609375e-05},
    {"half", 0x7C00, INFINITY},
    {"half", 0xFC00, -INFINITY},
    {"half", 0x7C01, NAN},
    {"half", 0xFFFF, NAN}, /* what outputs are poisoned with */
    {"bfloat16", 0x3F80, 1.0},
    {"bfloat16", 0xC2C8, -100.0},
    {"bfloat16", 0x7F7F, 0x1.FEp127},
    {"bfloat16", 0x0001, 0x1p-133},
    {"bfloat16", 0x7F80, INFINITY},
    {"bfloat16", 0x7F81, NAN},
    {"bfloat16", 0xFFFF, NAN},
    {"float", 0x3FC00000, 1.5},
    {"float", 0x00000001, 0x1p-149},
    {"float", 0xFF800000, -INFINITY},
    {"float", 0xFFFFFFFF, NAN},
    {"double", 0x4000000000000000, 2.0},
    {"double", 0x0000000000000001, 0x1p-1074},
    {"double", 0x7FF0000000000000, INFINITY},
    {"double", 0xFFFFFFFFFFFFFFFF, NAN},
    {"int8", 0x80, -128},
    {"int8", 0x7F, 127},
    {"uint8", 0xFF, 255},
    {"int32", 0xFFFFFFFF, -1},
    {"int32", 0x80000000, -2147483648.0},
    {"uint32", 0xFFFFFFFF, 4294967295.0},
    {"int64", 0xFFFFFFFFFFFFFFFF, -1},
    {"uint64", 0x8000000000000000, 9223372036854775808.0},
};

static void test_values(void **state)
{
  (void)state;
  for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
    const struct value *v = &values[i];
    double got = datatype_value(datatype_find(v->type), v->bits);
    bool same = isnan(v->value) ? isnan(got) : got == v->value;
    if (!same) print_error("%s %#llx: %g\n", v->type, (unsigned long long)v->bits, got);
    assert_true(same);
  }
  assert_true(signbit(datatype_value(datatype_find("half"), 0x8000)));
  assert_true(signbit(datatype_value(datatype_find("bfloat16"), 0x8000)));
}

/* All 65,536 half numbers against the compiler's own, where it has them. */
static void test_every_half(void **state)
{
  (void)state;
#ifdef __FLT16_MAX__
  for (uint32_t bits = 0; bits <= 0xFFFF; bits++) {
    uint16_t pattern = (uint16_t)bits;
    __extension__ _Float16 number;
    memcpy(&number, &pattern, sizeof number);
    double wanted = (double)number, got = datatype_value(datatype_find("half"), bits);
    assert_true(isnan(wanted) ? isnan(got) : got == wanted);
  }
#else
  skip();
#endif
}

static void test_table(void **state)
{
  static const struct {
    const char *name;
    ncclDataType_t nccl;
    size_t size;
    int exact_bits;
  } rows[] = {{"int8", ncclInt8, 1, 7},    {"uint8", ncclUint8, 1, 8},
              {"int32", ncclInt32, 4, 31}, {"uint32", ncclUint32, 4, 32},
              {"int64", ncclInt64, 8, 63}, {"uint64", ncclUint64, 8, 64},
              {"half", ncclHalf, 2, 11},   {"bfloat16", ncclBfloat16, 2, 8},
              {"float", ncclFloat, 4, 24}, {"double", ncclDouble, 8, 53}};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    const struct datatype *type = datatype_find(rows[i].name);
    assert_non_null(type);
    assert_string_equal(type->name, rows[i].name);
    assert_int_equal(type->nccl, rows[i].nccl);
    assert_int_equal(type->size, rows[i].size);
    assert_int_equal(type->exact_bits, rows[i].exact_bits);
  }
  assert_null(datatype_find(""));
  assert_null(datatype_find("Float"));
  assert_null(datatype_find("float "));
}

static void test_text(void **state)
{
  static const struct {
    const char *type;
    uint64_t bits;
    const char *text;
  } rows[] = {{"int64", 0x7FFFFFFFFFFFFFFF, "9223372036854775807"},
              {"int64", 0x8000000000000000, "-9223372036854775808"},
              {"uint64", 0xFFFFFFFFFFFFFFFE, "18446744073709551614"},
              {"int32", 0x7FFFFFFF, "2147483647"},
              {"uint32", 0xFFFFFFFE, "4294967294"},
              {"float", 0x4B000001, "8388609"},
              {"double", 0x433FFFFFFFFFFFFF, "9007199254740991"},
              {"half", 0x3C01, "1.00097656"}};
  char text[64];
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    assert_string_equal(datatype_text(datatype_find(rows[i].type), rows[i].bits, text, sizeof text),
                        rows[i].text);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_values),
      cmocka_unit_test(test_text),
      cmocka_unit_test(test_every_half),
      cmocka_unit_test(test_table),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
