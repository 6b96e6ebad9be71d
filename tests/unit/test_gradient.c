/* SPDX-License-Identifier: Apache-2.0 */
/* gradient.c and gradient_cpu.c: conversions, and that each rank and step has gradients of its own.
 */
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
      cmocka_unit_test(test_widening),
      cmocka_unit_test(test_deterministic),
      cmocka_unit_test(test_one_region),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
