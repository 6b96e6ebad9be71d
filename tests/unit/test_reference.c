/* SPDX-License-Identifier: Apache-2.0 */
/* The reference against independent, slow and simple implementations, against itself on related
 * gradients; and in random small jobs nothing is lost. */
#include <math.h>
#include <stdio.h>

#include "reference_job.h"
#include "unit.h"

enum { MAX_RANKS = 8, MAX_N = 257 };

static bool has_gaussian_threshold(sparse_allreduce_algorithm_t algorithm)
{
  return algorithm == SPARSE_GAUSSIANK || algorithm == SPARSE_GAUSSIANKCONCAT;
}

/* ---- random jobs ------------------------------------------------------------------------------*/

/* Integers: all sums are exact, and ties are frequent. */
static void fill_with_integers(struct job *job, int kind, uint64_t *seed)
{
  size_t n = job->n, hot = job_below(seed, n);
  for (int r = 0; r < job->nranks; r++) {
    bool idle = kind == 5 && job_below(seed, 3) == 0;
    for (size_t i = 0; i < n; i++) {
      int64_t v = (int64_t)job_below(seed, 7) - 3;                             /* ties */
      if (kind == 1) v = job_below(seed, 16) ? 0 : 9 * v;                      /* mostly zeros */
      if (kind == 2) v = v * v * v * (int64_t)job_below(seed, 40);             /* heavy tails */
      if (kind == 3) v = i % (size_t)job->nranks == (size_t)r ? 1 + 5 * v : 0; /* disjoint */
      if (kind == 4) v = i / 8 == hot / 8 ? 100 * v : v / 3; /* in one region, which moves */
      if (kind == 6) v = 2;                                  /* all equal */
      if (kind == 7) v = (i + (size_t)r) % 2 ? v : (r % 2 ? 4 : -4); /* cancels between ranks */
      job->gradients[r][i] = (float)(idle ? 0 : v);
    }
  }
}

static sparse_allreduce_config_t random_config(uint64_t *seed)
{
  sparse_allreduce_algorithm_t algorithm = job_below(seed, SPARSE_ALGORITHMS);
  sparse_preset_t preset = job_below(seed, 3);
  double density = job_below(seed, 8) ? 0.3 * job_uniform(seed) + 1e-4 : 1;
  sparse_allreduce_config_t config = job_config(algorithm, preset, density);
  if (job_below(seed, 4) == 0) config.warmup_steps = (long)job_below(seed, 5);
  config.gtopk_exact_residual = (int)job_below(seed, 2);
  return config;
}

static void draw_intervals(struct sparse_constants *c, uint64_t *seed)
{
  if (job_below(seed, 2) == 0) return;
  c->local_interval = c->topkaopt_interval = 1 + (int)job_below(seed, 9);
  c->global_interval = 1 + (int)job_below(seed, 9);
  c->repartition_interval = 1 + (int)job_below(seed, 9);
}

static void test_random_small_jobs(void **state)
{
  (void)state;
  uint64_t seed = 42;
  for (int number = 0; number < 1200; number++) {
    char describe[80];
    struct job job;
    sparse_allreduce_config_t config = random_config(&seed);
    size_t n = 1 + job_below(&seed, job_below(&seed, 4) ? MAX_N : 12);
    int steps = 1 + (int)job_below(&seed, job_below(&seed, 4) ? 12 : 70);
    int kind = (int)job_below(&seed, 9);
    job_open(&job, &config, n, 1 + (int)job_below(&seed, MAX_RANKS));
    draw_intervals(&job.ref->constants, &seed);
    snprintf(describe, sizeof describe, "job %d, %s, gradients %d", number,
             simple_paths[config.algorithm].name, kind);
    job.describe = describe;
    for (int step = 0; step < steps; step++) {
      fill_with_integers(&job, kind == 8 ? (int)job_below(&seed, 8) : kind, &seed);
      job_step(&job);
    }
    job_check_nothing_lost(&job);
    job_close(&job);
  }
}

/* ---- slow and simple implementations ----------------------------------------------------------*/

struct ranked {
  uint32_t index;
  float value;
};

static int larger_first(const void *a, const void *b)
{
  const struct ranked *x = a, *y = b;
  if (fabsf(x->value) != fabsf(y->value)) return fabsf(x->value) < fabsf(y->value) ? 1 : -1;
  return x->index < y->index ? -1 : x->index > y->index;
}

/* Marks the k largest of those that are in the set; out of the set go the others. */
static void keep_largest(const float *values, bool *set, size_t n, size_t k)
{
  struct ranked *sorted = calloc(n, sizeof *sorted);
  size_t count = 0;
  assert_non_null(sorted);
  for (size_t i = 0; i < n; i++)
    if (set[i]) sorted[count++] = (struct ranked){(uint32_t)i, values[i]};
  qsort(sorted, count, sizeof *sorted, larger_first);
  for (size_t e = k; e < count; e++) set[sorted[e].index] = false;
  free(sorted);
}

/* What one node of gtopk's tree, or one rank of topkA, holds: dense vectors. */
struct dense_rank {
  float acc[MAX_N], list[MAX_N];
  bool offered[MAX_N], in_list[MAX_N];
};

static void plain_select(struct dense_rank *ranks, const struct job *job)
{
  for (int r = 0; r < job->nranks; r++) {
    struct dense_rank *s = &ranks[r];
    for (size_t i = 0; i < job->n; i++) {
      s->acc[i] += job->gradients[r][i];
      s->offered[i] = true;
    }
    keep_largest(s->acc, s->offered, job->n, job->ref->k);
  }
}

static void plain_topka(struct dense_rank *ranks, const struct job *job, float *result)
{
  plain_select(ranks, job);
  for (size_t i = 0; i < job->n; i++) {
    float sum = 0;
    for (int r = 0; r < job->nranks; r++) {
      if (!ranks[r].offered[i]) continue;
      sum += ranks[r].acc[i];
      ranks[r].acc[i] = 0;
    }
    result[i] = sum / (float)job->nranks;
  }
}

/* The list of the ranks first ... first + count - 1: count is rounded up to a power of two, the
 * first half is merged with the second. Recursive, where the reference goes round by round. */
static void plain_tree(struct dense_rank *ranks, const struct job *job, int first, int count)
{
  struct dense_rank *own = &ranks[first], *other = &ranks[first + count / 2];
  if (count == 1) {
    memcpy(own->list, own->acc, sizeof own->list);
    memcpy(own->in_list, own->offered, sizeof own->in_list);
    return;
  }
  plain_tree(ranks, job, first, count / 2);
  if (first + count / 2 >= job->nranks) return;
  plain_tree(ranks, job, first + count / 2, count / 2);
  for (size_t i = 0; i < job->n; i++) {
    if (own->in_list[i] && other->in_list[i])
      own->list[i] += other->list[i];
    else if (other->in_list[i])
      own->list[i] = other->list[i];
    own->in_list[i] |= other->in_list[i];
  }
  keep_largest(own->list, own->in_list, job->n, job->ref->k);
}

static void plain_gtopk(struct dense_rank *ranks, const struct job *job, float *result)
{
  int count = 1;
  while (count < job->nranks) count *= 2;
  plain_select(ranks, job);
  plain_tree(ranks, job, 0, count);
  for (size_t i = 0; i < job->n; i++) {
    result[i] = ranks[0].in_list[i] ? ranks[0].list[i] / (float)job->nranks : 0;
    for (int r = 0; r < job->nranks; r++)
      if (ranks[0].in_list[i] && ranks[r].offered[i]) ranks[r].acc[i] = 0;
  }
}

static void compare_with_plain(sparse_allreduce_algorithm_t algorithm,
                               void (*step)(struct dense_rank *, const struct job *, float *))
{
  uint64_t seed = 7;
  for (int number = 0; number < 160; number++) {
    static struct dense_rank ranks[MAX_RANKS];
    float result[MAX_N];
    struct job job;
    sparse_allreduce_config_t config =
        job_config(algorithm, SPARSE_PRESET_VGG, job_below(&seed, 9) ? job_uniform(&seed) / 3 : 1);
    if (config.density == 0) continue;
    job_open(&job, &config, 1 + job_below(&seed, MAX_N), 1 + number % MAX_RANKS);
    memset(ranks, 0, sizeof ranks);
    for (int t = 0; t < 6; t++) {
      if (number % 2)
        fill_with_integers(&job, number / 2 % 8, &seed);
      else
        for (int r = 0; r < job.nranks; r++)
          for (size_t i = 0; i < job.n; i++) job.gradients[r][i] = (float)job_normal(&seed);
      job_step(&job);
      step(ranks, &job, result);
      if (!job_same_bits(result, job.ref->result, job.n)) fail_msg("job %d, step %d", number, t);
      for (int r = 0; r < job.nranks; r++)
        if (!job_same_bits(ranks[r].acc, job.ref->ranks[r].residual, job.n))
          fail_msg("job %d, step %d: residual of rank %d", number, t, r);
    }
    job_close(&job);
  }
}

static void test_topka_simply(void **state)
{
  (void)state;
  compare_with_plain(SPARSE_TOPKA, plain_topka);
}

static void test_gtopk_simply(void **state)
{
  (void)state;
  compare_with_plain(SPARSE_GTOPK, plain_gtopk);
}

/* ---- thresholds -------------------------------------------------------------------------------*/

/* Values of Phi^-1(1 - d/2) from tables of the normal distribution, and the normal gradients for
 * which they are made. */
static void test_gaussian_threshold(void **state)
{
  (void)state;
  static const double table[][2] = {{1, 0},
                                    {0.5, 0.674489750196082},
                                    {0.1, 1.64485362695147},
                                    {0.02, 2.32634787404084},
                                    {0.01, 2.57582930354890},
                                    {0.001, 3.29052673149190},
                                    {2e-9, 5.99780701500768}};
  for (size_t t = 0; t < sizeof table / sizeof *table; t++) {
    struct job job;
    sparse_allreduce_config_t config = job_config(SPARSE_GAUSSIANK, SPARSE_PRESET_VGG, table[t][0]);
    job_open(&job, &config, 3, 1);
    memcpy(job.gradients[0], (float[]){4, 5, 6}, 3 * sizeof(float)); /* mean 5, deviation 1 */
    job_step(&job);
    double threshold = job.ref->ranks[0].gaussian_threshold;
    if (!(fabs(threshold - 5 - table[t][1]) < 1e-12))
      fail_msg("density %g: %.15g", table[t][0], threshold - 5);
    job_close(&job);
  }
}

static void test_gaussian_threshold_of_two(void **state)
{
  (void)state;
  struct job job;
  sparse_allreduce_config_t config = job_config(SPARSE_GAUSSIANK, SPARSE_PRESET_VGG, 0.5);
  job_open(&job, &config, 2, 1);
  memcpy(job.gradients[0], (float[]){4, 6}, 2 * sizeof(float));
  job_step(&job);
  assert_true(fabs(job.ref->ranks[0].gaussian_threshold - 5 - 0.674489750196082 * sqrt(2)) < 1e-12);
  job_close(&job);
}

/* n = 1: the deviation is not a number, and nothing is above such a threshold. */
static void test_gaussian_threshold_of_one(void **state)
{
  (void)state;
  struct job job;
  sparse_allreduce_config_t config = job_config(SPARSE_GAUSSIANK, SPARSE_PRESET_VGG, 1);
  job_open(&job, &config, 1, 2);
  job.gradients[0][0] = job.gradients[1][0] = 3;
  job_step(&job);
  assert_true(isnan(job.ref->ranks[0].local_threshold));
  assert_int_equal(job.ref->ranks[0].selected_above, 0x7fffffff);
  assert_int_equal(job.ref->ranks[0].selected_tie, -1);
  assert_int_equal(job.ref->ranks[0].noffered, 0);
  assert_true(job.ref->result[0] == 0 && job.ref->ranks[1].residual[0] == 3);
  job_close(&job);
}

/* Injected thresholds replace the computed one. A negative one selects everything, which is too
 * much if it is more than the capacity. */
static void test_injected_thresholds(void **state)
{
  (void)state;
  for (size_t n = 100; n <= 5000; n += 4900) {
    struct reference *ref;
    sparse_allreduce_config_t config = job_config(SPARSE_GAUSSIANK, SPARSE_PRESET_VGG, 0.01);
    float *gradient = calloc(n, sizeof *gradient);
    assert_non_null(gradient);
    for (size_t i = 0; i < n; i++) gradient[i] = (float)(i % 50);
    ref = reference_create(&config, n, 1, NULL);
    assert_non_null(ref);
    reference_step(ref, (const float *const[]){gradient}, (double[]){-1});
    assert_int_equal(ref->ranks[0].selected_above, n == 100 ? 0 : 0x42440000); /* 49 */
    assert_int_equal(ref->ranks[0].selected_tie, n == 100 ? 99 : 2499);
    assert_int_equal(ref->ranks[0].noffered, n == 100 ? 100 : ref->k);
    assert_int_equal(ref->ranks[0].overflowed, n == 5000);
    assert_true(ref->ranks[0].gaussian_threshold > 0);
    reference_destroy(ref);
    free(gradient);
  }
}

/* More above an old threshold than there is room for. */
static void test_overflow(void **state)
{
  (void)state;
  for (int oktopk = 0; oktopk < 2; oktopk++) {
    struct job job;
    sparse_allreduce_config_t config =
        job_config(oktopk ? SPARSE_OKTOPK : SPARSE_TOPKAOPT, SPARSE_PRESET_VGG, 0.01);
    job_open(&job, &config, 10000, 3);
    for (int step = 0; step < 4; step++) {
      /* rank 1 wakes up in step 1: all of it is above its threshold of the step before */
      for (int r = 0; r < 3; r++)
        for (size_t i = 0; i < job.n; i++) {
          float v = (float)((i * 7919 + 11) % 997);
          job.gradients[r][i] = step == 0 ? v : r == 1 ? v + 5000 : 0;
        }
      job_step(&job);
      assert_int_equal(job.ref->ranks[1].overflowed, step > 0);
      assert_false(job.ref->ranks[0].overflowed || job.ref->ranks[2].overflowed);
      assert_int_equal(job.ref->ranks[0].selected_tie, -1);
      if (step > 0) assert_int_equal(job.ref->ranks[1].noffered, 100);
      if (step > 0) assert_true(job.ref->ranks[1].selected_tie >= 0);
    }
    job_check_nothing_lost(&job);
    job_close(&job);
  }
}

/* The factors of a step in which much more is selected than in the last one. */
static void test_raise(void **state)
{
  (void)state;
  struct job job;
  sparse_allreduce_config_t config = job_config(SPARSE_OKTOPK, SPARSE_PRESET_VGG, 0.1);
  job_open(&job, &config, 1000, 1);
  for (size_t i = 0; i < 1000; i++) job.gradients[0][i] = (float)i;
  job_step(&job); /* 901 ... 999 are offered; above 900 */
  assert_true(job.ref->ranks[0].local_threshold == 900);
  memset(job.gradients[0], 0, 1000 * sizeof(float));
  /* The residual has 0 ... 900. Now 99 elements get 1000 and 50 become 976 ... 927: 148 are above
   * 900, as many above 927, and 121 above 954.81, which is no longer too much. */
  for (size_t i = 901; i < 1000; i++) job.gradients[0][i] = 1000;
  for (size_t i = 0; i < 50; i++) job.gradients[0][i] = 976 - 2 * (float)i;
  job_step(&job);
  assert_int_equal(job.ref->ranks[0].noffered, 121);
  assert_true(job.ref->ranks[0].local_threshold == 900 * 1.03 * 1.03);
  job_close(&job);
}

/* Steps without any gradient leave thresholds of 0. The steps after them find others soon: they
 * offer and choose about as much as the same steps of a job that begins with them. */
static void test_recovery(void **state)
{
  (void)state;
  enum { STEPS = 12, RANKS = 8 };
  for (int quiet = 1; quiet <= 40; quiet += 39) {
    uint64_t seed = 3;
    size_t offered[2] = {0}, chosen[2] = {0};
    struct job jobs[2]; /* the first one has quiet steps */
    sparse_allreduce_config_t config = job_config(SPARSE_OKTOPK, SPARSE_PRESET_BERT, 0.01);
    for (int j = 0; j < 2; j++) job_open(&jobs[j], &config, 20000, RANKS);
    for (int step = 0; step < quiet; step++) job_step(&jobs[0]);
    for (int step = 0; step < STEPS; step++) {
      for (int r = 0; r < RANKS; r++)
        for (size_t i = 0; i < jobs[0].n; i++)
          jobs[0].gradients[r][i] = jobs[1].gradients[r][i] = (float)exp(2 * job_normal(&seed));
      for (int j = 0; j < 2; j++) {
        job_step(&jobs[j]);
        chosen[j] += jobs[j].ref->nglobal;
        for (int r = 0; r < RANKS; r++) offered[j] += jobs[j].ref->ranks[r].noffered;
      }
    }
    assert_in_range(chosen[0], chosen[1] / 2, 3 * chosen[1] / 2);
    assert_in_range(offered[0], offered[1] / 2, 3 * offered[1] / 2);
    for (int j = 0; j < 2; j++) job_close(&jobs[j]);
  }
}

/* From a step on the density is another one: that step is exact, and nothing is lost. */
static void test_density_changes(void **state)
{
  (void)state;
  for (int a = SPARSE_TOPKA; a < SPARSE_ALGORITHMS; a++) {
    uint64_t seed = 4;
    struct job job;
    sparse_allreduce_config_t config = job_config(a, SPARSE_PRESET_VGG, 0.2);
    config.gtopk_exact_residual = 1;
    job_open(&job, &config, 500, 3);
    for (int step = 0; step < 12; step++) {
      if (step == 5) reference_set_density(job.ref, 0.02);
      fill_with_integers(&job, 2, &seed);
      job_step(&job);
      job_check_nothing_lost(&job);
      const bool exact = step == 0 || step == 5;
      assert_int_equal(job.ref->exact_global, a == SPARSE_OKTOPK && exact);
      for (int r = 0; r < 3 && exact && !has_gaussian_threshold(a); r++)
        assert_in_range(job.ref->ranks[r].noffered, 1, step == 5 ? 10 : 100);
    }
    job_close(&job);
  }
}

/* ---- related gradients ------------------------------------------------------------------------*/

/* The same job on changed gradients: gradient i of it goes to element i * stretch, times factor. */
static void compare_with_changed(sparse_allreduce_algorithm_t algorithm, float factor,
                                 size_t stretch, bool integers)
{
  uint64_t seed = 11;
  struct job job, changed;
  sparse_allreduce_config_t config = job_config(algorithm, SPARSE_PRESET_VGG, 0.125);
  sparse_allreduce_config_t thinner = config;
  thinner.density /= (double)stretch;
  job_open(&job, &config, 256, 3);
  job_open(&changed, &thinner, 256 * stretch, 3);
  struct sparse_constants *c = &job.ref->constants;
  c->local_interval = c->topkaopt_interval = c->global_interval = 8;
  changed.ref->constants = *c;
  for (int step = 0; step < 40; step++) {
    for (int r = 0; r < 3; r++)
      for (size_t i = 0; i < job.n; i++) {
        double v = exp(2 * job_normal(&seed)) * (job_below(&seed, 2) ? 1 : -1);
        job.gradients[r][i] = (float)(integers ? trunc(v) + (v < 0 ? -1 : 1) : v);
        changed.gradients[r][i * stretch] = factor * job.gradients[r][i];
      }
    job_step(&job);
    job_step(&changed);
    if (!job.ref->fell_back && !changed.ref->fell_back) /* or there are no lists */
      assert_int_equal(job.ref->nglobal, changed.ref->nglobal);
    assert_true(job.ref->global_threshold * fabsf(factor) == changed.ref->global_threshold);
    for (int r = 0; r < 3; r++) {
      assert_int_equal(job.ref->ranks[r].noffered, changed.ref->ranks[r].noffered);
      for (size_t i = 0; i < job.n; i++)
        assert_true(job.ref->ranks[r].residual[i] * factor ==
                    changed.ref->ranks[r].residual[i * stretch]);
    }
    for (size_t i = 0; i < job.n; i++)
      assert_true(job.ref->result[i] * factor == changed.ref->result[i * stretch]);
  }
  job_close(&job);
  job_close(&changed);
}

static void test_scaling(void **state)
{
  (void)state;
  for (int a = 0; a < SPARSE_ALGORITHMS; a++) compare_with_changed(a, 0x1p-9f, 1, false);
}

/* Not for thresholds from the mean, which changes its sign and is added. */
static void test_negation(void **state)
{
  (void)state;
  for (int a = 0; a < SPARSE_ALGORITHMS; a++)
    if (!has_gaussian_threshold(a)) compare_with_changed(a, -1, 1, false);
}

/* Integers, since regions and with them the order of sums change. */
static void test_zeros_between(void **state)
{
  (void)state;
  for (int a = 0; a < SPARSE_ALGORITHMS; a++)
    if (!has_gaussian_threshold(a)) compare_with_changed(a, 1, 3, true);
}

/* On all ranks the same gradient without ties, with few bits so that sums are exact: what is global
 * is what is local. */
static void test_same_on_all_ranks(void **state)
{
  (void)state;
  static const int algorithms[] = {SPARSE_TOPKA, SPARSE_TOPKA2, SPARSE_GTOPK, SPARSE_TOPKSA,
                                   SPARSE_OKTOPK};
  for (size_t a = 0; a < sizeof algorithms / sizeof *algorithms; a++)
    for (int nranks = 1; nranks <= 8; nranks *= 2) {
      struct job job;
      uint64_t seed = 5;
      bool set[200];
      sparse_allreduce_config_t config = job_config(algorithms[a], SPARSE_PRESET_VGG, 0.1);
      job_open(&job, &config, 200, nranks);
      for (size_t i = 0; i < 200; i++) {
        float v = truncf((float)job_normal(&seed) * 0x1p17f);
        for (int r = 0; r < nranks; r++) job.gradients[r][i] = v;
        set[i] = true;
      }
      job_step(&job);
      /* a threshold lets through one less than k */
      keep_largest(job.gradients[0], set, 200, algorithms[a] == SPARSE_OKTOPK ? 19 : 20);
      for (size_t i = 0; i < 200; i++)
        assert_true(job.ref->result[i] == (set[i] ? job.gradients[0][i] : 0));
      job_close(&job);
    }
}

/* Everything is offered: the dense result, but for the order of sums. */
static void test_density_one(void **state)
{
  (void)state;
  static const int algorithms[] = {SPARSE_TOPKA, SPARSE_TOPKA2, SPARSE_GTOPK, SPARSE_TOPKSA};
  uint64_t seed = 13;
  for (size_t a = 0; a < sizeof algorithms / sizeof *algorithms; a++) {
    struct job job, dense;
    sparse_allreduce_config_t config = job_config(algorithms[a], SPARSE_PRESET_VGG, 1);
    job_open(&job, &config, 250, 5);
    config.algorithm = SPARSE_DENSE;
    job_open(&dense, &config, 250, 5);
    for (int r = 0; r < 5; r++)
      for (size_t i = 0; i < 250; i++)
        job.gradients[r][i] = dense.gradients[r][i] = (float)job_normal(&seed);
    job_step(&job);
    job_step(&dense);
    assert_int_equal(job.ref->fell_back, algorithms[a] == SPARSE_TOPKSA);
    for (size_t i = 0; i < 250; i++) {
      double size = 0;
      assert_true(dense.ref->result[i] == dense.ref->sums[i] / 5);
      for (int r = 0; r < 5; r++) size += fabs(job.gradients[r][i]);
      assert_true(fabs(job.ref->result[i] - dense.ref->result[i]) <= 5 * ldexp(1, -23) * size);
      for (int r = 0; r < 5; r++) assert_true(job.ref->ranks[r].residual[i] == 0);
    }
    job_close(&job);
    job_close(&dense);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_topka_simply),
      cmocka_unit_test(test_gtopk_simply),
      cmocka_unit_test(test_gaussian_threshold),
      cmocka_unit_test(test_gaussian_threshold_of_two),
      cmocka_unit_test(test_gaussian_threshold_of_one),
      cmocka_unit_test(test_injected_thresholds),
      cmocka_unit_test(test_overflow),
      cmocka_unit_test(test_raise),
      cmocka_unit_test(test_recovery),
      cmocka_unit_test(test_density_changes),
      cmocka_unit_test(test_scaling),
      cmocka_unit_test(test_negation),
      cmocka_unit_test(test_zeros_between),
      cmocka_unit_test(test_same_on_all_ranks),
      cmocka_unit_test(test_density_one),
      cmocka_unit_test(test_random_small_jobs),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
