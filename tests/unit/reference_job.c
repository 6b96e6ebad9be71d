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
  config.balance = SPARSE_BALANCE_NEVER;
  return config;
}

const char *job_name(sparse_allreduce_algorithm_t algorithm)
{
  static const char *const names[] = {"dense",           "topkA",      "topkA2", "topkAopt",
                                      "gtopk",           "oktopk",     "topkSA", "gaussiank",
                                      "gaussiankconcat", "gaussiankSA"};
  return names[algorithm];
}

void job_open(struct job *job, const sparse_allreduce_config_t *config, size_t n, int nranks)
{
  *job = (struct job){.n = n, .nranks = nranks, .describe = job_name(config->algorithm)};
  job->ref = reference_create(config, n, nranks);
  assert_non_null(job->ref);
  job->inv = invariants_create(job->ref);
  job->gradients = calloc((size_t)nranks, sizeof *job->gradients);
  job->outstanding = calloc(n, sizeof *job->outstanding);
  assert_true(job->inv && job->gradients && job->outstanding);
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
  invariants_destroy(job->inv);
  reference_destroy(job->ref);
}

static bool in_result(const struct reference *ref, uint32_t index)
{
  for (size_t e = 0; e < ref->nglobal; e++)
    if (ref->global[e].index == index) return true;
  return false;
}

static void keep_account(struct job *job)
{
  const struct reference *ref = job->ref;
  if (ref->dense) return;
  for (int r = 0; r < job->nranks; r++)
    for (size_t i = 0; i < job->n; i++) job->outstanding[i] += job->gradients[r][i];
  for (size_t e = 0; e < ref->nglobal; e++)
    job->outstanding[ref->global[e].index] -= ref->global[e].value;
  for (size_t d = 0; d < ref->ndiscarded && !ref->config.gtopk_exact_residual; d++)
    if (in_result(ref, ref->discarded[d].entry.index))
      job->outstanding[ref->discarded[d].entry.index] -= ref->discarded[d].entry.value;
}

void job_step(struct job *job)
{
  char text[2048];
  invariants_before(job->inv, job->ref);
  reference_step(job->ref, (const float *const *)job->gradients, NULL);
  if (invariants_after(job->inv, job->ref, text, sizeof text))
    fail_msg("%s, n %zu, %d ranks:\n%s", job->describe, job->n, job->nranks, text);
  keep_account(job);
}

void job_check_nothing_lost(const struct job *job)
{
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
