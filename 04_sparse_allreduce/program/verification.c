/* SPDX-License-Identifier: Apache-2.0 */
#include "verification.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 18 }; /* elements that ranks exchange at a time */

/* ---- memory ---------------------------------------------------------------------------------- */

static void gather_by_launcher(void *me, const void *mine, void *all, size_t bytes)
{
  launcher_allgather(me, mine, all, bytes);
}

int verification_init(struct verification *v, const struct rank *me,
                      const sparse_allreduce_config_t *config, size_t count, bool compares,
                      bool measures_xi)
{
  char error[160] = "";
  const bool updates = config->result == SPARSE_RESULT_ENTRIES;
  const struct simple_link link = {(void *)(uintptr_t)me, gather_by_launcher};
  *v = (struct verification){
      .me = me, .path = simple_paths[config->algorithm].name, .type = config->gradient_type};
  if (!compares) return EXIT_VERIFIED;
  v->ref = simple_create(NULL, link, me->rank, me->nranks, count, config);
  v->host = malloc(count * sizeof *v->host);
  if (updates) v->weights = calloc(count, sizeof *v->weights);
  if (measures_xi) v->mean = malloc(count * sizeof *v->mean);
  if (!v->ref || !v->host || (updates && !v->weights) || (measures_xi && !v->mean))
    snprintf(error, sizeof error,
             "no memory on the host for a reference of %zu elements; allowed: fewer, or --verify "
             "off",
             count);
  return launcher_refuse(me, error);
}

void verification_free(struct verification *v)
{
  simple_destroy(v->ref);
  free(v->host);
  free(v->weights);
  free(v->mean);
}

/* ---- between host and device, and between ranks ---------------------------------------------- */

/* Elements of a vector as float; from any memory. */
static void fetch(float *to, const void *from, size_t first, size_t count, ncclDataType_t type)
{
  const size_t size = type == ncclFloat ? 4 : 2;
  void *raw = type == ncclFloat ? to : malloc(count * size);
  if (!raw) launcher_fail(__FILE__, __LINE__, "malloc", "out of memory", NULL);
  CUDACHECK(cudaMemcpy(raw, (const char *)from + first * size, count * size, cudaMemcpyDefault));
  gradient_widen(to, raw, count, type);
  if (raw != to) free(raw);
}

/* The paper's measure of what selecting costs is the distance between the result and the k largest
 * entries of the mean of all acc, relative to the norm of the mean gradient. These are both means,
 * before the reference's step. */
static void measure_means(struct verification *v, const float *gradient)
{
  const struct simple *ref = v->ref;
  const size_t ranks = (size_t)v->me->nranks;
  float(*pair)[2] = malloc(PIECE * sizeof *pair), (*all)[2] = malloc(ranks * PIECE * sizeof *all);
  double squares = 0;
  if (!pair || !all) launcher_fail(__FILE__, __LINE__, "malloc", "out of memory", NULL);
  for (size_t first = 0; first < ref->n; first += PIECE) {
    const size_t count = ref->n - first < PIECE ? ref->n - first : PIECE;
    for (size_t i = 0; i < count; i++) {
      const float x = gradient[first + i];
      pair[i][0] = isfinite(x) ? x : 0;
      pair[i][1] = pair[i][0] + ref->acc[first + i];
    }
    launcher_allgather(v->me, pair, all, count * sizeof *pair);
    for (size_t i = 0; i < count; i++) {
      double sum = 0;
      float acc = 0;
      for (size_t r = 0; r < ranks; r++) {
        sum += all[r * count + i][0];
        acc += all[r * count + i][1];
      }
      squares += sum * sum;
      v->mean[first + i] = acc / (float)ranks;
    }
  }
  v->gradient_norm = sqrt(squares) / (double)ranks;
  free(pair);
  free(all);
}

static void measure_xi(struct verification *v)
{
  const struct simple *ref = v->ref;
  const sparse_allreduce_statistics_t *s = &ref->last;
  const bool oktopk = ref->config.algorithm == SPARSE_OKTOPK;
  const bool my_turn = (s->step + 1) % (uint64_t)v->me->nranks == (uint64_t)v->me->rank;
  double squares = 0;
  if (!my_turn ||
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

void verification_advance(struct verification *v, const struct runner *r, const void *gradient,
                          const sparse_allreduce_statistics_t *statistics)
{
  if (!v->ref) return;
  launcher_step("STEP 6: the reference's step");
  fetch(v->host, gradient, 0, r->count, v->type);
  const bool dense = v->ref->config.algorithm == SPARSE_DENSE ||
                     v->ref->steps < (uint64_t)v->ref->config.warmup_steps;
  if (v->mean && !dense) measure_means(v, v->host);
  v->ref->given_threshold = statistics->gaussian_threshold;
  simple_step(v->ref, v->host, 0);
  if (v->mean && !dense) measure_xi(v);
}

/* ---- comparisons ----------------------------------------------------------------------------- */

/* All return whether the values are the same, and say so if not. */

static bool same_integer(const struct verification *v, const char *what, int64_t got,
                         int64_t expected)
{
  if (got == expected) return true;
  launcher_error("%s, step %llu: %s is %lld, expected %lld", v->path,
                 (unsigned long long)v->ref->last.step, what, (long long)got, (long long)expected);
  return false;
}

/* NaN: the path has no such threshold. */
static bool same_threshold(const struct verification *v, const char *what, double got,
                           double expected, double tolerance)
{
  if (isnan(expected) || fabs(got - expected) <= tolerance * fabs(expected)) return true;
  launcher_error("%s, step %llu: %s is %.17g, expected %.17g", v->path,
                 (unsigned long long)v->ref->last.step, what, got, expected);
  return false;
}

static bool wrong_element(const struct verification *v, const char *what, size_t i, float got,
                          float expected)
{
  uint32_t bits[2];
  memcpy(&bits[0], &got, sizeof got);
  memcpy(&bits[1], &expected, sizeof expected);
  launcher_error("%s, step %llu: %s: element %zu is %.9g (0x%08x), expected %.9g (0x%08x)", v->path,
                 (unsigned long long)v->ref->last.step, what, i, (double)got, bits[0],
                 (double)expected, bits[1]);
  return false;
}

/* A dense result that was made of entries has 0 where the average is -0: it began as zeros. */
static bool same_floats(const struct verification *v, const char *what, const float *got,
                        const float *expected)
{
  if (memcmp(got, expected, v->ref->n * sizeof *got) == 0) return true;
  for (size_t i = 0; i < v->ref->n; i++)
    if (memcmp(&got[i], &expected[i], sizeof *got) != 0 &&
        !(v->weights && got[i] == 0 && expected[i] == 0))
      return wrong_element(v, what, i, got[i], expected[i]);
  return true;
}

static bool same_statistics(const struct verification *v, const sparse_allreduce_statistics_t *got)
{
  const sparse_allreduce_statistics_t *expected = &v->ref->last;
#define SAME(what, field) same_integer(v, what, (int64_t)got->field, (int64_t)expected->field)
  if (!SAME("number of the step", step) || !SAME("k", k) || !SAME("capacity", capacity) ||
      !SAME("'dense'", dense) || !SAME("'exact global'", exact_global) ||
      !SAME("'repartitioned'", repartitioned) || !SAME("words sent", words_sent) ||
      !SAME("words received", words_received))
    return false;
  if (expected->dense) return true;
  return SAME("number of offered entries", local) && SAME("'overflowed'", overflowed) &&
         SAME("'fell back'", fell_back) && SAME("magnitude of selection", selected_above) &&
         SAME("tie of selection", selected_tie) && SAME("'exact local'", exact_local) &&
         (expected->fell_back || SAME("entries of the result", global)) &&
         same_threshold(v, "local threshold", got->local_threshold, expected->local_threshold, 0) &&
         same_threshold(v, "global threshold", got->global_threshold, expected->global_threshold,
                        0) &&
         same_threshold(v, "Gaussian threshold", got->gaussian_threshold,
                        expected->gaussian_threshold, 1e-6);
#undef SAME
}

/* The entries of the result before the division, without the places that hold none. */
static bool same_entries(const struct verification *v, const struct step_outcome *left)
{
  const struct simple *ref = v->ref;
  const bool none = ref->last.dense || ref->last.fell_back;
  if (none || !left->entries)
    return same_integer(v, "number of sparse results", left->entries != NULL, !none);
  const size_t room = ((size_t)ref->nranks + 1) * (ref->capacity + 1);
  if (left->count > room) return same_integer(v, "entries", (int64_t)left->count, (int64_t)room);
  struct sparse_pair *got = malloc((left->count + 1) * sizeof *got);
  if (!got) launcher_fail(__FILE__, __LINE__, "malloc", "out of memory", NULL);
  CUDACHECK(cudaMemcpy(got, left->entries, left->count * sizeof *got, cudaMemcpyDeviceToHost));
  const struct sparse_pair *expected = ref->global;
  const uint64_t entries = left->count;
  bool same = true;
  for (uint64_t e = 0; e < entries && e < ref->last.global && same; e++) {
    same = same_integer(v, "index of an entry", got[e].index, expected[e].index);
    if (same && memcmp(&got[e].value, &expected[e].value, sizeof got[e].value) != 0)
      same = wrong_element(v, "sum", got[e].index, got[e].value, expected[e].value);
  }
  free(got);
  return same && same_integer(v, "number of entries", (int64_t)entries, (int64_t)ref->last.global);
}

static bool same_regions(const struct verification *v, const uint64_t *boundaries)
{
  for (int j = 0; j <= v->ref->nranks; j++)
    if (!same_integer(v, "boundary of a region", (int64_t)boundaries[j],
                      (int64_t)v->ref->boundaries[j]))
      return false;
  return true;
}

/* What --result entries has updated: elements that have an entry in the result. v->host has the
 * result, which is the only one that knows the last bits of a dense step. */
static bool same_weights(struct verification *v, const struct runner *r)
{
  const struct simple *ref = v->ref;
  if (!v->weights || !r->weights) return true;
  if (ref->last.dense || ref->last.fell_back)
    for (size_t i = 0; i < ref->n; i++) v->weights[i] = runner_updated(v->weights[i], v->host[i]);
  else
    for (size_t e = 0; e < ref->last.global; e++) {
      const uint32_t i = ref->global[e].index;
      v->weights[i] = runner_updated(v->weights[i], ref->result[i]);
    }
  fetch(v->host, r->weights, 0, ref->n, ncclFloat);
  return same_floats(v, "weights", v->host, v->weights);
}

int verification_compare(struct verification *v, const struct runner *r,
                         const struct step_outcome *left, const void *gradient)
{
  if (!v->ref) return EXIT_VERIFIED;
  launcher_step("STEP 6: comparing with the reference");
  const bool has_residual = v->ref->config.algorithm != SPARSE_DENSE;
  int code = EXIT_VERIFIED;
  char what[64];
  snprintf(what, sizeof what, "%s, step %llu: result", v->path,
           (unsigned long long)v->ref->last.step);
  if (v->ref->last.dense) /* on all ranks */
    code = verify_sum(v->me, what, gradient, v->type, left->result, ncclFloat, r->count,
                      v->me->nranks);
  bool same = code == EXIT_VERIFIED && same_statistics(v, &left->statistics) &&
              same_entries(v, left) && (!has_residual || same_regions(v, left->boundaries));
  if (same) fetch(v->host, left->result, 0, r->count, ncclFloat);
  if (same && !v->ref->last.dense) same = same_floats(v, "result", v->host, v->ref->result);
  same = same && same_weights(v, r);
  if (same && has_residual) {
    runner_residual(r, v->host);
    same = verification_residual(v, v->host);
  }
  v->compared++;
  return launcher_agree(v->me, same ? EXIT_VERIFIED : EXIT_WRONG_DATA);
}

bool verification_residual(const struct verification *v, const float *copy)
{
  return !v->ref || same_floats(v, "residual", copy, v->ref->acc);
}

/* ---- dense sums ------------------------------------------------------------------------------ */

/* A sum of P numbers in any order is off by (P - 1) * epsilon * sum of sizes at most, and its
 * average by one more rounding. What overflows, and NaN and infinity, are NCCL's to add. */
int verify_sum(const struct rank *me, const char *what, const void *gradient, ncclDataType_t type,
               const void *result, ncclDataType_t result_type, size_t count, int divisor)
{
  const bool half = result_type == ncclHalf, is_float = result_type == ncclFloat;
  const double epsilon = is_float ? 0x1p-23
                         : half   ? 0x1p-10
                                  : 0x1p-7,
               largest = half ? 65504 : FLT_MAX;
  const double smallest = half ? 0x1p-24 : 0x1p-133;
  const size_t ranks = (size_t)me->nranks;
  float *mine = malloc((2 + ranks) * PIECE * sizeof *mine);
  if (!mine) launcher_fail(__FILE__, __LINE__, "malloc", "out of memory", NULL);
  float *got = mine + PIECE, *all = mine + 2 * PIECE;
  bool right = true;
  for (size_t first = 0; first < count; first += PIECE) {
    const size_t n = count - first < PIECE ? count - first : PIECE;
    fetch(mine, gradient, first, n, type);
    fetch(got, result, first, n, result_type);
    launcher_allgather(me, mine, all, n * sizeof *mine);
    for (size_t i = 0; i < n && right; i++) {
      double sum = 0, size = 0;
      for (size_t r = 0; r < ranks; r++) {
        sum += (double)all[r * n + i];
        size += fabs((double)all[r * n + i]);
      }
      const double expected = sum / divisor;
      const double bound = (double)(ranks - 1) * epsilon * size / divisor +
                           epsilon * fabs(expected) + (is_float ? 0x1p-149 : smallest);
      const bool overflows = !(size * (1 + 0x1p-20) <= largest); /* somewhere on the way */
      right = fabs((double)got[i] - expected) <= bound || (overflows && !isfinite(got[i]));
      if (!right)
        launcher_error("%s: element %zu is %.9g, expected %.9g", what, first + i, (double)got[i],
                       expected);
    }
  }
  free(mine);
  return launcher_agree(me, right ? EXIT_VERIFIED : EXIT_WRONG_DATA);
}
