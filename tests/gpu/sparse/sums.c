/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of lists, against plain loops. */
#include "world.h"

/* ---- reduce ---------------------------------------------------------------------------------- */

/* The sums of the region, element by element. */
static size_t expect_sums(const struct world *w, bool own_region, enum sparse_sums which,
                          struct sparse_pair *sums)
{
  const uint64_t *displs = w->state->received_displs, *counts = w->state->received_counts;
  const uint64_t *region = w->state->fixed.whole;
  const int nranks = w->m.nranks;
  const size_t size = region[1] > region[0] ? region[1] - region[0] : 0;
  float *dense = calloc(size + 1, sizeof(float));
  bool *occurs = calloc(size + 1, sizeof(bool));
  size_t count = 0;
  for (int i = 0; i < nranks; i++) {
    const int p = own_region ? (w->m.rank - i + nranks) % nranks : i;
    for (uint64_t j = 0; j < counts[p]; j++) {
      const struct sparse_pair pair = w->received[displs[p] + j];
      if (pair.index < region[0] || pair.index >= region[1]) continue;
      dense[pair.index - region[0]] = added(dense[pair.index - region[0]], pair.value);
      occurs[pair.index - region[0]] = true;
    }
  }
  for (size_t i = 0; i < size; i++)
    if (which == SPARSE_SUMS_ALL       ? occurs[i]
        : which == SPARSE_SUMS_NONZERO ? dense[i] != 0
                                       : fabsf(dense[i]) > (float)w->state->kept.global_threshold)
      sums[count++] = (struct sparse_pair){(uint32_t)(region[0] + i), dense[i]};
  free(dense);
  free(occurs);
  return count;
}

static bool reduce(struct test *t, size_t n, int nranks, uint32_t gap, enum kind kind, int shape)
{
  struct world w;
  world_open(&w, t, n, n, nranks);
  struct sparse_state *s = w.state;
  struct sparse_pair *sums = malloc((n + 1) * sizeof *sums);
  /* shapes: 0 all, 1 a part, 2 empty, 3 reversed (empty), 4 one element */
  const uint64_t a = next_random(t) % n, b = next_random(t) % (n + 1);
  s->fixed.whole[0] = shape == 0 ? 0 : shape == 3 ? b : a < b ? a : b;
  s->fixed.whole[1] = shape == 0   ? n
                      : shape == 2 ? s->fixed.whole[0]
                      : shape == 4 ? s->fixed.whole[0] + (s->fixed.whole[0] < n)
                      : a < b      ? b
                                   : a;
  if (shape == 3 && s->fixed.whole[1] > s->fixed.whole[0]) s->fixed.whole[1] = 0;
  s->kept.global_threshold = kind == TIES ? 2 : 0.1;
  uint64_t used = next_random(t) % 3;
  for (int p = 0; p < nranks; p++) {
    s->received_displs[p] = used;
    struct sparse_pair *list = w.received + used;
    size_t count = 0;
    if (p % 4 != 3) count = random_list(t, list, n, 0, n, p == 1 && gap < 30 ? 1 : gap, kind);
    if (p == 0 && gap > 60) { /* sparse, but for a cluster */
      while (count > 0 && list[count - 1].index >= n / 2) count--;
      count += random_list(t, list + count, 20000, n / 2, n, 1, kind);
      count += random_list(t, list + count, n / gap, list[count - 1].index + 1, n, gap, kind);
    }
    if (p == 2 && kind == RANDOM) /* cancels list 0 */
      for (count = 0; count < s->received_counts[0]; count++) {
        list[count] = w.received[s->received_displs[0] + count];
        list[count].value = -list[count].value;
      }
    s->received_counts[p] = count;
    used += count;
  }
  w.m.rank = (int)(next_random(t) % (uint32_t)nranks);
  memcpy(s->fixed.list_displs, s->received_displs, sizeof s->fixed.list_displs);
  memcpy(s->kept.boundaries + w.m.rank, s->fixed.whole, sizeof s->fixed.whole);
  world_push(&w);
  bool good = true;
  for (int i = 0; i < 6; i++) {
    const bool own_region = i % 2 == 0;
    const enum sparse_order order = own_region ? SPARSE_FROM_OWNER : SPARSE_FROM_RANK_0;
    const enum sparse_sums which = (enum sparse_sums)(i / 2);
    struct sparse_state *device = w.m.state;
    OPSCHECK(ops_reduce(&w.m, w.m.received, order, which,
                        (struct sparse_list){w.m.gathered, &device->reduced_count, 1}, w.stream));
    world_pull(&w);
    const size_t count = expect_sums(&w, own_region, which, sums);
    good = good && same_number(s->reduced_count, count, "reduced_count") &&
           (!own_region || same_number(s->send_counts[nranks - 1], count, "send_counts")) &&
           same_bits(w.gathered, sums, count * sizeof *sums, "sums");
  }
  if (!good)
    launcher_error("n %zu, %d lists, gap %u, kind %d, shape %d", n, nranks, gap, kind, shape);
  free(sums);
  world_close(&w);
  return good;
}

void test_reduce(struct test *t)
{
  bool good = true;
  launcher_step("sums");
  for (int i = 0; i < (ON_GPU ? 120 : 60); i++) {
    const size_t n = i % 4 == 0   ? 1 + next_random(t) % 40
                     : i % 4 == 1 ? 8192 * (1 + next_random(t) % 4)
                                  : 1 + next_random(t) % 100000;
    good &= reduce(t, n, 1 + i % 9, 1 + next_random(t) % 60, (enum kind)(i % KINDS), i / 2 % 5);
  }
  good &= reduce(t, (1 << 20) + 3, 8, 25, RANDOM, 0);
  good &= reduce(t, (1 << 20) + 3, 4, 100, NONFINITE, 1);
  good &= reduce(t, (1 << 20) + 3, 2, 300, TIES, 0) && reduce(t, (1 << 20) + 3, 5, 900, RANDOM, 0);
  good &= reduce(t, 5000, 200, 40, TIES, 0);
  if (ON_GPU)
    good &=
        reduce(t, (1 << 24) + 3, 5, 1000, RANDOM, 0) && reduce(t, (1 << 24) + 3, 4, 50, TIES, 0);
  report(t, good, "sums of lists");
}
