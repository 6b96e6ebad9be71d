/* SPDX-License-Identifier: Apache-2.0 */
/* gaussiank: the threshold is estimated as if gradients were normally distributed. That takes two
 * sums instead of a search. Then it is corrected until about k entries are above it.
 *
 * gaussiankconcat differs only in its messages: one has indices and values, instead of one for
 * each. Here an entry travels as a whole anyway. */
#include <math.h>
#include <stdlib.h>

#include "float16.h"
#include "simple.h"

/* The z with P(|x| > z) = density for x of the standard normal distribution. The tail is convex for
 * z >= 0, so Newton's steps from 0 approach the solution from below, until rounding stops them. */
static double normal_quantile(double density)
{
  const double pi = 3.14159265358979323846;
  for (double z = 0;;) {
    const double tail = erfc(z / sqrt(2)) / 2, slope = exp(-z * z / 2) / sqrt(2 * pi);
    const double next = z + (tail - density / 2) / slope;
    if (!(next > z)) return z;
    z = next;
  }
}

/* mean + z * deviation of acc */
static double gaussian_threshold(struct simple *s)
{
  float *acc = launcher_allocate(s->n * sizeof *acc);
  double sum = 0, squares = 0;
  simple_copy(s, acc, s->acc, s->n * sizeof *acc);
  for (size_t i = 0; i < s->n; i++) sum += acc[i];
  const double mean = sum / (double)s->n;
  for (size_t i = 0; i < s->n; i++) squares += (acc[i] - mean) * (acc[i] - mean);
  free(acc);
  const double deviation = s->n > 1 ? sqrt(squares / (double)(s->n - 1)) : (double)NAN;
  s->last.gaussian_threshold = mean + normal_quantile(s->config.density) * deviation;
  return isnan(s->given_threshold) ? s->last.gaussian_threshold : s->given_threshold;
}

static uint64_t share_of_k(const struct simple *s, sparse_fraction_t fraction)
{
  return (uint64_t)fraction.num * s->k / (uint64_t)fraction.den;
}

static double corrected(struct simple *s, double threshold)
{
  const sparse_correction_t *c = &s->constants.correction;
  const uint64_t until = share_of_k(s, c->lower_until), most = share_of_k(s, c->raise_above);
  const int lower = simple_count_above(s, threshold) < share_of_k(s, c->lower_below);
  for (int j = 0; lower && j < c->lower_steps && simple_count_above(s, threshold) < until; j++)
    threshold /= c->lower_factor;
  for (int j = 0; !lower && j < c->raise_steps && simple_count_above(s, threshold) > most; j++)
    threshold *= c->raise_factor;
  return threshold;
}

/* A bounded gradient may have nothing above even the lowest threshold, and would offer nothing in
 * any later step. The published code does so; here the k largest are offered then. */
static void offer(struct simple *s)
{
  simple_offer_above(s, &s->local_threshold);
  if (s->last.local > 0 || !(s->local_threshold > 0)) return;
  s->local_threshold = simple_offer_largest(s);
  s->last.overflowed = 1;
}

void simple_gaussiank(struct simple *s, const float *gradient)
{
  simple_accumulate(s, gradient);
  s->local_threshold = corrected(s, gaussian_threshold(s));
  offer(s);

  simple_sum_at_all(s);
  simple_clear_offered(s);
}
