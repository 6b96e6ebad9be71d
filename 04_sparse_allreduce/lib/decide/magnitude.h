/* SPDX-License-Identifier: Apache-2.0 */
/* Magnitudes and levels (sparse_state.h), and what a selection chooses. Like all of decide/, for
 * device code and for its plain C twins. */
#ifndef MAGNITUDE_H
#define MAGNITUDE_H

#include <stdbool.h>
#include <string.h>

#include "state/sparse_state.h"

SPARSE_DEVICE sparse_level_t sparse_magnitude(float x)
{
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return (sparse_level_t)(bits & 0x7fffffffu);
}

SPARSE_DEVICE float sparse_from_magnitude(sparse_level_t magnitude)
{
  float x;
  memcpy(&x, &magnitude, sizeof(x));
  return x;
}

/* |x| > threshold, as the level that x has to exceed. NaN is exceeded by nothing that is not above
 * the limit, a negative threshold by everything. */
SPARSE_DEVICE sparse_level_t sparse_level(double threshold)
{
  const float rounded = (float)threshold;
  if (rounded != rounded) return SPARSE_NAN_LEVEL;
  if (rounded < 0) return -1;
  return sparse_magnitude(rounded);
}

SPARSE_DEVICE bool sparse_chosen(const struct sparse_selection *s, sparse_level_t magnitude,
                                 uint32_t index)
{
  return magnitude <= s->limit &&
         (magnitude > s->above || (magnitude == s->above && (int64_t)index <= s->tie));
}

/* An element that is pending becomes zero. */
SPARSE_DEVICE void sparse_settle_element(const struct sparse_state *s, float *residual, uint32_t i)
{
  if (sparse_chosen(&s->selection, sparse_magnitude(residual[i]), i)) residual[i] = 0;
}

#endif
