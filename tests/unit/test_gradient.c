/* SPDX-License-Identifier: Apache-2.0 */
/* gradient.c: that each rank and step has gradients of its own, and how they are rounded. */
#include <math.h>

#include "float16.h"
#include "harness/program.h"
#include "unit.h"

enum { N = 20000 };

static float values[3][N];

static void generate(float *to, enum gradient_kind kind, uint64_t seed, uint64_t step, int rank,
                     int nranks)
{
  gradient_fill(to, ncclFloat, N, kind, seed, step, rank, nranks);
}

static void test_half(void **state)
{
  (void)state;
  for (uint16_t bits = 0; bits < 0x7c00; bits++) {
    const int exponent = bits >> 10, fraction = bits & 1023;
    const float size =
        exponent ? ldexpf((float)(1024 + fraction), exponent - 25) : ldexpf((float)fraction, -24);
    assert_true(half_to_float(bits) == size && half_to_float(bits | 0x8000) == -size);
    assert_int_equal(float_to_half(size), bits);
  }
}

static void test_deterministic(void **state)
{
  (void)state;
  for (int kind = GRADIENT_HEAVY; kind <= GRADIENT_ONE_REGION; kind++) {
    generate(values[0], (enum gradient_kind)kind, 7, 5, 1, 4);
    generate(values[1], (enum gradient_kind)kind, 7, 5, 1, 4);
    assert_memory_equal(values[0], values[1], sizeof values[0]);
    const struct {
      uint64_t seed, step;
      int rank;
    } others[] = {{8, 5, 1}, {7, 6, 1}, {7, 5, 2}};
    for (size_t o = 0; o < 3; o++) {
      int equal = 0;
      generate(values[1], (enum gradient_kind)kind, others[o].seed, others[o].step, others[o].rank,
               4);
      for (int i = 0; i < N; i++) equal += values[0][i] == values[1][i];
      assert_true(equal < N / 3); /* ties and small numbers meet by chance */
    }
    for (int i = 0; i < N; i++) assert_true(isfinite(values[0][i]));
    static uint16_t words[N];
    gradient_fill(words, ncclHalf, N, (enum gradient_kind)kind, 7, 5, 1, 4);
    for (int i = 0; i < N; i++)
      assert_true(fabsf(half_to_float(words[i]) - values[0][i]) <=
                  fabsf(values[0][i]) / 2048 + 0x1p-25f);
    gradient_fill(words, ncclBfloat16, N, (enum gradient_kind)kind, 7, 5, 1, 4);
    for (int i = 0; i < N; i++)
      assert_true(fabsf(bfloat16_to_float(words[i]) - values[0][i]) <= fabsf(values[0][i]) / 256);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_half),
      cmocka_unit_test(test_deterministic),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
