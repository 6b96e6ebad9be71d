/* SPDX-License-Identifier: Apache-2.0 */
/* Loops with several threads: every turn runs once, whoever runs it; and a reference whose steps
 * are computed by a team gets the bits of one that computes alone. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "program/gradient.h"
#include "reference/parallel.h"
#include "reference_job.h"
#include "unit.h"

/* ---- turns ------------------------------------------------------------------------------------*/

enum { MOST_TURNS = 1000 };

struct turns {
  struct team *team;
  size_t inner; /* turns of the loop in each turn */
  atomic_int taken[MOST_TURNS];
  atomic_size_t inner_taken; /* the sum of their numbers, from 1 */
};

static void take_inner(void *context, size_t i)
{
  struct turns *turns = context;
  turns->inner_taken += i + 1;
}

static void take(void *context, size_t i)
{
  struct turns *turns = context;
  turns->taken[i]++;
  parallel_for(turns->team, turns->inner, take_inner, turns);
}

static bool runs_turns(struct team *team, size_t count, size_t inner)
{
  struct turns turns = {.team = team, .inner = inner};
  parallel_for(team, count, take, &turns);
  bool once = turns.inner_taken == count * inner * (inner + 1) / 2;
  for (size_t i = 0; i < MOST_TURNS; i++) once &= turns.taken[i] == (i < count);
  return once;
}

static void every_turn_once(void **state)
{
  (void)state;
  for (int threads = 0; threads <= 5; threads++) {
    struct team *team = team_create(threads);
    assert_int_equal(team != NULL, threads > 1);
    for (size_t count = 0; count < 8; count++) assert_true(runs_turns(team, count, 3));
    assert_true(runs_turns(team, MOST_TURNS, 0));
    assert_true(runs_turns(team, 10, 50));
    team_destroy(team);
  }
}

static void meet(void *context, size_t i)
{
  (void)i;
  pthread_barrier_wait(context);
}

/* Turns that wait for each other end only if as many threads take them. */
static void turns_run_side_by_side(void **state)
{
  (void)state;
  pthread_barrier_t barrier;
  struct team *team = team_create(3);
  assert_int_equal(pthread_barrier_init(&barrier, NULL, 3), 0);
  for (int i = 0; i < 100; i++) parallel_for(team, 3, meet, &barrier);
  pthread_barrier_destroy(&barrier);
  team_destroy(team);
}

static void *loop_often(void *team)
{
  bool good = true;
  for (int i = 0; i < 100; i++) good &= runs_turns(team, 20, 4);
  return good ? team : NULL;
}

static void several_threads_share_a_team(void **state)
{
  (void)state;
  pthread_t threads[4];
  struct team *team = team_create(3);
  for (int i = 0; i < 4; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, loop_often, team), 0);
  for (int i = 0; i < 4; i++) {
    void *result;
    pthread_join(threads[i], &result);
    assert_ptr_equal(result, team);
  }
  team_destroy(team);
}

static void ranges_cover_everything(void **state)
{
  (void)state;
  const size_t sizes[] = {1, 5, SHORTEST_RANGE, 3 * SHORTEST_RANGE - 1, 1 << 20, 0xfffffffe};
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
    const size_t n = sizes[s], count = range_count(n);
    size_t end = 0;
    assert_in_range(count, 1, MOST_RANGES);
    for (size_t i = 0; i < count; i++) {
      const struct range range = range_of(n, i);
      assert_int_equal(range.first, end);
      assert_true(range.end > range.first);
      end = range.end;
    }
    assert_int_equal(end, n);
  }
}

/* ---- steps ------------------------------------------------------------------------------------*/

static void assert_same_step(struct reference *a, struct reference *b)
{
  assert_int_equal(a->nglobal, b->nglobal);
  assert_memory_equal(a->global, b->global, a->nglobal * sizeof *a->global);
  assert_memory_equal(a->result, b->result, a->n * sizeof *a->result);
  assert_memory_equal(a->sums, b->sums, a->n * sizeof *a->sums);
  assert_memory_equal(&a->gradient_norm, &b->gradient_norm, sizeof a->gradient_norm);
  assert_memory_equal(&a->global_threshold, &b->global_threshold, sizeof a->global_threshold);
  assert_int_equal(a->nonfinite, b->nonfinite);
  const double xi[] = {reference_xi(a), reference_xi(b)};
  assert_memory_equal(&xi[0], &xi[1], sizeof *xi);
  for (int r = 0; r < a->nranks; r++) {
    const struct reference_rank *x = &a->ranks[r], *y = &b->ranks[r];
    assert_int_equal(x->noffered, y->noffered);
    assert_memory_equal(x->offered, y->offered, x->noffered * sizeof *x->offered);
    assert_memory_equal(x->acc, y->acc, a->n * sizeof *x->acc);
    assert_memory_equal(x->residual, y->residual, a->n * sizeof *x->residual);
    assert_memory_equal(&x->local_threshold, &y->local_threshold, sizeof x->local_threshold);
    assert_memory_equal(&x->gaussian_threshold, &y->gaussian_threshold, sizeof(double));
    assert_int_equal(x->selected_above, y->selected_above);
    assert_int_equal(x->selected_tie, y->selected_tie);
  }
}

/* Two ranks, four and a bit ranges, of normal values and of values that are often equal. */
static void a_team_computes_the_same_steps(void **state)
{
  (void)state;
  const size_t n = 4 * SHORTEST_RANGE + 4711;
  for (int a = 0; a < SPARSE_ALGORITHMS; a++) {
    const sparse_allreduce_config_t config =
        job_config((sparse_allreduce_algorithm_t)a, SPARSE_PRESET_VGG, 0.01);
    struct job alone, together;
    job_open(&alone, &config, n, 2);
    job_open(&together, &config, n, 2);
    together.ref->team = team_create(3);
    for (int step = 0; step < 4; step++) {
      const enum gradient_kind kind = step == 2 ? GRADIENT_TIES : GRADIENT_NORMAL;
      for (int r = 0; r < 2; r++) {
        const struct gradient g = gradient_make(kind, n, 1, (uint64_t)step, r, 2);
        for (size_t i = 0; i < n; i++)
          together.gradients[r][i] = alone.gradients[r][i] = gradient_float(&g, i);
        together.gradients[r][n - 5] = alone.gradients[r][n - 5] = step == 3 ? (float)NAN : 0;
      }
      job_step(&alone); /* looks at the invariants, too */
      job_step(&together);
      assert_same_step(alone.ref, together.ref);
    }
    team_destroy(together.ref->team);
    together.ref->team = NULL;
    job_close(&alone);
    job_close(&together);
  }
}

/* ---- invariants -------------------------------------------------------------------------------*/

/* What a team says of a wrong step is what one thread says: the first place, in each invariant. */
static void a_team_finds_the_same_violation(void **state)
{
  (void)state;
  const size_t n = 4 * SHORTEST_RANGE, wrong[] = {3 * SHORTEST_RANGE + 5, SHORTEST_RANGE + 7};
  const sparse_allreduce_config_t config = job_config(SPARSE_TOPKA, SPARSE_PRESET_VGG, 0.01);
  struct job job;
  char text[2][2048];
  job_open(&job, &config, n, 2);
  for (int r = 0; r < 2; r++) {
    const struct gradient g = gradient_make(GRADIENT_NORMAL, n, 1, 0, r, 2);
    for (size_t i = 0; i < n; i++) job.gradients[r][i] = gradient_float(&g, i);
  }
  job_step(&job);
  struct team *team = team_create(3);
  for (int i = 0; i < 2; i++) {
    job.ref->result[wrong[i]] += 1;
    job.ref->ranks[1].residual[wrong[i] - 2 * (size_t)i] += 1;
  }
  for (int i = 0; i < 2; i++) {
    job.ref->team = i == 0 ? NULL : team;
    assert_int_equal(invariants_after(job.inv, job.ref, text[i], sizeof text[i]), 1);
  }
  job.ref->team = NULL;
  assert_string_equal(text[0], text[1]);
  assert_non_null(strstr(text[0], "I2: rank 1, element 32773: residual"));
  assert_non_null(strstr(text[0], "I3: element 32775: result"));
  team_destroy(team);
  job_close(&job);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_turn_once),
      cmocka_unit_test(turns_run_side_by_side),
      cmocka_unit_test(several_threads_share_a_team),
      cmocka_unit_test(ranges_cover_everything),
      cmocka_unit_test(a_team_computes_the_same_steps),
      cmocka_unit_test(a_team_finds_the_same_violation),
  };
  alarm(120); /* a loop that nobody ends would wait for ever */
  return cmocka_run_group_tests(tests, NULL, NULL);
}
