/* SPDX-License-Identifier: Apache-2.0 */
#include "reference_job.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "launcher.h"
#include "unit.h"

sparse_allreduce_config_t job_config(sparse_allreduce_algorithm_t algorithm, sparse_preset_t preset,
                                     double density)
{
  sparse_allreduce_config_t config = sparse_allreduce_config(preset);
  config.algorithm = algorithm;
  config.density = density;
  config.balance = 0;
  return config;
}

/* A rank on its way through a step. */
struct side {
  struct rank me; /* comes first: allgather() gets its address */
  struct job *job;
  pthread_t thread;
};

static void allgather(const struct rank *me, const void *mine, void *all, size_t bytes)
{
  struct job *job = ((const struct side *)me)->job;
  job->shared[me->rank] = mine;
  pthread_barrier_wait(&job->barrier);
  for (int r = 0; r < job->nranks; r++)
    memcpy((char *)all + (size_t)r * bytes, job->shared[r], bytes);
  pthread_barrier_wait(&job->barrier);
}

static void *run_side(void *argument)
{
  struct side *side = argument;
  struct simple *s = side->job->ranks[side->me.rank];
  s->me = &side->me;
  s->allgather = allgather;
  simple_step(s, side->job->gradients[s->rank], 0);
  return NULL;
}

void job_open(struct job *job, const sparse_allreduce_config_t *config, size_t n, int nranks)
{
  *job = (struct job){.n = n, .nranks = nranks, .describe = simple_paths[config->algorithm].name};
  job->gradients = calloc((size_t)nranks, sizeof *job->gradients);
  job->outstanding = calloc(n, sizeof *job->outstanding);
  assert_true(job->gradients && job->outstanding && nranks <= JOB_RANKS);
  pthread_barrier_init(&job->barrier, NULL, (unsigned)nranks);
  for (int r = 0; r < nranks; r++) {
    job->gradients[r] = calloc(n, sizeof **job->gradients);
    const struct rank me = {.rank = r, .nranks = nranks};
    job->ranks[r] = simple_create(NULL, &me, n, config); /* run_side() sets its `me` */
    assert_non_null(job->gradients[r]);
  }
}

void job_close(struct job *job)
{
  for (int r = 0; r < job->nranks; r++) {
    free(job->gradients[r]);
    simple_destroy(job->ranks[r]);
  }
  pthread_barrier_destroy(&job->barrier);
  free(job->gradients);
  free(job->outstanding);
}

void job_step(struct job *job)
{
  struct side sides[JOB_RANKS];
  for (int r = 0; r < job->nranks; r++) {
    sides[r] = (struct side){.me = {.rank = r, .nranks = job->nranks}, .job = job};
    assert_int_equal(pthread_create(&sides[r].thread, NULL, run_side, &sides[r]), 0);
  }
  for (int r = 0; r < job->nranks; r++) pthread_join(sides[r].thread, NULL);
  for (size_t i = 0; i < job->n && !job->ranks[0]->last.dense; i++) {
    for (int r = 0; r < job->nranks; r++) job->outstanding[i] += job->gradients[r][i];
    job->outstanding[i] -= job->ranks[0]->sums[i]; /* what of the sums is in the result */
  }
}

void job_check_nothing_lost(const struct job *job)
{
  const sparse_allreduce_config_t *config = &job->ranks[0]->config;
  if (config->algorithm == SPARSE_GTOPK && !config->gtopk_exact_residual) return;
  for (size_t i = 0; i < job->n; i++) {
    double residual = 0;
    for (int r = 0; r < job->nranks; r++) residual += job->ranks[r]->acc[i];
    if (residual != job->outstanding[i])
      fail_msg("%s, n %zu, %d ranks, after %d steps: element %zu: %.17g in residuals, not %.17g",
               job->describe, job->n, job->nranks, (int)job->ranks[0]->steps, i, residual,
               job->outstanding[i]);
  }
}

/* xorshift64*; a state of 0 would stay 0 */
uint64_t job_random(uint64_t *state)
{
  *state ^= *state >> 12;
  *state ^= *state << 25;
  *state ^= *state >> 27;
  return *state * 0x2545f4914f6cdd1dull;
}

uint64_t job_below(uint64_t *state, uint64_t limit)
{
  return (job_random(state) >> 33) % limit;
}

double job_uniform(uint64_t *state)
{
  return (double)(job_random(state) >> 11) * ldexp(1, -53);
}

double job_normal(uint64_t *state)
{
  double radius = sqrt(-2 * log(1 - job_uniform(state)));
  return radius * cos(2 * 3.14159265358979323846 * job_uniform(state));
}

bool job_same_bits(const void *a, const void *b, size_t count)
{
  return memcmp(a, b, count * sizeof(float)) == 0;
}
