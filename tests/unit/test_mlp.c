/* SPDX-License-Identifier: Apache-2.0 */
/* 04_sparse_allreduce/training: images, the gradients of all weights against finite differences,
 * and that they do not depend on how a batch is split. */
#include "training/mlp.h"

#include <math.h>
#include <stdbool.h>

#include "unit.h"

/* Where the weights of a layer begin, and after the last one: [out][in], then [out]. */
enum { LAYERS = 3 };
static const int FIRST[LAYERS + 1] = {0, 65 * 128, 65 * 128 + 129 * 64, MLP_WEIGHTS};

enum { N = 24 }; /* images */

static struct mlp mlp;
static cudaStream_t stream;
static float weights[MLP_WEIGHTS], gradient[MLP_WEIGHTS], other[MLP_WEIGHTS];

/* Device memory is memory here, but the stream's thread uses it. */
static void compute(enum mlp_work work)
{
  assert_int_equal(mlp_launch(&mlp, work, stream), cudaSuccess);
  assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
}

static int setup(void **state)
{
  (void)state;
  assert_int_equal(cudaSetDevice(0), cudaSuccess);
  assert_int_equal(cudaStreamCreate(&stream), cudaSuccess);
  mlp_create(&mlp, N);
  for (int i = 0; i < N; i++) mlp.order[i] = 37 * i + 11;
  mlp_initial_weights(weights, 1);
  memcpy(mlp.weights, weights, sizeof weights);
  return 0;
}

static int teardown(void **state)
{
  (void)state;
  mlp_destroy(&mlp);
  assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
  return 0;
}

static double loss_of_all(void)
{
  double sum = 0;
  mlp.first = 0;
  mlp.n = N;
  compute(MLP_IMAGES);
  for (int i = 0; i < N; i++) sum += (double)mlp.loss[i];
  return sum;
}

static void gradient_of(float *to, int first, int n, float scale)
{
  mlp.first = first;
  mlp.n = n;
  mlp.scale = scale;
  compute(MLP_IMAGES);
  compute(MLP_GRADIENT);
  memcpy(to, mlp.gradient, sizeof gradient);
}

/* ---- images ---------------------------------------------------------------------------------- */

static void test_images(void **state)
{
  /* 178 images show a 0, and so on; the pixels of all images have this sum in sixteenths */
  static const int known[MLP_OUTPUT] = {178, 182, 177, 183, 181, 182, 181, 179, 174, 180};
  int shown[MLP_OUTPUT] = {0};
  double sum = 0;
  (void)state;
  for (int i = 0; i < 10; i++) assert_int_equal(mlp.labels[i], i); /* the first ones */
  assert_true(mlp.pixels[2] == 5.0f / 16 && mlp.pixels[64 + 4] == 13.0f / 16);
  for (int i = 0; i < DIGITS_IMAGES; i++) shown[mlp.labels[i]]++;
  assert_memory_equal(shown, known, sizeof known);
  for (int i = 0; i < DIGITS_IMAGES * MLP_INPUT; i++) {
    assert_true(mlp.pixels[i] >= 0 && mlp.pixels[i] <= 1);
    sum += 16 * (double)mlp.pixels[i];
  }
  assert_int_equal((int)sum, 561718);
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* Every 29th weight of each layer, all biases of the last one, moved by a little in both
 * directions. Where a hidden value passes 0 on the way the difference is not the derivative, and
 * both have rounding errors: together less than a 200th of the length of the layer's gradient.
 */
static void test_finite_differences(void **state)
{
  static const float little = 0x1p-11f;
  (void)state;
  gradient_of(gradient, 0, N, 1);
  for (int layer = 0; layer < LAYERS; layer++) {
    double error = 0, length = 0;
    int compared = 0;
    for (int i = FIRST[layer]; i < FIRST[layer + 1]; i++) {
      const bool bias = i >= FIRST[layer + 1] - 10;
      if (i % 29 && !bias) continue;
      mlp.weights[i] = weights[i] + little;
      const double above = loss_of_all(), from = (double)mlp.weights[i];
      mlp.weights[i] = weights[i] - little;
      const double below = loss_of_all(), to = (double)mlp.weights[i];
      mlp.weights[i] = weights[i];
      const double difference = (above - below) / (from - to);
      error += pow(difference - (double)gradient[i], 2);
      length += pow((double)gradient[i], 2);
      compared++;
    }
    print_message("layer %d: %d weights, error %g of the length\n", layer + 1, compared,
                  sqrt(error / length));
    assert_true(compared >= 30 && length > 0);
    assert_true(sqrt(error / length) < 0.005);
  }
}

/* Sums over parts of the images are the sum over all but for the order of additions, and none of
 * the images have the gradient 0. */
static void test_shares(void **state)
{
  static const int parts[][2] = {{0, 1}, {1, 0}, {1, 16}, {17, 7}};
  (void)state;
  gradient_of(gradient, 0, N, 1.0f / N);
  double sum[MLP_WEIGHTS] = {0}, largest = 0;
  for (size_t p = 0; p < sizeof parts / sizeof *parts; p++) {
    gradient_of(other, parts[p][0], parts[p][1], 1);
    for (int i = 0; i < MLP_WEIGHTS; i++) {
      sum[i] += (double)other[i] / N;
      if (parts[p][1] == 0) assert_true(other[i] == 0);
    }
  }
  for (int i = 0; i < MLP_WEIGHTS; i++) largest = fmax(largest, fabs((double)gradient[i]));
  for (int i = 0; i < MLP_WEIGHTS; i++)
    assert_true(fabs(sum[i] - (double)gradient[i]) <= 1e-6 * largest);
}

static void test_right(void **state)
{
  int right = 0;
  (void)state;
  for (int step = 0; step < 8; step++) { /* at first all images are given the same digit */
    gradient_of(gradient, 0, N, 1);
    for (int i = 0; i < MLP_WEIGHTS; i++) mlp.weights[i] -= 0.01f * gradient[i];
  }
  loss_of_all();
  for (int i = 0; i < N; i++) {
    const float *slopes = mlp.slopes + (i + 1) * MLP_VALUES - MLP_OUTPUT;
    const int label = mlp.labels[mlp.order[i]];
    double p = 1 + (double)slopes[label], sum = 0;
    bool best = true;
    for (int o = 0; o < MLP_OUTPUT; o++) {
      sum += (double)slopes[o]; /* probabilities less the one that is wanted: 0 */
      if (o != label && (double)slopes[o] > p) best = false;
    }
    assert_true(fabs(sum) < 1e-6);
    assert_true(fabs((double)mlp.loss[i] + log(p)) < 1e-5);
    assert_int_equal(mlp.right[i], best);
    right += mlp.right[i];
  }
  assert_true(right > N / 4 && right < N);
  memcpy(mlp.weights, weights, sizeof weights);
}

/* The same seed gives the same weights, another one others; they are as large as announced. */
static void test_initial_weights(void **state)
{
  double squares = 0;
  (void)state;
  mlp_initial_weights(other, 1);
  assert_memory_equal(other, weights, sizeof other);
  mlp_initial_weights(other, 2);
  assert_true(memcmp(other, weights, sizeof other) != 0);
  for (int i = 0; i < 64 * 128; i++) squares += pow((double)weights[i], 2);
  assert_true(fabs(squares / (64 * 128) - 2.0 / 64) < 0.001); /* variance 2 / inputs */
  for (int i = 64 * 128; i < 65 * 128; i++) assert_true(weights[i] == 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_images),          cmocka_unit_test(test_finite_differences),
      cmocka_unit_test(test_shares),          cmocka_unit_test(test_right),
      cmocka_unit_test(test_initial_weights),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
