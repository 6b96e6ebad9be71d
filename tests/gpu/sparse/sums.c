/* SPDX-License-Identifier: Apache-2.0 */
/* Regions, sums of lists, and what becomes of them, against plain loops. */
#include "world.h"

/* ---- regions --------------------------------------------------------------------------------- */

void test_regions(struct test *t)
{
  bool good = true;
  launcher_step("regions");
  for (int i = 0; i < 60; i++) {
    struct world w;
    const size_t n = i % 5 == 0 ? 1 + next_random(t) % 9 : 1 + next_random(t) % 200000;
    const int nranks = i % 7 == 0 ? SPARSE_MAX_RANKS : 1 + (int)(next_random(t) % 9);
    world_open(&w, t, n, n / 20 + 1, nranks);
    struct sparse_state *s = w.state;
    s->offered_count =
        i % 6 == 0 ? 0
                   : random_list(t, w.offered, w.m.capacity, 0, n, 1 + next_random(t) % 30, RANDOM);
    for (int j = 1; j <= nranks; j++) {
      const uint64_t width =
          i % 4 == 0 ? n / (size_t)nranks : next_random(t) % (2 * n / (size_t)nranks + 1);
      s->kept.boundaries[j] = s->kept.boundaries[j - 1] + width;
      if (s->kept.boundaries[j] > n || j == nranks) s->kept.boundaries[j] = n;
    }
    world_push(&w);
    OPSCHECK(ops_partition(&w.m, w.stream));
    OPSCHECK(ops_propose_regions(&w.m, w.stream));
    world_pull(&w);
    uint64_t before = 0;
    const uint64_t chunk = s->offered_count / (uint64_t)nranks;
    for (int j = 0; j < nranks; j++) {
      uint64_t count = 0;
      for (uint64_t x = 0; x < s->offered_count; x++)
        count += w.offered[x].index >= s->kept.boundaries[j] &&
                 w.offered[x].index < s->kept.boundaries[j + 1];
      const uint64_t proposal = chunk == 0 ? j == 0
                                : j == 0   ? 0
                                           : w.offered[chunk * (uint64_t)j].index;
      good = good && same_number(s->region_counts[j], count, "region_counts") &&
             same_number(s->region_displs[j], before, "region_displs") &&
             same_number(s->proposal[j], proposal, "proposal");
      before += count;
    }
    world_close(&w);
  }
  report(t, good, "regions and proposals");
}

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

/* ---- results --------------------------------------------------------------------------------- */

static struct sparse_list gathered_parts(const struct world *w)
{
  return (struct sparse_list){w->m.gathered, w->m.state->gathered_counts, w->m.nranks};
}

/* Each operator on the device and in a loop on a copy, one after the other. */
static bool results(struct test *t, size_t n, int nranks, enum kind kind)
{
  struct world w, e;
  world_open(&w, t, n, n, nranks);
  world_open(&e, t, n, n, nranks);
  struct sparse_state *s = w.state;
  const size_t vector = n * sizeof(float);
  bool good = true;
  size_t all = 0;
  for (size_t i = 0; i < n; i++) w.residual[i] = element(t, kind);
  for (int p = 0; p < nranks; p++) {
    const uint64_t width = n / (size_t)nranks, begin = (uint64_t)p * width;
    const size_t part = random_list(t, w.gathered + all, width, begin, begin + width, 3, kind);
    s->gathered_counts[p] = part;
    s->kept.boundaries[p] = begin;
    all += part;
  }
  s->kept.boundaries[nranks] = n;
  s->offered_count = random_list(t, w.offered, n, 0, n, 5, RANDOM);
  s->result_count = all;
  s->selection = (struct sparse_selection){sparse_magnitude(kind == TIES ? 1 : 0.05f),
                                           SPARSE_INFINITY_LEVEL, (int64_t)n / 3, 0};
  s->merges[1] =
      (struct sparse_selection){sparse_magnitude(0.5f), SPARSE_NAN_LEVEL, (int64_t)(n / 2), 0};
  world_push(&w);
  memcpy(e.residual, w.residual, vector);
  memcpy(e.dense, w.dense, vector);

  OPSCHECK(ops_apply(&w.m, gathered_parts(&w), SPARSE_THRESHOLDS_STAY, w.stream));
  for (size_t i = 0; i < all; i++)
    e.dense[w.gathered[i].index] = added(w.gathered[i].value / (float)nranks, 0);
  world_pull(&w);
  for (size_t i = 0; i < n; i++) /* -0 / ranks stays, -0 + 0 does not */
    if (e.dense[i] == 0 && w.dense[i] == 0) e.dense[i] = w.dense[i];
  good = good && same_bits(w.dense, e.dense, vector, "applied");

  s->pending = next_random(t) % 3;
  world_push(&w);
  OPSCHECK(ops_clear_pending(&w.m, w.stream));
  expect_cleared(&w, all, e.residual);
  world_pull(&w);
  good = good && same_bits(w.residual, e.residual, vector, "cleared") &&
         same_number(s->pending, SPARSE_REMOVE_NOTHING, "pending");

  const struct sparse_list offered = {w.m.offered, &w.m.state->offered_count, 1};
  OPSCHECK(ops_return(&w.m, offered, &w.m.state->merges[1], w.stream));
  for (size_t i = 0; i < s->offered_count; i++)
    for (size_t j = 0; j < all; j++)
      if (w.gathered[j].index == w.offered[i].index &&
          !(fabsf(w.offered[i].value) > 0.5f ||
            (fabsf(w.offered[i].value) == 0.5f && w.offered[i].index <= n / 2)))
        e.residual[w.offered[i].index] = added(e.residual[w.offered[i].index], w.offered[i].value);
  world_pull(&w);
  good = good && same_bits(w.residual, e.residual, vector, "returned");

  CUDACHECK(cudaMemsetAsync(w.m.dense, 0, vector, w.stream));
  memset(e.dense, 0, vector);
  OPSCHECK(ops_scatter(&w.m, gathered_parts(&w), w.stream));
  OPSCHECK(ops_average(&w.m, w.stream));
  for (size_t i = 0; i < all; i++) e.dense[w.gathered[i].index] = w.gathered[i].value;
  for (size_t i = 0; i < n; i++) {
    e.dense[i] /= (float)nranks;
    if (e.dense[i] != e.dense[i]) e.dense[i] = sparse_from_magnitude(SPARSE_NAN_LEVEL);
  }
  world_pull(&w);
  good = good && same_bits(w.dense, e.dense, vector, "averaged");

  OPSCHECK(ops_apply(&w.m, offered, SPARSE_THRESHOLDS_STAY, w.stream)); /* instead of all */
  memset(e.dense, 0, vector);
  for (size_t i = 0; i < s->offered_count; i++)
    e.dense[w.offered[i].index] = w.offered[i].value / (float)nranks;
  world_pull(&w);
  good = good && same_bits(w.dense, e.dense, vector, "applied next");

  for (size_t i = 0; i < n; i++) e.dense[i] = element(t, RANDOM);
  CUDACHECK(cudaMemcpy(w.gradient + 4, e.dense, vector, cudaMemcpyHostToDevice));
  OPSCHECK(ops_convert(&w.m, w.gradient + 4, w.stream));
  world_pull(&w);
  good = good && same_bits(w.dense, e.dense, vector, "converted");
  if (!good) launcher_error("n %zu, %d ranks, kind %d", n, nranks, kind);
  world_close(&e);
  world_close(&w);
  return good;
}

void test_results(struct test *t)
{
  bool good = true;
  launcher_step("results");
  for (int i = 0; i < 24; i++)
    good &= results(t, i % 3 == 0 ? 1 + next_random(t) % 50 : 1 + next_random(t) % 20000, 1 + i % 8,
                    (enum kind)(i % KINDS));
  report(t, good, "apply, return, scatter, average, convert");
}
