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

static int images[N], right;
static float weights[MLP_WEIGHTS], gradient[MLP_WEIGHTS], other[MLP_WEIGHTS];

static int setup(void **state)
{
  (void)state;
  for (int i = 0; i < N; i++) images[i] = 37 * i + 11;
  mlp_initial_weights(weights, 1);
  return 0;
}

static double gradient_of(float *to, int first, int n)
{
  memset(to, 0, sizeof gradient);
  return mlp_loss(weights, images + first, n, to, &right);
}

/* ---- images ---------------------------------------------------------------------------------- */

static void test_images(void **state)
{
  /* 178 images show a 0, and so on; the pixels of all images have this sum in sixteenths */
  static const int known[MLP_OUTPUT] = {178, 182, 177, 183, 181, 182, 181, 179, 174, 180};
  int shown[MLP_OUTPUT] = {0};
  float pixels[MLP_INPUT];
  double sum = 0;
  (void)state;
  for (int image = 0; image < DIGITS_IMAGES; image++) {
    const int digit = digits_image(image, pixels);
    if (image < 10) assert_int_equal(digit, image); /* the first ones */
    if (image == 0) assert_true(pixels[2] == 5.0f / 16);
    if (image == 1) assert_true(pixels[4] == 13.0f / 16);
    shown[digit]++;
    for (int i = 0; i < MLP_INPUT; i++) {
      assert_true(pixels[i] >= 0 && pixels[i] <= 1);
      sum += 16 * (double)pixels[i];
    }
  }
  assert_memory_equal(shown, known, sizeof known);
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
  gradient_of(gradient, 0, N);
  for (int layer = 0; layer < LAYERS; layer++) {
    double error = 0, length = 0;
    int compared = 0;
    for (int i = FIRST[layer]; i < FIRST[layer + 1]; i++) {
      const bool bias = i >= FIRST[layer + 1] - 10;
      const float weight = weights[i], more = weight + little, less = weight - little;
      if (i % 29 && !bias) continue;
      weights[i] = more;
      const double above = mlp_loss(weights, images, N, NULL, &right);
      weights[i] = less;
      const double below = mlp_loss(weights, images, N, NULL, &right);
      weights[i] = weight;
      error += pow((above - below) / ((double)more - (double)less) - (double)gradient[i], 2);
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
 * the images add nothing. */
static void test_shares(void **state)
{
  static const int parts[][2] = {{0, 1}, {1, 0}, {1, 16}, {17, 7}};
  double loss = gradient_of(gradient, 0, N), sum[MLP_WEIGHTS] = {0}, largest = 0;
  (void)state;
  for (size_t p = 0; p < sizeof parts / sizeof *parts; p++) {
    loss -= gradient_of(other, parts[p][0], parts[p][1]);
    for (int i = 0; i < MLP_WEIGHTS; i++) {
      sum[i] += (double)other[i];
      if (parts[p][1] == 0) assert_true(other[i] == 0);
    }
  }
  assert_true(fabs(loss) < 1e-9);
  for (int i = 0; i < MLP_WEIGHTS; i++) largest = fmax(largest, fabs((double)gradient[i]));
  for (int i = 0; i < MLP_WEIGHTS; i++)
    assert_true(fabs(sum[i] - (double)gradient[i]) <= 1e-6 * largest);
}

/* The derivatives by the last layer's biases are the probabilities of the digits, less 1 for the
 * one that is wanted. Loss and right follow from them. */
static void test_right(void **state)
{
  const float *slopes = gradient + MLP_WEIGHTS - MLP_OUTPUT;
  int all = 0;
  (void)state;
  for (int i = 0; i < N; i++) {
    float pixels[MLP_INPUT];
    const int label = digits_image(images[i], pixels);
    const double loss = gradient_of(gradient, i, 1), p = 1 + (double)slopes[label];
    double sum = 0;
    bool best = true;
    for (int o = 0; o < MLP_OUTPUT; o++) {
      sum += (double)slopes[o]; /* probabilities less the one that is wanted: 0 */
      if (o != label && (double)slopes[o] > p) best = false;
    }
    assert_true(fabs(sum) < 1e-6);
    assert_true(fabs(loss + log(p)) < 1e-5);
    assert_int_equal(right, best);
    all += right;
  }
  assert_true(all > 0 && all < N);
  mlp_loss(weights, images, N, NULL, &right);
  assert_int_equal(right, all);
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
  return cmocka_run_group_tests(tests, setup, NULL);
}
