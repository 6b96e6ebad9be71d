/* SPDX-License-Identifier: Apache-2.0 */
/* The operators as plain loops, which OpenMP gives to all cores where vectors are large. A NaN that
 * comes out of arithmetic has the bits 0x7fffffff, as on the GPU; else the order of NaNs in a
 * selection would depend on the machine. */
#include <math.h>

#include "float16.h"
#include "simple.h"

enum { LARGE = 1 << 20 };

uint32_t simple_bits(float x)
{
  return float16_bits_of(x) & 0x7fffffffu;
}

static float one_nan(float x)
{
  return isnan(x) ? float16_of_bits(SIMPLE_NAN) : x;
}

float simple_add(float a, float b)
{
  return one_nan(a + b);
}

/* ---- choosing -------------------------------------------------------------------------------- */

int simple_chosen(struct simple_rule rule, size_t i, float value)
{
  const uint32_t bits = simple_bits(value);
  return bits <= rule.most && (bits > rule.above || (bits == rule.above && (int64_t)i <= rule.tie));
}

/* The bits of the k-th magnitude, eight at a time from the highest on. k becomes the number of
 * values that are wanted of those with the same bits so far. Then the loop looks for the last of
 * them. */
struct simple_rule simple_host_largest(const float *values, size_t n, size_t k)
{
  struct simple_rule rule = {0, SIMPLE_NAN, -1};
  for (int shift = 24; shift >= 0; shift -= 8) {
    size_t counts[256] = {0};
    uint32_t byte = 255;
#pragma omp parallel for reduction(+ : counts[:256]) if (n > LARGE)
    for (size_t i = 0; i < n; i++)
      if (simple_bits(values[i]) >> shift >> 8 == rule.above)
        counts[simple_bits(values[i]) >> shift & 255]++;
    for (; counts[byte] < k; byte--) k -= counts[byte];
    rule.above = rule.above << 8 | byte;
  }
  for (size_t i = 0; k > 0; i++)
    if (simple_bits(values[i]) == rule.above) k--, rule.tie = (int64_t)i;
  return rule;
}

static struct simple_rule largest(struct simple *s, const float *vector, size_t k)
{
  return simple_host_largest(vector, s->n, k);
}

static size_t choose(struct simple *s, const float *vector, struct simple_rule rule,
                     struct sparse_pair *list)
{
  size_t count = 0;
#pragma omp parallel for reduction(+ : count) if (!list && s->n > LARGE)
  for (size_t i = 0; i < s->n; i++) {
    if (!simple_chosen(rule, i, vector[i])) continue;
    if (list) list[count] = (struct sparse_pair){(uint32_t)i, vector[i]};
    count++;
  }
  return count;
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

static void add_gradient(struct simple *s, float *vector, const float *gradient)
{
#pragma omp parallel for if (s->n > LARGE)
  for (size_t i = 0; i < s->n; i++)
    if (isfinite(gradient[i])) vector[i] = simple_add(gradient[i], vector[i]);
}

static void entries(struct simple *s, enum simple_change change, float *vector,
                    const struct sparse_pair *list, size_t count, const float *where)
{
  (void)s;
  for (size_t e = 0; e < count; e++) {
    float *x = &vector[list[e].index];
    if (!where || where[list[e].index] != 0)
      *x = change == SIMPLE_ADD ? simple_add(*x, list[e].value) : (float)change;
  }
}

static void divide(struct simple *s, float *to, const float *from, int divisor)
{
#pragma omp parallel for if (s->n > LARGE)
  for (size_t i = 0; i < s->n; i++) to[i] = one_nan(from[i] / (float)divisor);
}

const struct simple_operators simple_on_host = {add_gradient, largest, choose, entries, divide};
