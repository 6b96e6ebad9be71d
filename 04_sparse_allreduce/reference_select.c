/* SPDX-License-Identifier: Apache-2.0 */
/* Reference: which entries of an array are large. */
#include <math.h>
#include <string.h>

#include "reference_parts.h"

uint32_t magnitude_bits(float x)
{
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits & 0x7fffffffu;
}

float magnitude_value(uint32_t bits)
{
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

float canonical(float x)
{
  return isnan(x) ? magnitude_value(MAGNITUDE_NAN) : x;
}

bool selection_has(const struct selection *s, size_t i, float value)
{
  uint32_t bits = magnitude_bits(value);
  return (bits > s->above && bits <= s->highest) || (bits == s->above && (int64_t)i <= s->tie);
}

/* The k-th largest magnitude, one digit of its bits after the other: a histogram of the digit over
 * the values whose higher digits are known to be right says in which bin the k-th one is. *rank
 * becomes its number, from 1, among the values that are equal to it. */
static uint32_t kth_magnitude(const float *values, size_t n, size_t k, size_t *rank)
{
  static const struct {
    int shift, bits;
  } digits[] = {{20, 11}, {10, 10}, {0, 10}};
  uint32_t found = 0, known = 0; /* the digits so far, and a mask of where they are */

  for (size_t d = 0; d < sizeof digits / sizeof *digits; d++) {
    size_t histogram[1 << 11] = {0};
    uint32_t bin = (1u << digits[d].bits) - 1, mask = bin;
    for (size_t i = 0; i < n; i++) {
      uint32_t bits = magnitude_bits(values[i]);
      if ((bits & known) == found) histogram[(bits >> digits[d].shift) & mask]++;
    }
    for (; histogram[bin] < k; bin--) k -= histogram[bin];
    found |= bin << digits[d].shift;
    known |= mask << digits[d].shift;
  }
  *rank = k;
  return found;
}

struct selection select_largest(const float *values, size_t n, size_t k)
{
  struct selection s = {.highest = MAGNITUDE_NAN, .tie = -1};
  size_t equals;
  s.above = kth_magnitude(values, n, k, &equals);
  for (size_t i = 0; equals > 0; i++) {
    if (magnitude_bits(values[i]) != s.above) continue;
    s.tie = (int64_t)i;
    equals--;
  }
  return s;
}

struct selection select_above(double threshold, size_t n)
{
  float rounded = (float)threshold;
  struct selection s = {.above = MAGNITUDE_NAN, .highest = MAGNITUDE_INFINITY, .tie = -1};
  if (rounded < 0) {
    s.above = 0;
    s.tie = (int64_t)n - 1; /* zeros, too */
  } else if (!isnan(rounded)) {
    s.above = magnitude_bits(rounded);
  }
  return s;
}

size_t count_above(const float *values, size_t n, double threshold)
{
  float rounded = (float)threshold;
  size_t count = 0;
  for (size_t i = 0; i < n; i++) count += fabsf(values[i]) > rounded;
  return count;
}

/* The z with P(|x| > z) = density for x of the standard normal distribution. The tail Q(z) is
 * convex for z >= 0, so Newton's steps from 0 approach the solution from below and never pass it,
 * until rounding stops them. */
static double normal_quantile(double density)
{
  const double pi = 3.14159265358979323846;
  double z = 0;
  for (;;) {
    double tail = erfc(z / sqrt(2)) / 2, slope = exp(-z * z / 2) / sqrt(2 * pi);
    double next = z + (tail - density / 2) / slope;
    if (!(next > z)) return z;
    z = next;
  }
}

double gaussian_threshold(const float *values, size_t n, double density)
{
  double sum = 0, squares = 0;
  for (size_t i = 0; i < n; i++) sum += values[i];
  double mean = sum / (double)n;
  for (size_t i = 0; i < n; i++) squares += (values[i] - mean) * (values[i] - mean);
  double deviation = n > 1 ? sqrt(squares / (double)(n - 1)) : (double)NAN;
  return mean + normal_quantile(density) * deviation;
}
