/* SPDX-License-Identifier: Apache-2.0 */
/* The operators as plain loops. A NaN that comes out of arithmetic has the bits 0x7fffffff, as on
 * the GPU; else the order of NaNs in a selection would depend on the machine. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "simple.h"

static uint32_t magnitude(float x)
{
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits & 0x7fffffffu;
}

static float one_nan(float x)
{
  const uint32_t nan = SIMPLE_NAN;
  if (isnan(x)) memcpy(&x, &nan, sizeof x);
  return x;
}

float simple_add(float a, float b)
{
  return one_nan(a + b);
}

int simple_chosen(struct simple_rule rule, size_t i, float value)
{
  const uint32_t bits = magnitude(value);
  return bits <= rule.most && (bits > rule.above || (bits == rule.above && (int64_t)i <= rule.tie));
}

/* ---- the k largest --------------------------------------------------------------------------- */

/* The bits of the k-th magnitude, digit by digit: a histogram of the digit, over the values whose
 * higher digits are those that are known, says in which bin the k-th one is. Then the last of the
 * equal ones that are still wanted is looked for. */
struct simple_rule simple_host_largest(const float *values, size_t n, size_t k)
{
  static const int shifts[] = {20, 10, 0}; /* 11, 10 and 10 bits */
  struct simple_rule rule = {0, SIMPLE_NAN, -1};
  uint32_t known = 0;
  for (int digit = 0; digit < 3; digit++) {
    const int shift = shifts[digit];
    const uint32_t mask = digit == 0 ? 2047 : 1023;
    size_t histogram[2048] = {0};
    uint32_t bin = mask;
    for (size_t i = 0; i < n; i++) {
      const uint32_t bits = magnitude(values[i]);
      if ((bits & known) == rule.above) histogram[bits >> shift & mask]++;
    }
    for (; histogram[bin] < k; bin--) k -= histogram[bin];
    rule.above |= bin << shift;
    known |= mask << shift;
  }
  for (size_t i = 0; k > 0; i++)
    if (magnitude(values[i]) == rule.above) k--, rule.tie = (int64_t)i;
  return rule;
}

static struct simple_rule largest(struct simple *s, const float *vector, size_t k)
{
  return simple_host_largest(vector, s->n, k);
}

/* ---- loops ----------------------------------------------------------------------------------- */

static void copy(struct simple *s, void *to, const void *from, size_t bytes)
{
  (void)s;
  memcpy(to, from, bytes);
}

static void zero(struct simple *s, float *vector)
{
  memset(vector, 0, s->n * sizeof *vector);
}

static size_t add_gradient(struct simple *s, float *vector, const float *gradient)
{
  size_t nonfinite = 0;
  for (size_t i = 0; i < s->n; i++)
    if (isfinite(gradient[i]))
      vector[i] = simple_add(gradient[i], vector[i]);
    else
      nonfinite++;
  return nonfinite;
}

static size_t count(struct simple *s, const float *vector, size_t first, size_t last,
                    struct simple_rule rule)
{
  size_t count = 0;
  (void)s;
  for (size_t i = first; i < last; i++) count += (size_t)simple_chosen(rule, i, vector[i]);
  return count;
}

static size_t pick(struct simple *s, const float *vector, size_t first, size_t last,
                   struct simple_rule rule, struct sparse_pair *list)
{
  size_t count = 0;
  (void)s;
  for (size_t i = first; i < last; i++)
    if (simple_chosen(rule, i, vector[i]))
      list[count++] = (struct sparse_pair){(uint32_t)i, vector[i]};
  return count;
}

static void add_entries(struct simple *s, float *vector, const struct sparse_pair *list,
                        size_t count)
{
  (void)s;
  for (size_t e = 0; e < count; e++)
    vector[list[e].index] = simple_add(vector[list[e].index], list[e].value);
}

static void clear_entries(struct simple *s, float *vector, const struct sparse_pair *list,
                          size_t count, const float *where)
{
  (void)s;
  for (size_t e = 0; e < count; e++)
    if (!where || where[list[e].index] != 0) vector[list[e].index] = 0;
}

static void divide(struct simple *s, float *to, const float *from, int divisor)
{
  for (size_t i = 0; i < s->n; i++) to[i] = one_nan(from[i] / (float)divisor);
}

static double moment(struct simple *s, const float *vector, double center, int squared)
{
  double sum = 0;
  for (size_t i = 0; i < s->n; i++) {
    const double x = vector[i] - center;
    sum += squared ? x * x : x;
  }
  return sum;
}

/* ---- the tables ------------------------------------------------------------------------------ */

static void *allocate(size_t bytes)
{
  return calloc(bytes, 1);
}

#define LOOPS                                                                                   \
  .copy = copy, .zero = zero, .add_gradient = add_gradient, .largest = largest, .count = count, \
  .select = pick, .add_entries = add_entries, .clear_entries = clear_entries, .divide = divide, \
  .moment = moment

const struct simple_operators simple_on_host = {.allocate = allocate, .release = free, LOOPS};

#ifdef CPU_STANDIN /* whose device memory the host can read */
static void *allocate_on_device(size_t bytes)
{
  void *memory;
  CUDACHECK(cudaMalloc(&memory, bytes));
  memset(memory, 0, bytes);
  return memory;
}

static void release_on_device(void *memory)
{
  CUDACHECK(cudaFree(memory));
}

const struct simple_operators simple_on_device = {
    .allocate = allocate_on_device, .release = release_on_device, LOOPS};
#endif
