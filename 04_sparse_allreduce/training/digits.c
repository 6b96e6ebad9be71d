/* SPDX-License-Identifier: Apache-2.0 */
#include "digits.h"

static const char images[][1 + DIGITS_PIXELS + 1] = {
#include "digits.inc"
};
_Static_assert(sizeof images / sizeof *images == DIGITS_IMAGES, "digits.inc is not whole");

void digits_load(float *pixels, int *labels)
{
  for (int image = 0; image < DIGITS_IMAGES; image++) {
    labels[image] = images[image][0] - '0';
    for (int i = 0; i < DIGITS_PIXELS; i++) {
      const char letter = images[image][1 + i];
      pixels[image * DIGITS_PIXELS + i] = letter == '.' ? 0 : (float)(letter - 'a' + 1) / 16;
    }
  }
}
