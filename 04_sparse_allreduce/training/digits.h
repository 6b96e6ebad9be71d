/* SPDX-License-Identifier: Apache-2.0 */
/* 1797 images of handwritten digits, 8 x 8 pixels each; who made them stands in digits.inc. */
#ifndef DIGITS_H
#define DIGITS_H

enum {
  DIGITS_PIXELS = 64,
  DIGITS_CLASSES = 10,
  DIGITS_TRAINING = 1437, /* the first images are to learn from, */
  DIGITS_HELD_OUT = 360,  /* the last ones to see what was learnt; most are by other writers */
  DIGITS_IMAGES = DIGITS_TRAINING + DIGITS_HELD_OUT,
};

/* Host memory: pixels[image][64] from 0 (paper) to 1 (ink), and the digit that each image shows. */
void digits_load(float *pixels, int *labels);

#endif
