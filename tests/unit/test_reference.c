/* SPDX-License-Identifier: Apache-2.0 */
/* The reference against independent, slow and simple implementations; and in random small jobs
 * nothing is lost. (The library is another implementation: tests/gpu/sparse_steps.) */
#include <math.h>
#include <stdio.h>

#include "reference_job.h"
#include "unit.h"

enum { MAX_N = 257 };

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
    job_open(&job, &config, n, 1 + (int)job_below(&seed, JOB_RANKS));
    draw_intervals(&job.ranks[0]->constants, &seed);
    for (int r = 1; r < job.nranks; r++) job.ranks[r]->constants = job.ranks[0]->constants;
    snprintf(describe, sizeof describe, "job %d, %s, gradients %d", number,
             simple_paths[config.algorithm].name, kind);
    job.describe = describe;
    const int thinner = 1 + (int)job_below(&seed, 20); /* from that step on, which is exact */
    for (int step = 0; step < steps; step++) {
      for (int r = 0; r < job.nranks && step == thinner; r++)
        simple_set_density(job.ranks[r], config.density / 2);
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
    keep_largest(s->acc, s->offered, job->n, job->ranks[0]->k);
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
  keep_largest(own->list, own->in_list, job->n, job->ranks[0]->k);
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
    static struct dense_rank ranks[JOB_RANKS];
    float result[MAX_N];
    struct job job;
    sparse_allreduce_config_t config =
        job_config(algorithm, SPARSE_PRESET_VGG, job_below(&seed, 9) ? job_uniform(&seed) / 3 : 1);
    if (config.density == 0) continue;
    job_open(&job, &config, 1 + job_below(&seed, MAX_N), 1 + number % JOB_RANKS);
    memset(ranks, 0, sizeof ranks);
    for (int t = 0; t < 6; t++) {
      if (number % 2)
        fill_with_integers(&job, number / 2 % 8, &seed);
      else
        for (int r = 0; r < job.nranks; r++)
          for (size_t i = 0; i < job.n; i++) job.gradients[r][i] = (float)job_normal(&seed);
      job_step(&job);
      step(ranks, &job, result);
      if (!job_same_bits(result, job.ranks[0]->result, job.n))
        fail_msg("job %d, step %d", number, t);
      for (int r = 0; r < job.nranks; r++)
        if (!job_same_bits(ranks[r].acc, job.ranks[r]->acc, job.n))
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
    double threshold = job.ranks[0]->last.gaussian_threshold;
    if (!(fabs(threshold - 5 - table[t][1]) < 1e-12))
      fail_msg("density %g: %.15g", table[t][0], threshold - 5);
    job_close(&job);
  }
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
        chosen[j] += jobs[j].ranks[0]->last.global;
        for (int r = 0; r < RANKS; r++) offered[j] += jobs[j].ranks[r]->last.local;
      }
    }
    assert_in_range(chosen[0], chosen[1] / 2, 3 * chosen[1] / 2);
    assert_in_range(offered[0], offered[1] / 2, 3 * offered[1] / 2);
    for (int j = 0; j < 2; j++) job_close(&jobs[j]);
  }
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
        assert_true(job.ranks[0]->result[i] == (set[i] ? job.gradients[0][i] : 0));
      job_close(&job);
    }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_topka_simply),       cmocka_unit_test(test_gtopk_simply),
      cmocka_unit_test(test_gaussian_threshold), cmocka_unit_test(test_recovery),
      cmocka_unit_test(test_same_on_all_ranks),  cmocka_unit_test(test_random_small_jobs),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
