/* SPDX-License-Identifier: Apache-2.0 */
/* A multilayer perceptron for images of digits: 64 pixels, two hidden layers, a score for each of
 * the ten digits. All its weights are one vector in device memory, and so are their gradients: that
 * is what is called a fused tensor.
 *
 * Forward, backward and update are loops whose rounds do not depend on each other. mlp_round() is
 * one round. On a GPU each is done by a thread (mlp.cu), on the stand-in one after the other
 * (mlp_cpu.c). Each sum has a fixed order: the same input gives the same bits, on every rank. */
#ifndef MLP_H
#define MLP_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime.h>

#ifdef __CUDACC__
#define MLP_FN static inline __host__ __device__
#else
#define MLP_FN static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum {
  MLP_LAYERS = 3,
  MLP_INPUT = 64,
  MLP_HIDDEN_1 = 128,
  MLP_HIDDEN_2 = 64,
  MLP_OUTPUT = 10,
  /* of each layer a weight for every input of every output, [out][in], and a bias for each output
   */
  MLP_WEIGHTS = (MLP_INPUT + 1) * MLP_HIDDEN_1 + (MLP_HIDDEN_1 + 1) * MLP_HIDDEN_2 +
                (MLP_HIDDEN_2 + 1) * MLP_OUTPUT,
};

/* Images and the digits that they show, in device memory. */
struct mlp_images {
  float *pixels; /* [n][MLP_INPUT] */
  int *labels;   /* [n] */
};

/* From host memory. */
void mlp_images_create(struct mlp_images *images, const float *pixels, const int *labels, size_t n);
void mlp_images_destroy(struct mlp_images *images);

/* A perceptron and room for `capacity` images at a time, all in device memory. values[0] are the
 * images' pixels, values[l] what layer l makes of them; slopes[l] is the derivative of the loss
 * with respect to values[l], of the last layer before softmax. */
struct mlp {
  cudaStream_t stream;
  int capacity;
  float *weights, *gradient; /* [MLP_WEIGHTS] */
  float *values[MLP_LAYERS + 1], *slopes[MLP_LAYERS + 1];
  float *loss; /* of each image: -log of the probability that its digit was given */
  int *right;  /* of each image: 1 if its digit has the largest score */
};

void mlp_create(struct mlp *mlp, int capacity, cudaStream_t stream);
void mlp_destroy(struct mlp *mlp);

/* Host memory: the weights to begin with, the same for the same seed. */
void mlp_initial_weights(float *weights, uint64_t seed);

/* The next of a sequence of random numbers, which is that of its first state. */
uint64_t mlp_random(uint64_t *state);

/* These are enqueued in mlp->stream. `order` is in device memory. */

/* Images order[0 .. n), n <= capacity: their loss, whether they are right, and slopes of the
 * scores. */
void mlp_forward(struct mlp *mlp, const struct mlp_images *images, const int *order, int n);

/* After mlp_forward: gradient = scale * the sum over the n images of the derivatives of their loss.
 */
void mlp_backward(struct mlp *mlp, int n, float scale);

/* weights -= rate * average, all MLP_WEIGHTS of them, each rounded once. */
void mlp_update(struct mlp *mlp, float *weights, const float *average, float rate);

/* ---- one round of a loop ------------------------------------------------------------------- */

enum mlp_work {
  MLP_GATHER, /* to[image][i] = a pixel */
  MLP_LAYER,  /* to[image][o] = bias + sum over i of below * weight, and for hidden layers max 0 */
  MLP_LOSS,   /* slopes of the scores, loss and right of an image */
  MLP_SLOPE,  /* to[image][i] = sum over o of above * weight, where below is larger than 0 */
  MLP_GRADIENT, /* to[o][i] = scale * sum over images of above * below; then the biases */
  MLP_UPDATE,   /* to[w] -= scale * above[w], rounded once */
};

/* A loop; small enough to be a kernel argument. */
struct mlp_loop {
  enum mlp_work work;
  int rounds;
  int n, in, out, hidden; /* images; the layer's width; whether it is a hidden one */
  const float *weights;   /* of the layer */
  const float *below;     /* [n][in] */
  const float *above;     /* [n][out] */
  float *to, *loss;
  int *right;
  float scale;
  const int *order;
  struct mlp_images images;
};

/* Enqueues a loop. Returns what the launch returned. */
cudaError_t mlp_launch(const struct mlp_loop *loop, cudaStream_t stream);

/* Softmax and cross entropy of one image, whose scores become slopes. */
MLP_FN void mlp_loss(const struct mlp_loop *l, int image)
{
  float *scores = l->to + image * l->out, sum = 1; /* the largest score's part */
  const int label = l->images.labels[l->order[image]];
  int best = 0;
  for (int o = 1; o < l->out; o++)
    if (scores[o] > scores[best]) best = o;
  const float largest = scores[best], score = scores[label] - largest;
  for (int o = 0; o < l->out; o++)
    if (o != best) sum += expf(scores[o] - largest);
  for (int o = 0; o < l->out; o++)
    scores[o] = expf(scores[o] - largest) / sum - (o == label ? 1.0f : 0.0f);
  l->loss[image] = logf(sum) - score;
  l->right[image] = best == label;
}

MLP_FN void mlp_round(const struct mlp_loop *l, int round)
{
  float sum = 0;
  switch (l->work) {
  case MLP_GATHER: {
    const int image = l->order[round / l->in];
    l->to[round] = l->images.pixels[image * l->in + round % l->in];
    return;
  }
  case MLP_LAYER: {
    const int o = round % l->out;
    const float *below = l->below + round / l->out * l->in;
    for (int i = 0; i < l->in; i++) sum += below[i] * l->weights[o * l->in + i];
    sum += l->weights[l->out * l->in + o];
    l->to[round] = l->hidden && !(sum > 0) ? 0 : sum;
    return;
  }
  case MLP_LOSS:
    mlp_loss(l, round);
    return;
  case MLP_SLOPE: {
    const int i = round % l->in;
    const float *above = l->above + round / l->in * l->out;
    for (int o = 0; o < l->out; o++) sum += above[o] * l->weights[o * l->in + i];
    l->to[round] = l->below[round] > 0 ? sum : 0;
    return;
  }
  case MLP_GRADIENT: {
    const int bias = round >= l->out * l->in; /* a weight whose input is 1 */
    const int o = bias ? round - l->out * l->in : round / l->in, i = round % l->in;
    for (int image = 0; image < l->n; image++)
      sum += l->above[image * l->out + o] * (bias ? 1.0f : l->below[image * l->in + i]);
    l->to[round] = l->scale * sum;
    return;
  }
  case MLP_UPDATE:
    l->to[round] = fmaf(-l->scale, l->above[round], l->to[round]);
    return;
  }
}

#ifdef __cplusplus
}
#endif
#endif
