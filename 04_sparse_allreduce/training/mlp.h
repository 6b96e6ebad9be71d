/* SPDX-License-Identifier: Apache-2.0 */
/* A multilayer perceptron for images of digits: 64 pixels, two hidden layers, a score for each of
 * the ten digits. All its weights are one vector, a fused tensor, and so are their gradients. Each
 * sum has a fixed order: the same input gives the same bits, on every rank. */
#ifndef MLP_H
#define MLP_H

#include <stdint.h>

enum {
  DIGITS_TRAINING = 1437, /* the first images are for training, */
  DIGITS_HELD_OUT = 360,  /* the last ones for testing; most are by other writers */
  DIGITS_IMAGES = DIGITS_TRAINING + DIGITS_HELD_OUT,
  MLP_INPUT = 64,
  MLP_OUTPUT = 10,
  /* a layer has one for every input of every output, [out][in], then a bias for each output */
  MLP_WEIGHTS = (64 + 1) * 128 + (128 + 1) * 64 + (64 + 1) * MLP_OUTPUT,
};

/* The digit that an image shows, and its pixels from 0 (paper) to 1 (ink). */
int digits_image(int image, float pixels[MLP_INPUT]);

/* The weights to begin with, the same for the same seed. */
void mlp_initial_weights(float *weights, uint64_t seed);

/* The sum of the losses of n images. *right becomes the number of images whose digit has the
 * largest score. The loss is -log of the probability of the right digit. The derivatives of the sum
 * by the weights are added to `gradient`, unless it is NULL. */
double mlp_loss(const float *weights, const int *images, int n, float *gradient, int *right);

#endif
