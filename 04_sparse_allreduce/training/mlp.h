/* SPDX-License-Identifier: Apache-2.0 */
/* A multilayer perceptron for images of digits: 64 pixels, two hidden layers, a score for each of
 * the ten digits. All its weights are one vector in device memory, and so are their gradients: that
 * is what is called a fused tensor.
 *
 * mlp_image() is all that is computed for an image, mlp_gradient() all for a weight. On a GPU each
 * is done by a thread (mlp.cu), on the stand-in one after the other (mlp_cpu.c). Each sum has a
 * fixed order: the same input gives the same bits, on every rank. */
#ifndef MLP_H
#define MLP_H

#include <math.h>
#include <stdint.h>

#include <cuda_runtime.h>

#ifdef __CUDACC__
#define MLP_FN static inline __host__ __device__
#define MLP_C extern "C"
#else
#define MLP_FN static inline
#define MLP_C
#endif

enum {
  DIGITS_TRAINING = 1437, /* the first images are to learn from, */
  DIGITS_HELD_OUT = 360,  /* the last ones to see what was learnt; most are by other writers */
  DIGITS_IMAGES = DIGITS_TRAINING + DIGITS_HELD_OUT,
  MLP_INPUT = 64,
  MLP_OUTPUT = 10,
  MLP_VALUES = 128 + 64 + MLP_OUTPUT, /* of three layers, one after the other */
  MLP_WEIGHTS = (64 + 1) * 128 + (128 + 1) * 64 + (64 + 1) * MLP_OUTPUT,
};

/* All in device memory, but for the numbers: a kernel takes it as its argument. The weights of a
 * layer are one for every input of every output, [out][in], and then a bias for each output. */
struct mlp {
  float *weights, *gradient; /* [MLP_WEIGHTS] */
  float *values, *slopes;    /* [image][MLP_VALUES]; the derivatives of the loss by them */
  float *loss;               /* of each image: -log of the probability that its digit was given */
  int *right;                /* of each image: 1 if its digit has the largest score */
  float *pixels;             /* [DIGITS_IMAGES][MLP_INPUT], from 0 (paper) to 1 (ink) */
  int *labels;               /* [DIGITS_IMAGES], the digit that each image shows */
  int *order;                /* [DIGITS_IMAGES], the caller's: which image is the i-th */
  int first, n;              /* images order[first .. first + n) are computed; n <= capacity */
  float scale;               /* gradient = scale * the sum of the n images' derivatives */
};

void mlp_create(struct mlp *mlp, int capacity);
void mlp_destroy(struct mlp *mlp);

/* Host memory: the weights to begin with, the same for the same seed. */
void mlp_initial_weights(float *weights, uint64_t seed);

/* Enqueues the images' values, slopes, loss and right, or the gradient after that. */
enum mlp_work { MLP_IMAGES, MLP_GRADIENT };
MLP_C cudaError_t mlp_launch(const struct mlp *mlp, enum mlp_work work, cudaStream_t stream);

/* ---- what a thread does ---------------------------------------------------------------------- */

MLP_FN int mlp_width(int layer) /* 0: the pixels */
{
  return layer == 0 ? MLP_INPUT : layer == 1 ? 128 : layer == 2 ? 64 : MLP_OUTPUT;
}

MLP_FN void mlp_image(const struct mlp *m, int image)
{
  const int label = m->labels[m->order[m->first + image]];
  const float *below = m->pixels + m->order[m->first + image] * MLP_INPUT, *weights = m->weights;
  float *values = m->values + image * MLP_VALUES, *slopes = m->slopes + image * MLP_VALUES, sum;
  for (int layer = 1; layer <= 3; layer++) { /* value = bias + sum of inputs * weights */
    const int in = mlp_width(layer - 1), out = mlp_width(layer);
    for (int o = 0; o < out; o++) {
      sum = 0;
      for (int i = 0; i < in; i++) sum += below[i] * weights[o * in + i];
      sum += weights[out * in + o];
      values[o] = layer < 3 && !(sum > 0) ? 0 : sum;
    }
    below = values; /* in the end the scores */
    values += out;
    slopes += out;
    weights += (in + 1) * out;
  }
  int best = 0; /* softmax and cross entropy */
  for (int o = 1; o < MLP_OUTPUT; o++)
    if (below[o] > below[best]) best = o;
  sum = 1; /* the largest score's part */
  for (int o = 0; o < MLP_OUTPUT; o++)
    if (o != best) sum += expf(below[o] - below[best]);
  slopes -= MLP_OUTPUT;
  for (int o = 0; o < MLP_OUTPUT; o++)
    slopes[o] = expf(below[o] - below[best]) / sum - (o == label ? 1.0f : 0.0f);
  m->loss[image] = logf(sum) - (below[label] - below[best]);
  m->right[image] = best == label;
  for (int layer = 3; layer > 1; layer--) { /* slope = sum of slopes above * weights */
    const int in = mlp_width(layer - 1), out = mlp_width(layer);
    weights -= (in + 1) * out;
    below -= in;
    for (int i = 0; i < in; i++) {
      sum = 0;
      for (int o = 0; o < out; o++) sum += slopes[o] * weights[o * in + i];
      slopes[i - in] = below[i] > 0 ? sum : 0;
    }
    slopes -= in;
  }
}

MLP_FN void mlp_gradient(const struct mlp *m, int weight)
{
  int layer = 1, at = 0, w = weight, in = MLP_INPUT, out = mlp_width(1);
  for (; w >= (in + 1) * out; out = mlp_width(++layer)) {
    w -= (in + 1) * out;
    at += layer > 1 ? in : 0; /* where the values of the layer's input begin */
    in = out;
  }
  const int bias = w >= out * in; /* a weight whose input is 1 */
  const int o = bias ? w - out * in : w / in, i = w % in;
  const int above = layer == 1 ? o : at + in + o;
  float sum = 0;
  for (int image = 0; image < m->n; image++) {
    const float *below = layer == 1 ? m->pixels + m->order[m->first + image] * MLP_INPUT
                                    : m->values + image * MLP_VALUES + at;
    sum += m->slopes[image * MLP_VALUES + above] * (bias ? 1.0f : below[i]);
  }
  m->gradient[weight] = m->scale * sum;
}

#endif
