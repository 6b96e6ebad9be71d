/* SPDX-License-Identifier: Apache-2.0 */
/* gradient.c and gradient_cpu.c: conversions, and the properties that the kinds are named for. */
#include "program/gradient.h"

#include <math.h>

#include "datatype.h"
#include "unit.h"

enum { N = 20000 };

static float values[3][N];

/* Element i of that type, as the device makes it. */
static void generate(float *to, const char *type_name, enum gradient_kind kind, uint64_t seed,
                     uint64_t step, int rank, int nranks)
{
  const struct datatype *type = datatype_find(type_name);
  cudaStream_t stream;
  void *device, *host = malloc(N * sizeof(float));
  assert_int_equal(cudaSetDevice(0), cudaSuccess);
  assert_int_equal(cudaStreamCreate(&stream), cudaSuccess);
  assert_int_equal(cudaMalloc(&device, N * sizeof(float)), cudaSuccess);
  assert_int_equal(gradient_fill(device, type->nccl, N, kind, seed, step, rank, nranks, stream),
                   cudaSuccess);
  assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
  assert_int_equal(cudaMemcpy(host, device, N * type->size, cudaMemcpyDeviceToHost), cudaSuccess);
  gradient_widen(to, host, N, type->nccl);
  free(host);
  assert_int_equal(cudaFree(device), cudaSuccess);
  assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
}

static void test_widening(void **state)
{
  static const char *const names[] = {"half", "bfloat16"};
  (void)state;
  for (int t = 0; t < 2; t++) {
    const struct datatype *type = datatype_find(names[t]);
    for (uint32_t bits = 0; bits < 65536; bits++) {
      const uint16_t word = (uint16_t)bits;
      const float wanted = (float)datatype_value(type, bits);
      float got;
      gradient_widen(&got, &word, 1, type->nccl);
      if (isnan(wanted))
        assert_true(isnan(got));
      else
        assert_memory_equal(&got, &wanted, sizeof got);
    }
  }
}

/* Rounding to nearest even: no number of the type is nearer, and halfway the even one is taken. */
static void test_rounding(void **state)
{
  static const char *const names[] = {"half", "bfloat16"};
  static const int fraction[] = {10, 7}, bias[] = {15, 127};
  (void)state;
  for (int t = 0; t < 2; t++) {
    const struct datatype *type = datatype_find(names[t]);
    for (int64_t n = 0; n < 2000000; n++) {
      const int32_t integer = (int32_t)(hash_mix((uint64_t)n) >> (n & 31) & 0xfffffff);
      const int32_t number = n & 1 ? -integer : integer;
      const uint32_t bits = gradient_round(number, fraction[t], bias[t]);
      const double exact = ldexp(number, -20), got = datatype_value(type, bits);
      const double above = datatype_value(type, bits + 1), below = datatype_value(type, bits - 1);
      const double off = fabs(got - exact);
      if (number == 0) {
        assert_int_equal(bits, 0);
        continue;
      }
      if (!(off <= fabs(above - exact) && off <= fabs(below - exact)))
        print_error("%s %d: %a, not %a\n", names[t], number, got, exact);
      assert_true(off <= fabs(above - exact) && off <= fabs(below - exact));
      if (off == fabs(above - exact) || off == fabs(below - exact)) assert_true(bits % 2 == 0);
    }
  }
}

/* The whole number has an exact value as a float, and it is that one. */
static void test_floats(void **state)
{
  (void)state;
  for (int kind = GRADIENT_HEAVY; kind <= GRADIENT_ONE_REGION; kind++) {
    const struct gradient g = gradient_make((enum gradient_kind)kind, N, 3, 77, 2, 4);
    for (size_t i = 0; i < N; i++) {
      assert_in_range(abs(gradient_integer(&g, i)), 0, (1 << 25) - 1);
      assert_true((double)gradient_float(&g, i) == ldexp(gradient_integer(&g, i), -20));
    }
  }
}

static void test_deterministic(void **state)
{
  (void)state;
  for (int kind = GRADIENT_HEAVY; kind <= GRADIENT_ONE_REGION; kind++) {
    generate(values[0], "float", (enum gradient_kind)kind, 7, 5, 1, 4);
    generate(values[1], "float", (enum gradient_kind)kind, 7, 5, 1, 4);
    assert_memory_equal(values[0], values[1], sizeof values[0]);
    const struct {
      uint64_t seed, step;
      int rank;
    } others[] = {{8, 5, 1}, {7, 6, 1}, {7, 5, 2}};
    for (size_t o = 0; o < 3; o++) {
      int equal = 0;
      generate(values[1], "float", (enum gradient_kind)kind, others[o].seed, others[o].step,
               others[o].rank, 4);
      for (int i = 0; i < N; i++) equal += values[0][i] == values[1][i];
      assert_true(equal < N / 3); /* ties and small numbers meet by chance */
    }
    for (int i = 0; i < N; i++) assert_true(isfinite(values[0][i]));
    generate(values[1], "half", (enum gradient_kind)kind, 7, 5, 1, 4);
    for (int i = 0; i < N; i++)
      assert_true(fabsf(values[1][i] - values[0][i]) <= fabsf(values[0][i]) / 2048 + 0x1p-25f);
  }
}

static double share_above(const float *x, double limit)
{
  int n = 0;
  for (int i = 0; i < N; i++) n += fabsf(x[i]) > limit;
  return (double)n / N;
}

static double deviation(const float *x)
{
  double sum = 0, squares = 0;
  for (int i = 0; i < N; i++) sum += x[i], squares += (double)x[i] * x[i];
  assert_true(fabs(sum / N) < 0.1 * sqrt(squares / N)); /* no bias */
  return sqrt(squares / N);
}

static void test_shapes(void **state)
{
  (void)state;
  generate(values[0], "float", GRADIENT_NORMAL, 1, 0, 0, 4);
  double s = deviation(values[0]);
  assert_true(fabs(share_above(values[0], s) - 0.317) < 0.02);
  assert_true(fabs(share_above(values[0], 2 * s) - 0.0455) < 0.01);

  generate(values[0], "float", GRADIENT_UNIFORM, 1, 0, 0, 4);
  assert_true(fabs(share_above(values[0], 0.75) - 0.25) < 0.02);
  assert_true(share_above(values[0], 1) == 0);

  generate(values[0], "float", GRADIENT_HEAVY, 1, 0, 0, 4); /* more in the tail than normal has */
  s = deviation(values[0]);
  assert_true(share_above(values[0], 6 * s) > 0.0003);

  int different = 0;
  float seen[32] = {0};
  generate(values[0], "float", GRADIENT_TIES, 1, 0, 0, 4);
  for (int i = 0; i < N; i++) {
    int j = 0;
    while (j < different && seen[j] != values[0][i]) j++;
    if (j == different) seen[different++] = values[0][i];
    assert_true(different <= 12);
  }
}

/* How many of the large elements of values[0] are `share` as large in values[1], too. */
static double large_in_both(float share)
{
  int n = 0, both = 0;
  for (int i = 0; i < N; i++) {
    n += fabsf(values[0][i]) > 0.25f;
    both += fabsf(values[0][i]) > 0.25f && fabsf(values[1][i]) > share * fabsf(values[0][i]);
  }
  assert_true(n > 100);
  return (double)both / n;
}

static void test_ranks_share_and_drift(void **state)
{
  (void)state;
  generate(values[0], "float", GRADIENT_HEAVY, 1, 10, 0, 4);
  generate(values[1], "float", GRADIENT_HEAVY, 1, 10, 1, 4);
  assert_true(large_in_both(0.5f) > 0.6);
  for (int i = 0; i < N; i++) values[1][i] *= values[0][i] < 0 ? -1.0f : 1.0f;
  int same_sign = 0;
  for (int i = 0; i < N; i++) same_sign += values[1][i] > 0;
  assert_true(same_sign > 0.7 * N);
  generate(values[1], "float", GRADIENT_HEAVY, 1, 11, 0, 4); /* the next step: the same scale */
  assert_true(large_in_both(0.25f) > 0.6);
  generate(values[1], "float", GRADIENT_HEAVY, 1, 50, 0, 4);
  assert_true(large_in_both(0.25f) < 0.2);
}

static void test_one_region(void **state)
{
  (void)state;
  for (uint64_t step = 0; step < 9; step++) {
    int first = N, last = -1;
    generate(values[0], "float", GRADIENT_ONE_REGION, 1, step, 3, 4);
    for (int i = 0; i < N; i++)
      if (fabsf(values[0][i]) > 0.001f) {
        if (i < first) first = i;
        last = i;
      }
    assert_in_range(last, first, first + N / 8);
    assert_in_range(first, (int)(step % 8) * (N / 8), (int)(step % 8) * (N / 8) + N / 80);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_widening),   cmocka_unit_test(test_rounding),
      cmocka_unit_test(test_floats),     cmocka_unit_test(test_deterministic),
      cmocka_unit_test(test_shapes),     cmocka_unit_test(test_ranks_share_and_drift),
      cmocka_unit_test(test_one_region),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
