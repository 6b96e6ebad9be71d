/* SPDX-License-Identifier: Apache-2.0 */
/* The operators as plain loops, for the CPU stand-in, whose device memory the host can read. Each
 * waits for what is on the stream and then works at once. */
#include <math.h>
#include <stdlib.h>

#include "check.h"
#include "simple.h"

/* Work space: an entry for each element. */
struct simple_ops {
  struct sparse_pair *entries;
};

struct simple_ops *simple_ops_create(const struct simple *s)
{
  struct simple_ops *ops = calloc(1, sizeof *ops);
  if (ops) ops->entries = malloc(s->n * sizeof *ops->entries);
  if (!ops || !ops->entries) launcher_fail(__FILE__, __LINE__, "malloc", "out of memory", NULL);
  return ops;
}

void simple_ops_destroy(struct simple_ops *ops)
{
  free(ops->entries);
  free(ops);
}

void simple_add_vector(struct simple *s, float *vector, const float *gradient, cudaStream_t stream)
{
  CUDACHECK(cudaStreamSynchronize(stream));
  for (size_t i = 0; i < s->n; i++) vector[i] = gradient[i] + vector[i];
}

static int by_index(const void *a, const void *b)
{
  const struct sparse_pair *x = a, *y = b;
  return (x->index > y->index) - (x->index < y->index);
}

static int by_magnitude(const void *a, const void *b)
{
  const struct sparse_pair *x = a, *y = b;
  const float first = fabsf(x->value), second = fabsf(y->value);
  return first != second ? (first < second ? 1 : -1) : by_index(a, b);
}

struct simple_kth simple_largest(struct simple *s, const float *vector, size_t k,
                                 struct sparse_pair *list, cudaStream_t stream)
{
  struct sparse_pair *entries = s->ops->entries;
  CUDACHECK(cudaStreamSynchronize(stream));
  for (size_t i = 0; i < s->n; i++) entries[i] = (struct sparse_pair){(uint32_t)i, vector[i]};
  qsort(entries, s->n, sizeof *entries, by_magnitude);
  const struct simple_kth kth = {fabsf(entries[k - 1].value), entries[k - 1].index};
  qsort(entries, k, sizeof *entries, by_index);
  memcpy(list, entries, k * sizeof *list);
  return kth;
}

size_t simple_above(struct simple *s, const float *vector, size_t first, size_t last,
                    double threshold, struct sparse_pair *list, size_t room, cudaStream_t stream)
{
  size_t count = 0;
  (void)s;
  CUDACHECK(cudaStreamSynchronize(stream));
  for (size_t i = first; i < last; i++) {
    if (!(fabsf(vector[i]) > (float)threshold)) continue;
    if (count < room) list[count] = (struct sparse_pair){(uint32_t)i, vector[i]};
    count++;
  }
  return count;
}

void simple_add_entries(struct simple *s, float *vector, const struct sparse_pair *list,
                        size_t count, cudaStream_t stream)
{
  (void)s;
  CUDACHECK(cudaStreamSynchronize(stream));
  for (size_t e = 0; e < count; e++) vector[list[e].index] += list[e].value;
}

void simple_clear_entries(struct simple *s, float *vector, const struct sparse_pair *list,
                          size_t count, const float *where, cudaStream_t stream)
{
  (void)s;
  CUDACHECK(cudaStreamSynchronize(stream));
  for (size_t e = 0; e < count; e++)
    if (!where || where[list[e].index] != 0) vector[list[e].index] = 0;
}

void simple_divide(struct simple *s, float *to, const float *from, int divisor, cudaStream_t stream)
{
  CUDACHECK(cudaStreamSynchronize(stream));
  for (size_t i = 0; i < s->n; i++) to[i] = from[i] / (float)divisor;
}
