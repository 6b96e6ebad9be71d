/* SPDX-License-Identifier: Apache-2.0 */
/* The local pass, counting, searching and keeping against plain loops. */
#include "world.h"

/* ---- the local pass -------------------------------------------------------------------------- */

/* The expected outcome, on the host's side. */
static void expect_local_pass(struct world *w, const float *gradient)
{
  struct sparse_state *s = w->state;
  s->offered_count = 0;
  memset(s->level_counts, 0, sizeof(uint64_t) * (size_t)s->nlevels);
  for (size_t i = 0; i < w->m.n; i++) {
    if (gradient != NULL) {
      if (isfinite(gradient[i]))
        w->residual[i] = added(w->residual[i], gradient[i]);
      else if (s->nonfinite == 0)
        s->nonfinite = (uint32_t)i + 1;
    }
    const sparse_level_t magnitude = sparse_magnitude(w->residual[i]);
    if (magnitude > s->limit) continue;
    for (int j = 0; j < s->nlevels; j++) s->level_counts[j] += magnitude > s->levels[j];
    if (magnitude > s->levels[0] && s->offered_count < w->m.room)
      w->offered[s->offered_count++] = (struct sparse_pair){(uint32_t)i, w->residual[i]};
  }
}

static bool close_to(double got, double expected)
{
  return (got != got && expected != expected) ||
         fabs(got - expected) <= 1e-9 * fabs(expected) + 1e-300;
}

static bool check_moments(const struct world *w)
{
  double mean = 0, squares = 0;
  const double n = (double)w->m.n;
  for (size_t i = 0; i < w->m.n; i++) mean += w->residual[i] / n;
  for (size_t i = 0; i < w->m.n; i++) squares += (w->residual[i] - mean) * (w->residual[i] - mean);
  return close_to(w->state->deviation, sqrt(squares / (n - 1))) &&
         fabs(w->state->mean - mean) <= 1e-9 * (sqrt(squares / n) + fabs(mean));
}

/* What the step before has left: a result, and a selection that the residual has not seen yet. */
static void leave_pending(struct test *t, struct world *w, enum kind kind)
{
  struct sparse_state *s = w->state;
  s->pending = next_random(t) % 3;
  s->selection =
      (struct sparse_selection){sparse_magnitude(element(t, kind)),
                                next_random(t) % 2 ? SPARSE_INFINITY_LEVEL : SPARSE_NAN_LEVEL,
                                (int64_t)(next_random(t) % w->m.n) - 1, 0};
  s->result_count = next_random(t) % 8 == 0 ? 0
                                            : random_list(t, w->gathered, w->m.capacity, 0, w->m.n,
                                                          1 + next_random(t) % 40, kind);
}

static bool local_pass(struct test *t, size_t n, bool gradient, size_t shift, enum kind kind,
                       enum sparse_candidates candidates, float level)
{
  struct world w, e; /* e: what is expected */
  const bool moments = candidates == SPARSE_GAUSSIAN_GUESS;
  world_open(&w, t, n, n / 50 + 1, 1);
  world_open(&e, t, n, n / 50 + 1, 1);
  float *values = malloc(n * sizeof(float));
  if (moments && kind == NONFINITE) w.m.config.nonfinite = SPARSE_NONFINITE_DROP;
  e.m.config = w.m.config;
  for (size_t i = 0; i < n; i++) w.residual[i] = element(t, kind == NONFINITE ? TIES : kind);
  for (size_t i = 0; i < n; i++) values[i] = element(t, kind);
  void *given = w.gradient + shift * sizeof(float); /* not always at a multiple of 16 bytes */
  CUDACHECK(cudaMemcpy(given, values, n * sizeof(float), cudaMemcpyHostToDevice));
  w.m.constants.raise_steps = SPARSE_MAX_RAISES;
  w.m.constants.raise_factor = 1.03;
  w.state->kept.local_threshold = level;
  w.state->kept.guess = sparse_level(level);
  leave_pending(t, &w, kind);
  const enum sparse_removal removal = (enum sparse_removal)(next_random(t) % 3);
  memcpy(e.state, w.state, sizeof *e.state);
  memcpy(e.residual, w.residual, n * sizeof(float));
  struct sparse_memory host = w.m;
  host.state = e.state;
  e.state->nlevels = sparse_first_levels(&host, candidates, e.state->levels, &e.state->limit);
  expect_cleared(&w, w.state->result_count, e.residual);
  expect_local_pass(&e, gradient ? values : NULL);
  world_push(&w);
  w.m.config.result = next_random(t) % 2 ? SPARSE_RESULT_ENTRIES : SPARSE_RESULT_DENSE;
  OPSCHECK(ops_apply(&w.m, (struct sparse_list){w.m.gathered, &w.m.state->result_count, 1},
                     SPARSE_THRESHOLDS_STAY, w.stream));
  OPSCHECK(ops_local_pass(&w.m, gradient ? given : NULL, candidates, removal, w.stream));
  world_pull(&w);
  const struct sparse_state *s = w.state;
  bool good = same_number(s->offered_count, e.state->offered_count, "offered_count") &&
              same_number(s->pending, removal, "pending") &&
              same_number(s->nonfinite, e.state->nonfinite, "nonfinite") &&
              same_bits(w.residual, e.residual, n * sizeof(float), "residual") &&
              same_bits(w.offered, e.offered, s->offered_count * sizeof *w.offered, "offered") &&
              same_bits(s->level_counts, e.state->level_counts, 8 * (size_t)s->nlevels, "counts");
  if (good && moments && !check_moments(&w)) {
    launcher_error("mean %g, deviation %g", s->mean, s->deviation);
    good = false;
  }
  if (!good)
    launcher_error("n %zu, gradient %d, shift %zu, kind %d, level %g", n, gradient, shift, kind,
                   (double)level);
  world_close(&e);
  world_close(&w);
  free(values);
  return good;
}

void test_local_pass(struct test *t)
{
  static const size_t sizes[] = {1, 3, 4097, 16384, (1 << 20) + 3, (1 << 24) + 3};
  static const float levels[] = {0.9f, 0.05f, 0, -1, 1e-42f, INFINITY};
  bool good = true;
  launcher_step("local pass");
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes - !ON_GPU; i++)
    for (int kind = 0; kind < KINDS; kind++)
      for (int l = 0; l < 6; l++) {
        if (sizes[i] > 100000 && (kind * 6 + l) % (sizes[i] > 2000000 ? 17 : 4) != 0) continue;
        for (int from = SPARSE_ABOVE_GUESS; from <= SPARSE_ABOVE_THRESHOLDS; from++)
          if (from != SPARSE_GAUSSIAN_GUESS || kind != DENORMAL || l > 2)
            good &= local_pass(t, sizes[i], next_random(t) % 3 > 0, next_random(t) % 3, kind,
                               (enum sparse_candidates)from, levels[l]);
      }
  report(t, good, "local pass");
}

/* ---- the guess ------------------------------------------------------------------------------- */

/* Steps in a row with so many candidates, from that ratio on; k is 100. */
static bool ratio_becomes(struct test *t, double ratio, uint64_t candidates, int steps, double low,
                          double high)
{
  struct world w;
  world_open(&w, t, 10000, 100, 1);
  struct sparse_state *s = w.state;
  s->kept.guess_ratio = ratio;
  s->level_counts[0] = candidates;
  s->selection.above = sparse_magnitude(2);
  for (int i = 0; i < steps; i++) sparse_set_guess(&w.m, s);
  const bool good =
      s->kept.guess_ratio >= low && s->kept.guess_ratio <= high &&
      same_number((uint64_t)s->kept.guess,
                  (uint64_t)sparse_magnitude((float)(2 * s->kept.guess_ratio)), "guess");
  if (!good)
    launcher_error("ratio %g, %llu candidates, %d steps: %.17g, expected %g to %g", ratio,
                   (unsigned long long)candidates, steps, s->kept.guess_ratio, low, high);
  world_close(&w);
  return good;
}

/* The guess comes closer to the k-th magnitude while there are many candidates, and goes further
 * away while there are too few. */
void test_guess(struct test *t)
{
  bool good = true;
  launcher_step("the guess of the next step");
  good &= ratio_becomes(t, 0.9, 101, 5, 0.9, 0.9);
  good &= ratio_becomes(t, 0.9, 151, 1, 0.9199, 0.9201);
  good &= ratio_becomes(t, 0.9, 401, 1, 0.9499, 0.9501);
  good &= ratio_becomes(t, 0.9, 401, 200, 1, 1); /* as close as it gets */
  good &= ratio_becomes(t, 0.9, 99, 1, 0.795, 0.8);
  good &= ratio_becomes(t, 0.9, 99, 200, 0.5, 0.5);
  good &= ratio_becomes(t, 1, 99, 10, 0.5, 0.5); /* from there it comes away, too */
  report(t, good, "the guess of the next step");
}

/* ---- searching and keeping ------------------------------------------------------------------- */

struct source {
  const struct sparse_pair *pairs; /* or the residual */
  const float *residual;
  size_t count;
};

static struct sparse_pair at(const struct source *from, size_t i)
{
  if (from->pairs != NULL) return from->pairs[i];
  return (struct sparse_pair){(uint32_t)i, from->residual[i]};
}

/* A selection is right if it chooses the wanted number, and nothing smaller than what it does not
 * choose. */
static bool right_selection(const struct source *from, uint64_t wanted,
                            const struct sparse_selection *got)
{
  uint64_t above = 0, equal = 0, all = 0;
  for (size_t i = 0; i < from->count; i++) {
    const struct sparse_pair pair = at(from, i);
    all++;
    above += sparse_magnitude(pair.value) > got->above;
    equal += sparse_magnitude(pair.value) == got->above;
  }
  if (wanted > all) wanted = all;
  bool good = same_number((uint64_t)got->tie, (uint64_t)-1, "tie after a search") &&
              same_number((uint64_t)got->limit, SPARSE_NAN_LEVEL, "limit after a search");
  if (wanted == 0)
    return good && same_number((uint64_t)got->above, SPARSE_NAN_LEVEL, "above of nothing") &&
           same_number(got->take, 0, "take of nothing");
  good = good && same_number(above + got->take, wanted, "above + take");
  return good && got->take >= 1 && got->take <= equal;
}

/* The expected list after a selection; returns the tie. */
static int64_t expect_kept(const struct source *from, const struct sparse_selection *rule,
                           struct sparse_pair *kept, size_t *nkept)
{
  int64_t tie = rule->tie;
  uint64_t left = rule->take;
  *nkept = 0;
  for (size_t i = 0; i < from->count; i++) {
    const struct sparse_pair pair = at(from, i);
    const sparse_level_t magnitude = sparse_magnitude(pair.value);
    bool chosen = magnitude > rule->above;
    if (magnitude == rule->above && rule->take == 0) chosen = (int64_t)pair.index <= rule->tie;
    if (magnitude == rule->above && left > 0) {
      chosen = true;
      left--;
      tie = pair.index;
    }
    if (chosen && magnitude <= rule->limit) kept[(*nkept)++] = pair;
  }
  return tie;
}

/* Where a search begins to look: right or wrong, it must find the same. */
static sparse_level_t random_near(struct test *t, enum kind kind)
{
  return next_random(t) % 4 == 0
             ? -1
             : sparse_magnitude(element(t, kind)) - (sparse_level_t)(next_random(t) % 8192);
}

enum where { IN_PLACE, ELSEWHERE, PARTS, OF_RESIDUAL, OF_NOTHING, WHERES };

static bool select_case(struct test *t, size_t n, enum kind kind, enum where where, uint64_t wanted,
                        bool by_search)
{
  struct world w;
  const int nranks = where == PARTS ? 5 : 2;
  world_open(&w, t, n, where == OF_RESIDUAL ? n : n / 10 + 1, nranks);
  struct sparse_state *s = w.state;
  const size_t bytes = w.lists * sizeof(struct sparse_pair);
  struct sparse_pair *input = malloc(bytes), *kept = malloc(bytes);
  size_t nkept = 0;
  struct source from = {NULL, w.residual, n};
  struct sparse_list list = {w.m.offered, &w.m.state->offered_count, 1};
  struct sparse_list to = {w.m.gathered, &w.m.state->result_count, 1};

  for (size_t i = 0; i < n; i++) w.residual[i] = element(t, kind);
  if (where == IN_PLACE || where == ELSEWHERE || where == OF_NOTHING) {
    from = (struct source){input, NULL, random_list(t, input, w.m.capacity, 0, n, 3, kind)};
    s->offered_count = from.count;
    memcpy(w.offered, input, bytes);
    if (where != ELSEWHERE) to = list;
  }
  if (where == PARTS) { /* gathered from 5 ranks */
    from = (struct source){input, NULL, 0};
    for (int p = 0; p < nranks; p++) {
      const uint64_t begin = n / (size_t)nranks * (size_t)p;
      const size_t part = p == 2 ? 0
                                 : random_list(t, input + from.count, w.m.list_room - 1, begin,
                                               begin + n / (size_t)nranks, 7, kind);
      s->gathered_counts[p] = part;
      from.count += part;
    }
    memcpy(w.gathered, input, bytes);
    list = (struct sparse_list){w.m.gathered, w.m.state->gathered_counts, nranks};
  }
  const uint32_t source = where == OF_RESIDUAL  ? SPARSE_FROM_RESIDUAL
                          : where == OF_NOTHING ? SPARSE_FROM_NOTHING
                                                : SPARSE_FROM_LIST;
  s->search_from = by_search ? source : SPARSE_FROM_NOTHING; /* first the search alone */
  s->keep_from = SPARSE_FROM_NOTHING;
  s->wanted = wanted < from.count || wanted > n ? wanted : from.count;
  s->near = random_near(t, kind);
  s->selection = (struct sparse_selection){sparse_magnitude(kind == TIES ? 2 : 0.25f),
                                           SPARSE_INFINITY_LEVEL, (int64_t)(n / 2), 0};
  s->result_count = s->reduced_count = 12345;
  struct sparse_state before = *s;
  struct sparse_selection *selection = &w.m.state->selection;
  world_push(&w);
  OPSCHECK(ops_select_sums(&w.m, list, to, selection, w.stream));
  CUDACHECK(cudaMemcpyAsync(s, w.m.state, sizeof *s, cudaMemcpyDeviceToHost, w.stream));
  CUDACHECK(cudaStreamSynchronize(w.stream));
  const struct sparse_selection rule = s->selection;
  before.keep_from = source;
  CUDACHECK(cudaMemcpyAsync(w.m.state, &before, sizeof before, cudaMemcpyHostToDevice, w.stream));
  OPSCHECK(ops_select_sums(&w.m, list, to, selection, w.stream));
  world_pull(&w);

  bool good = true;
  if (where == OF_NOTHING) {
    good = same_bits(s, &before, sizeof *s, "state after nothing") &&
           same_bits(w.offered, input, bytes, "list after nothing");
  } else {
    if (by_search) good = right_selection(&from, before.wanted, &rule);
    const int64_t tie = expect_kept(&from, &rule, kept, &nkept);
    const bool in_offered = to.pairs == w.m.offered;
    good = good && same_number(in_offered ? s->offered_count : s->result_count, nkept, "kept") &&
           same_number((uint64_t)s->selection.tie, (uint64_t)tie, "tie") &&
           same_bits(in_offered ? w.offered : w.gathered, kept, nkept * sizeof *kept, "kept list");
  }
  if (!good)
    launcher_error("n %zu, kind %d, where %d, wanted %llu, search %d", n, kind, where,
                   (unsigned long long)wanted, by_search);
  free(input);
  free(kept);
  world_close(&w);
  return good;
}

void test_selection(struct test *t, bool quick)
{
  static const size_t sizes[] = {1, 3, 4097, (1 << 20) + 3, (1 << 24) + 3};
  static const char *const names[] = {"keeping in place", "keeping elsewhere", "keeping of parts",
                                      "keeping of the residual", "keeping of nothing"};
  for (int where = 0; where < WHERES; where++) {
    bool good = true;
    launcher_step(names[where]);
    for (size_t i = 0; i < (quick ? 3 : 5 - (size_t)!ON_GPU); i++)
      for (int kind = 0; kind < KINDS; kind++) {
        const size_t n = sizes[i];
        if (n > 2000000 && (kind > 1 || where != OF_RESIDUAL)) continue;
        if (n > 100000 && !ON_GPU && kind > 2) continue;
        const uint64_t wanted[] = {n / 50 + 1, 1, n / 11, 0, UINT64_MAX};
        for (int j = 0; j < (n > 100000 ? 2 : 5); j++)
          good &= select_case(t, n, (enum kind)kind, (enum where)where, wanted[j], true);
        good &= select_case(t, n, (enum kind)kind, (enum where)where, 1, false);
      }
    report(t, good, names[where]);
  }
}
