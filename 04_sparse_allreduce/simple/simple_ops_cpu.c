/* SPDX-License-Identifier: Apache-2.0 */
/* The operators as plain loops, for the CPU stand-in, whose device memory the host can read. Each
 * waits for what is on the stream and then works at once. */
#include <math.h>
#include <stdlib.h>

#include "check.h"
#include "simple.h"

void simple_add_vector(struct simple *s, float *vector, const float *gradient, cudaStream_t stream)
{
  CUDACHECK(cudaStreamSynchronize(stream));
  for (size_t i = 0; i < s->n; i++) vector[i] = gradient[i] + vector[i];
}

static int by_magnitude(const void *a, const void *b)
{
  const struct sparse_pair *x = a, *y = b;
  const float first = fabsf(x->value), second = fabsf(y->value);
  if (first != second) return first < second ? 1 : -1;
  return x->index < y->index ? -1 : 1;
}

struct simple_rule simple_largest(struct simple *s, const float *vector, size_t k,
                                  cudaStream_t stream)
{
  struct sparse_pair *sorted = s->work;
  CUDACHECK(cudaStreamSynchronize(stream));
  for (size_t i = 0; i < s->n; i++) sorted[i] = (struct sparse_pair){(uint32_t)i, vector[i]};
  qsort(sorted, s->n, sizeof *sorted, by_magnitude);
  return (struct simple_rule){fabsf(sorted[k - 1].value), sorted[k - 1].index};
}

size_t simple_select(struct simple *s, const float *vector, size_t first, size_t last,
                     struct simple_rule rule, struct sparse_pair *list, cudaStream_t stream)
{
  size_t count = 0;
  (void)s;
  CUDACHECK(cudaStreamSynchronize(stream));
  for (size_t i = first; i < last; i++) {
    const float x = fabsf(vector[i]);
    if (x > rule.above || (x == rule.above && (int64_t)i <= rule.tie))
      list[count++] = (struct sparse_pair){(uint32_t)i, vector[i]};
  }
  return count;
}

void simple_add_entries(float *vector, const struct sparse_pair *list, size_t count,
                        cudaStream_t stream)
{
  CUDACHECK(cudaStreamSynchronize(stream));
  for (size_t e = 0; e < count; e++) vector[list[e].index] += list[e].value;
}

void simple_clear_entries(float *vector, const struct sparse_pair *list, size_t count,
                          const float *where, cudaStream_t stream)
{
  CUDACHECK(cudaStreamSynchronize(stream));
  for (size_t e = 0; e < count; e++)
    if (!where || where[list[e].index] != 0) vector[list[e].index] = 0;
}

void simple_divide(struct simple *s, float *to, const float *from, int divisor, cudaStream_t stream)
{
  CUDACHECK(cudaStreamSynchronize(stream));
  for (size_t i = 0; i < s->n; i++) to[i] = from[i] / (float)divisor;
}
