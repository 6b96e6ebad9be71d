/* SPDX-License-Identifier: Apache-2.0 */
#include "mlp.h"

#include <math.h>

#include "hash.h"

enum { LAYERS = 3, WIDEST = 128 };
static const int WIDTH[LAYERS + 1] = {MLP_INPUT, WIDEST, 64, MLP_OUTPUT};

static const char digits[][1 + MLP_INPUT + 1] = {
#include "digits.inc"
};
_Static_assert(sizeof digits / sizeof *digits == DIGITS_IMAGES, "digits.inc is not whole");

int digits_image(int image, float pixels[MLP_INPUT])
{
  const char *letters = digits[image];
  for (int i = 0; i < MLP_INPUT; i++)
    pixels[i] = letters[1 + i] == '.' ? 0 : (float)(letters[1 + i] - 'a' + 1) / 16;
  return letters[0] - '0';
}

void mlp_initial_weights(float *weights, uint64_t seed)
{
  for (int layer = 1; layer <= LAYERS; layer++) {
    const int in = WIDTH[layer - 1], out = WIDTH[layer];
    const float bound = sqrtf(6.0f / (float)in); /* He: scores neither grow nor vanish */
    for (int i = 0; i < in * out; i++)
      *weights++ = bound * ((float)(hash_next(&seed) >> 40) * 0x1p-23f - 1);
    for (int o = 0; o < out; o++) *weights++ = 0;
  }
}

/* Softmax and cross entropy: the loss, and its derivatives by the scores. */
static float loss_of_scores(const float *scores, int label, float *slopes, int *right)
{
  int best = 0;
  float sum = 1; /* the largest score's part */
  for (int o = 1; o < MLP_OUTPUT; o++)
    if (scores[o] > scores[best]) best = o;
  for (int o = 0; o < MLP_OUTPUT; o++)
    if (o != best) sum += expf(scores[o] - scores[best]);
  for (int o = 0; o < MLP_OUTPUT; o++)
    slopes[o] = expf(scores[o] - scores[best]) / sum - (o == label ? 1.0f : 0.0f);
  *right += best == label;
  return logf(sum) - (scores[label] - scores[best]);
}

double mlp_loss(const float *weights, const int *images, int n, float *gradient, int *right)
{
  float values[LAYERS + 1][WIDEST], slopes[LAYERS + 1][WIDEST]; /* the loss' derivatives by them */
  double loss = 0;
  *right = 0;
  for (int image = 0; image < n; image++) {
    const int label = digits_image(images[image], values[0]);
    const float *w = weights;
    float *g = gradient ? gradient + MLP_WEIGHTS : 0;
    for (int layer = 1; layer <= LAYERS; layer++) { /* value = bias + sum of inputs * weights */
      const int in = WIDTH[layer - 1], out = WIDTH[layer];
      for (int o = 0; o < out; o++) {
        float sum = 0;
        for (int i = 0; i < in; i++) sum += values[layer - 1][i] * w[o * in + i];
        sum += w[out * in + o];
        values[layer][o] = layer < LAYERS && !(sum > 0) ? 0 : sum;
      }
      w += (in + 1) * out;
    }
    loss += (double)loss_of_scores(values[LAYERS], label, slopes[LAYERS], right);
    for (int layer = LAYERS; layer > 0 && g; layer--) { /* slope = sum of slopes * weights */
      const int in = WIDTH[layer - 1], out = WIDTH[layer];
      w -= (in + 1) * out;
      g -= (in + 1) * out;
      for (int o = 0; o < out; o++) {
        for (int i = 0; i < in; i++) g[o * in + i] += slopes[layer][o] * values[layer - 1][i];
        g[out * in + o] += slopes[layer][o];
      }
      for (int i = 0; i < in && layer > 1; i++) {
        float sum = 0;
        for (int o = 0; o < out; o++) sum += slopes[layer][o] * w[o * in + i];
        slopes[layer - 1][i] = values[layer - 1][i] > 0 ? sum : 0;
      }
    }
  }
  return loss;
}
