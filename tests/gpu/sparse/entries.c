/* SPDX-License-Identifier: Apache-2.0 */
/* Results as entries: nothing but what is asked for is written, and adding them to a vector rounds
 * as C's fmaf does. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "world.h"

static const float SCALE = -0.3f;

static float one_nan(float x)
{
  return isnan(x) ? sparse_from_magnitude(SPARSE_NAN_LEVEL) : x;
}

/* The entries of several lists; a vector with zeros of both signs. */
static size_t fill(struct test *t, struct world *w, enum kind kind)
{
  const size_t n = w->m.n;
  const int nranks = w->m.nranks;
  size_t all = 0;
  for (size_t i = 0; i < n; i++) w->residual[i] = i % 7 == 0 ? -0.0f : element(t, kind);
  for (size_t i = 0; i < n; i++) w->dense[i] = element(t, kind);
  for (int p = 0; p < nranks; p++) {
    const uint64_t width = n / (size_t)nranks, begin = (uint64_t)p * width;
    const uint32_t gap = 1 + (uint32_t)(next_random(t) % 40);
    const size_t part = random_list(t, w->gathered + all, width, begin, begin + width, gap, kind);
    w->state->gathered_counts[p] = part;
    all += part;
  }
  w->state->result_count = all;
  return all;
}

static bool entries(struct test *t, size_t n, int nranks, enum kind kind)
{
  struct world w;
  world_open(&w, t, n, n, nranks);
  const size_t vector = n * sizeof(float), all = fill(t, &w, kind);
  const struct sparse_list result = {w.m.gathered, &w.m.state->result_count, 1};
  float *expected = malloc(vector), *dense = malloc(vector);
  memcpy(expected, w.residual, vector);
  memcpy(dense, w.dense, vector);
  w.m.config.result = SPARSE_RESULT_ENTRIES;
  world_push(&w);

  OPSCHECK(ops_apply(&w.m, result, w.stream));
  OPSCHECK(ops_add_entries(&w.m, result, SCALE, w.m.residual, w.stream));
  for (size_t e = 0; e < all; e++) {
    const struct sparse_pair pair = w.gathered[e];
    const float average = one_nan(pair.value / (float)nranks);
    expected[pair.index] = one_nan(fmaf(SCALE, average, expected[pair.index]));
  }
  world_pull(&w);
  bool good = same_bits(w.dense, dense, vector, "dense result, not asked for") &&
              same_bits(w.residual, expected, vector, "entries added");

  OPSCHECK(ops_add_dense(&w.m, SCALE, w.m.residual, w.stream));
  for (size_t i = 0; i < n; i++) expected[i] = one_nan(fmaf(SCALE, dense[i], expected[i]));
  world_pull(&w);
  good = good && same_bits(w.residual, expected, vector, "dense vector added");
  if (!good) launcher_error("n %zu, %d ranks, kind %d", n, nranks, kind);
  free(expected);
  free(dense);
  world_close(&w);
  return good;
}

void test_entries(struct test *t)
{
  bool good = true;
  launcher_step("entries");
  for (int i = 0; i < 24; i++)
    good &= entries(t, 8 + (i % 3 == 0 ? next_random(t) % 50 : next_random(t) % 20000), 1 + i % 8,
                    (enum kind)(i % KINDS));
  report(t, good, "results as entries: nothing else is written; added to a vector");
}
