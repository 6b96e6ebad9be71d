/* SPDX-License-Identifier: Apache-2.0 */
#include "reference_job.h"

#include <math.h>
#include <stdio.h>

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

void job_open(struct job *job, const sparse_allreduce_config_t *config, size_t n, int nranks)
{
  *job = (struct job){.n = n, .nranks = nranks, .describe = simple_paths[config->algorithm].name};
  job->ref = reference_create(config, n, nranks, NULL);
  assert_non_null(job->ref);
  job->gradients = calloc((size_t)nranks, sizeof *job->gradients);
  job->outstanding = calloc(n, sizeof *job->outstanding);
  assert_true(job->gradients && job->outstanding);
  for (int r = 0; r < nranks; r++) {
    job->gradients[r] = calloc(n, sizeof **job->gradients);
    assert_non_null(job->gradients[r]);
  }
}

void job_close(struct job *job)
{
  for (int r = 0; r < job->nranks; r++) free(job->gradients[r]);
  free(job->gradients);
  free(job->outstanding);
  reference_destroy(job->ref);
}

static void keep_account(struct job *job)
{
  const struct reference *ref = job->ref;
  if (ref->dense) return;
  for (int r = 0; r < job->nranks; r++)
    for (size_t i = 0; i < job->n; i++) job->outstanding[i] += job->gradients[r][i];
  for (size_t i = 0; i < job->n; i++)
    job->outstanding[i] -= ref->sums[i]; /* what of the sums is in the result */
}

void job_step(struct job *job)
{
  reference_step(job->ref, (const float *const *)job->gradients, NULL);
  keep_account(job);
}

void job_check_nothing_lost(const struct job *job)
{
  if (job->ref->config.algorithm == SPARSE_GTOPK && !job->ref->config.gtopk_exact_residual) return;
  for (size_t i = 0; i < job->n; i++) {
    double residual = 0;
    for (int r = 0; r < job->nranks; r++) residual += job->ref->ranks[r].residual[i];
    if (residual != job->outstanding[i])
      fail_msg("%s, n %zu, %d ranks, after %d steps: element %zu: %.17g in residuals, not %.17g",
               job->describe, job->n, job->nranks, (int)job->ref->step, i, residual,
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
