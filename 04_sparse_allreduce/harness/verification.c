/* SPDX-License-Identifier: Apache-2.0 */
#include "program.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "float16.h"

void verification_init(struct verification *v, const struct runner *r, bool measures_xi)
{
  const size_t bytes = r->count * sizeof(float);
  *v = (struct verification){.runner = r, .host = launcher_allocate(bytes)};
  v->ref = simple_create(NULL, r->job->me, r->count, &r->config);
  if (r->job->constants) v->ref->constants = *r->job->constants;
  if (measures_xi) v->mean = launcher_allocate(bytes);
  if (r->weights) v->weights = launcher_allocate(bytes);
}

void verification_free(struct verification *v)
{
  simple_destroy(v->ref);
  free(v->host);
  free(v->weights);
  free(v->mean);
}

/* Copies a vector from device memory to v->host, as float. */
static void fetch(struct verification *v, const void *from, ncclDataType_t type)
{
  const size_t n = v->runner->count, size = type == ncclFloat ? 4 : 2;
  uint16_t *words = type == ncclFloat ? NULL : launcher_allocate(n * size);
  CUDACHECK(cudaMemcpy(words ? (void *)words : v->host, from, n * size, cudaMemcpyDeviceToHost));
  for (size_t i = 0; words && i < n; i++)
    v->host[i] = type == ncclHalf ? half_to_float(words[i]) : bfloat16_to_float(words[i]);
  free(words);
}

/* ---- xi -------------------------------------------------------------------------------------- */

/* The paper's measure of what selecting costs is the distance between the result and the k largest
 * entries of the mean of all acc, relative to the norm of the mean gradient. These are both means,
 * before the reference's step overwrites ref->result. v->host has the gradient. */
static void measure_means(struct verification *v)
{
  struct simple *ref = v->ref;
  double squares = 0;
  for (size_t i = 0; i < ref->n; i++) v->mean[i] = isfinite(v->host[i]) ? v->host[i] : 0;
  simple_sum(ref, v->mean, ref->result);
  for (size_t i = 0; i < ref->n; i++) {
    squares += (double)ref->result[i] * ref->result[i];
    v->mean[i] += ref->acc[i];
  }
  v->gradient_norm = sqrt(squares) / v->runner->job->me->nranks;
  simple_sum(ref, v->mean, ref->result);
  for (size_t i = 0; i < ref->n; i++)
    v->mean[i] = ref->result[i] / (float)v->runner->job->me->nranks;
}

static void measure_xi(struct verification *v)
{
  const struct simple *ref = v->ref;
  const sparse_allreduce_statistics_t *s = &ref->last;
  const bool oktopk = ref->config.algorithm == SPARSE_OKTOPK;
  double squares = 0;
  if (v->runner->job->me->rank != 0 || /* the others would find the same */
      (oktopk && (s->exact_global || 4 * s->global <= ref->t || s->global >= 3 * ref->t)))
    return;
  const struct simple_rule largest = simple_host_largest(v->mean, ref->n, ref->k);
  for (size_t i = 0; i < ref->n; i++) {
    const double best = simple_chosen(largest, i, v->mean[i]) ? v->mean[i] : 0;
    squares += (best - ref->result[i]) * (best - ref->result[i]);
  }
  v->xi += squares == 0 ? 0 : sqrt(squares) / v->gradient_norm;
  v->xi_steps++;
}

/* ---- comparisons ----------------------------------------------------------------------------- */

/* All return whether the values are the same. If they are not, a line says so. */

#define WRONG(v, format, ...)                                                              \
  (launcher_error("%s, step %llu: " format, simple_paths[(v)->ref->config.algorithm].name, \
                  (unsigned long long)(v)->ref->last.step, __VA_ARGS__),                   \
   false)

/* An integer, exact in a double, or a threshold. NaN: the path has no such threshold. */
static bool same_number(const struct verification *v, const char *what, double got, double expected)
{
  return isnan(expected) || got == expected ||
         WRONG(v, "%s is %.17g, expected %.17g", what, got, expected);
}

static bool wrong_element(const struct verification *v, const char *what, size_t i, float got,
                          float expected)
{
  return WRONG(v, "%s: element %zu is %.9g (0x%08x), expected %.9g (0x%08x)", what, i, (double)got,
               float16_bits_of(got), (double)expected, float16_bits_of(expected));
}

/* All NaNs are the same: the stand-in has those of its processor. */
static bool same_float(float got, float expected)
{
  return memcmp(&got, &expected, sizeof got) == 0 || (isnan(got) && isnan(expected));
}

/* A dense result that was made of entries has 0 where the average is -0: it began as zeros. */
static bool same_floats(const struct verification *v, const char *what, const float *got,
                        const float *expected)
{
  if (memcmp(got, expected, v->ref->n * sizeof *got) == 0) return true;
  for (size_t i = 0; i < v->ref->n; i++)
    if (!same_float(got[i], expected[i]) && !(v->runner->dense && got[i] == 0 && expected[i] == 0))
      return wrong_element(v, what, i, got[i], expected[i]);
  return true;
}

static bool same_statistics(const struct verification *v)
{
  const sparse_allreduce_statistics_t *got = &v->runner->last;
  const sparse_allreduce_statistics_t *expected = &v->ref->last;
  const double gaussian = expected->gaussian_threshold; /* the host adds in another order */
#define SAME(field) same_number(v, #field, (double)got->field, (double)expected->field)
  if (!SAME(step) || !SAME(k) || !SAME(capacity) || !SAME(dense) || !SAME(exact_global) ||
      !SAME(repartitioned) || !SAME(words_sent))
    return false;
  if (expected->dense) return true;
  return SAME(local) && SAME(overflowed) && SAME(fell_back) && SAME(exact_local) &&
         (expected->fell_back || SAME(global)) && SAME(local_threshold) && SAME(global_threshold) &&
         (fabs(got->gaussian_threshold - gaussian) <= 1e-6 * fabs(gaussian) ||
          SAME(gaussian_threshold));
#undef SAME
}

/* The entries of the result before the division. */
static bool same_entries(const struct verification *v)
{
  const struct simple *ref = v->ref;
  const struct runner *left = v->runner;
  const bool none = ref->last.dense || ref->last.fell_back;
  if (none || !left->entries)
    return same_number(v, "number of sparse results", left->entries != NULL, !none);
  const size_t count = ref->last.global;
  if (!same_number(v, "number of entries", (double)left->nentries, (double)count)) return false;
  struct sparse_pair *got = launcher_allocate(count * sizeof *got);
  CUDACHECK(cudaMemcpy(got, left->entries, count * sizeof *got, cudaMemcpyDeviceToHost));
  bool same = true;
  for (size_t e = 0; e < count && same; e++) {
    const struct sparse_pair expected = ref->global[e];
    same = same_number(v, "index of an entry", got[e].index, expected.index) &&
           (same_float(got[e].value, expected.value) ||
            wrong_element(v, "sum", got[e].index, got[e].value, expected.value));
  }
  free(got);
  return same;
}

/* v->host has the result. In a dense step ref->sums has the sums of the gradients' magnitudes. In
 * any order a sum of P numbers is off by at most (P - 1) * epsilon / 2 times that, also in the
 * reference; the division rounds once more. NCCL decides what becomes of NaN and overflow. */
static bool same_result(const struct verification *v)
{
  const struct simple *ref = v->ref;
  const double ranks = v->runner->job->me->nranks;
  if (!ref->last.dense) return same_floats(v, "result", v->host, ref->result);
  for (size_t i = 0; i < ref->n; i++) {
    const double got = v->host[i], expected = ref->result[i], magnitudes = ref->sums[i];
    const double bound = (ranks + 1) * FLT_EPSILON * magnitudes / ranks + 0x1p-149;
    const bool overflows = !(magnitudes * (1 + 0x1p-20) <= FLT_MAX); /* somewhere on the way */
    if (!(fabs(got - expected) <= bound || (overflows && (!isfinite(got) || isinf(expected)))))
      return wrong_element(v, "result", i, v->host[i], ref->result[i]);
  }
  return true;
}

/* Elements with an entry in the result, or in steps without entries all. */
static void update_weights(struct verification *v, const float *result)
{
  const struct simple *ref = v->ref;
  const bool all = ref->last.dense || ref->last.fell_back;
  for (size_t e = 0; v->weights && e < (all ? ref->n : ref->last.global); e++) {
    const size_t i = all ? e : ref->global[e].index;
    v->weights[i] = runner_updated(v->weights[i], result[i]);
  }
}

/* v->host has the result: only it has the last bits of a dense step. */
static bool same_weights(struct verification *v)
{
  if (v->ref->last.dense) update_weights(v, v->host);
  if (!v->weights) return true;
  fetch(v, v->runner->weights, ncclFloat);
  return same_floats(v, "weights", v->host, v->weights);
}

static bool same_regions(const struct verification *v)
{
  bool same = true;
  for (int j = 0; j <= v->ref->nranks && same; j++)
    same = same_number(v, "boundary of a region", (double)v->runner->last.boundaries[j],
                       (double)v->ref->boundaries[j]);
  return same;
}

void verification_reference(struct verification *v, const void *gradient)
{
  struct simple *ref = v->ref;
  launcher_step("STEP 6: the reference's step");
  fetch(v, gradient, ref->config.gradient_type);
  if (v->mean) measure_means(v);
  ref->given_threshold = v->runner->last.gaussian_threshold;
  simple_step(ref, v->host, 0);
  if (ref->last.dense) {
    for (size_t i = 0; i < ref->n; i++) v->host[i] = fabsf(v->host[i]);
    simple_sum(ref, v->host, ref->sums);
  } else {
    if (v->mean) measure_xi(v);
    update_weights(v, ref->result);
  }
  v->compared++;
}

/* To look at the residual takes out of it at once what was sent. In training the next step does
 * that, so that has to be compared, too: two steps of three are not looked at (of the three that
 * --bench compares, the last one is). What they leave wrong changes what the next ones select. */
static bool looks_at_residual(const struct verification *v)
{
  const uint64_t step = v->runner->last.step;
  return step % 3 == 2 || step + 1 == v->runner->job->steps;
}

bool verification_compare(struct verification *v)
{
  const struct runner *r = v->runner;
  const struct job *job = r->job;
  launcher_step("STEP 6: comparing with the reference");
  fetch(v, r->result, ncclFloat);
  if (!same_statistics(v) || !same_entries(v) || !same_result(v)) return false;
  v->unwritten |= !job_write(job, &job->results, v->host);
  if (!same_weights(v) || !same_regions(v)) return false;
  if (!looks_at_residual(v)) return true;
  runner_residual(r, v->host);
  if (!same_floats(v, "residual", v->host, v->ref->acc)) return false;
  if (r->last.step + 1 == job->steps) v->unwritten |= !job_write(job, &job->residual, v->host);
  return true;
}

int verification_step(struct verification *v, const void *gradient)
{
  verification_reference(v, gradient);
  const bool same = verification_compare(v);
  return launcher_agree(v->runner->job->me, !same          ? EXIT_WRONG_DATA
                                            : v->unwritten ? EXIT_FAILED_CALL
                                                           : EXIT_VERIFIED);
}
