/* SPDX-License-Identifier: Apache-2.0 */
/* The published rules, written down literally, against the reference: where no mistake of theirs
 * strikes, both agree to the bit. */
#include "published.h"

#include <math.h>

#include "reference_job.h"
#include "unit.h"

/* Gradients as in training: heavy-tailed, partly the same on all ranks, drifting and shrinking. */
static void fill_drifting(float *const gradients[], size_t n, int nranks, int step)
{
  uint64_t shared = 12345, own = 777 + (uint64_t)step;
  for (size_t i = 0; i < n; i++) {
    double scale = exp(1.5 * job_normal(&shared) - 0.01 * step);
    double common = cos(6.28 * job_uniform(&shared) + 0.1 * step);
    for (int r = 0; r < nranks; r++)
      gradients[r][i] = (float)(scale * (common + 0.5 * job_normal(&own)));
  }
}

static struct job open_job(sparse_allreduce_algorithm_t algorithm, sparse_preset_t preset,
                           double density, size_t n, int nranks)
{
  struct job job;
  sparse_allreduce_config_t config = job_config(algorithm, preset, density);
  job_open(&job, &config, n, nranks);
  return job;
}

static const float *const *gradients_of(const struct job *job)
{
  return (const float *const *)job->gradients;
}

/* ---- no mistake strikes: the same bits --------------------------------------------------------*/

static void compare(const struct published *p, const struct job *job)
{
  const struct simple *first = job->ranks[0];
  assert_true(job_same_bits(p->result, first->result, p->n));
  const bool oktopk = first->config.algorithm == SPARSE_OKTOPK;
  assert_true(!oktopk || p->global_threshold == first->global_threshold);
  for (int r = 0; r < p->nranks; r++) {
    double ours = job->ranks[r]->local_threshold;
    if (first->config.algorithm == SPARSE_GAUSSIANK) /* means are not summed alike */
      assert_true(fabs(p->local_threshold[r] - ours) <= 1e-12 * ours);
    else
      assert_true(p->local_threshold[r] == ours);
    assert_int_equal(p->noffered[r], job->ranks[r]->last.local);
    assert_true(job_same_bits(p->residual[r], job->ranks[r]->acc, p->n));
    if (oktopk) assert_int_equal(p->boundaries[r], first->boundaries[r]);
  }
}

static void test_same_without_mistakes(void **state)
{
  (void)state;
  for (int preset = SPARSE_PRESET_VGG; preset <= SPARSE_PRESET_BERT; preset++)
    for (int nranks = 2; nranks <= 5; nranks += 3) {
      struct job job = open_job(SPARSE_OKTOPK, preset, 0.02, 4000, nranks);
      struct published *p = published_create(preset, 0.02, 4000, nranks);
      for (int step = 0; step < 135; step++) {
        fill_drifting(job.gradients, job.n, nranks, step);
        job_step(&job);
        assert_null(published_oktopk(p, gradients_of(&job)));
        compare(p, &job);
      }
      published_destroy(p);
      job_close(&job);
    }
}

/* How many elements of gradient + residual the threshold of the step before lets through. */
static size_t count_above(const struct job *job, int r)
{
  const struct simple *rank = job->ranks[r];
  size_t count = 0;
  for (size_t i = 0; i < job->n; i++)
    count += fabsf(job->gradients[r][i] + rank->acc[i]) > (float)rank->local_threshold;
  return count;
}

/* A threshold that lets too much through is raised before the capacity is tested: what it selects
 * then fits, and the published code, which has no capacity, selects the same. Every seventh
 * gradient is so much larger that the threshold of the step before lets more than 2k through. */
static void test_raising_comes_first(void **state)
{
  (void)state;
  enum { N = 50021, STEPS = 22 };
  for (int preset = SPARSE_PRESET_VGG; preset <= SPARSE_PRESET_LSTM; preset++)
    for (int nranks = 2; nranks <= 4; nranks += 2) {
      int overfull = 0;
      struct job job = open_job(SPARSE_OKTOPK, preset, 0.05, N, nranks);
      struct published *p = published_create(preset, 0.05, N, nranks);
      for (int step = 0; step < STEPS; step++) {
        bool above = false;
        fill_drifting(job.gradients, job.n, nranks, step);
        for (int r = 0; r < nranks; r++) {
          for (size_t i = 0; i < N && step % 7 == 6; i++) job.gradients[r][i] *= 1.75f;
          above |= step > 0 && count_above(&job, r) > job.ranks[0]->capacity;
        }
        job_step(&job);
        assert_null(published_oktopk(p, gradients_of(&job)));
        for (int r = 0; r < nranks; r++) assert_false(job.ranks[r]->last.overflowed);
        overfull += above && !job.ranks[0]->last.exact_local;
        compare(p, &job);
      }
      assert_true(overfull > 0);
      published_destroy(p);
      job_close(&job);
    }
}

/* Gradients whose tails are heavier or lighter than those of the normal distribution: thresholds
 * are raised or lowered, never both. */
static void test_gaussian_corrections(void **state)
{
  (void)state;
  uint64_t seed = 17;
  for (int preset = SPARSE_PRESET_VGG; preset <= SPARSE_PRESET_BERT; preset++)
    for (int light = 0; light < 2; light++) {
      size_t raised = 0, lowered = 0;
      struct job job = open_job(SPARSE_GAUSSIANK, preset, 0.02, 4000, 3);
      struct published *p = published_create(preset, 0.02, 4000, 3);
      for (int step = 0; step < 20; step++) {
        fill_drifting(job.gradients, job.n, 3, step);
        for (int r = 0; r < 3; r++)
          for (size_t i = 0; i < job.n; i++)
            if (light)
              job.gradients[r][i] =
                  (float)(job_uniform(&seed) + job_uniform(&seed) + job_uniform(&seed) - 1.5);
            else if (step % 2) /* so heavy that all corrections are not enough */
              job.gradients[r][i] *= fabsf(job.gradients[r][i]);
        job_step(&job);
        assert_null(published_gaussiank(p, gradients_of(&job), 2.3263478740408408));
        compare(p, &job);
        for (int r = 0; r < 3; r++) {
          const struct simple *rank = job.ranks[r];
          raised += rank->local_threshold > rank->last.gaussian_threshold;
          lowered += rank->local_threshold < rank->last.gaussian_threshold;
        }
      }
      if (light) assert_true(lowered > 0);
      if (!light) assert_int_equal(raised > 0, preset == SPARSE_PRESET_VGG);
      published_destroy(p);
      job_close(&job);
    }
}

static void test_topkaopt_raises(void **state)
{
  (void)state;
  for (int preset = SPARSE_PRESET_VGG; preset <= SPARSE_PRESET_BERT; preset++) {
    const char *raised = NULL;
    struct job job = open_job(SPARSE_TOPKAOPT, preset, 0.02, 3000, 3);
    struct published *p = published_create(preset, 0.02, 3000, 3);
    for (int step = 0; step < 70 && !raised; step++) {
      fill_drifting(job.gradients, job.n, 3, step);
      job_step(&job);
      raised = published_topkaopt(p, gradients_of(&job));
      if (!raised) compare(p, &job);
    }
    assert_int_equal(p->counter, preset == SPARSE_PRESET_BERT ? 70 : 1);
    assert_int_equal(raised == NULL, preset == SPARSE_PRESET_BERT);
    published_destroy(p);
    job_close(&job);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_same_without_mistakes),
      cmocka_unit_test(test_raising_comes_first),
      cmocka_unit_test(test_gaussian_corrections),
      cmocka_unit_test(test_topkaopt_raises),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
