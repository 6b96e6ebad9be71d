/* SPDX-License-Identifier: Apache-2.0 */
#include "published.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the constants of the three copies --------------------------------------------------------*/

struct limit {
  double num, den; /* of k */
};

struct rules {
  long exact_interval, regions_interval;
  int loops;
  struct limit raise_above, local_low, local_high;
  double local_scale;
  struct limit global_low, global_high;
  double global_decrease, global_increase;
};

static const struct rules rules_of[] = {
    [SPARSE_PRESET_VGG] = {32, 64, 5, {4, 3}, {2, 3}, {5, 4}, 1.012, {2, 3}, {4, 3}, 1.008, 1.008},
    [SPARSE_PRESET_LSTM] = {32, 64, 5, {3, 2}, {3, 4}, {5, 4}, 1.012, {3, 4}, {5, 4}, 1.01, 1.008},
    [SPARSE_PRESET_BERT] =
        {128, 64, 0, {1, 1}, {4, 5}, {5, 4}, 1.025, {4, 5}, {5, 4}, 1.036, 1.025},
};

static double of(struct limit limit, double t)
{
  return limit.num * t / limit.den;
}

/* ---- top-k as a sort --------------------------------------------------------------------------*/

struct entry {
  size_t index;
  float value;
};

/* Largest first, of equals the first. */
static int by_size(const void *a, const void *b)
{
  const struct entry *x = a, *y = b;
  const float s = fabsf(x->value), z = fabsf(y->value);
  return s != z ? (s < z) - (s > z) : (x->index > y->index) - (x->index < y->index);
}

/* The entries of a vector that are not zero (or all), largest first. */
static struct entry *sorted(const float *values, size_t n, bool zeros, size_t *count)
{
  struct entry *entries = malloc((n + 1) * sizeof *entries);
  *count = 0;
  if (!entries) abort();
  for (size_t i = 0; i < n; i++)
    if (zeros || values[i] != 0) entries[(*count)++] = (struct entry){i, values[i]};
  qsort(entries, *count, sizeof *entries, by_size);
  return entries;
}

/* ---- steps that the algorithms share ----------------------------------------------------------*/

static void add_to_residuals(struct published *p, const float *const gradients[])
{
  for (int r = 0; r < p->nranks; r++)
    for (size_t i = 0; i < p->n; i++) {
      p->acc[r][i] = gradients[r][i] + p->residual[r][i];
      p->residual[r][i] = p->acc[r][i];
    }
}

static size_t k_of(const struct published *p)
{
  size_t k = (size_t)((double)p->n * p->density);
  return k > 0 ? k : 1;
}

static double exact_threshold(const struct published *p, int r)
{
  size_t count;
  struct entry *entries = sorted(p->acc[r], p->n, true, &count);
  double threshold = fabsf(entries[k_of(p) - 1].value);
  free(entries);
  return threshold;
}

static size_t offer_above(struct published *p, int r, double threshold)
{
  p->noffered[r] = 0;
  for (size_t i = 0; i < p->n; i++) {
    p->offered[r][i] = fabsf(p->acc[r][i]) > (float)threshold;
    p->noffered[r] += p->offered[r][i];
  }
  return p->noffered[r];
}

/* Rotation: the owner adds its own part first, then that of the rank before it, and so on. */
static void reduce(struct published *p)
{
  memset(p->sums, 0, p->n * sizeof *p->sums);
  for (int owner = 0; owner < p->nranks; owner++)
    for (int slot = 0; slot < p->nranks; slot++) {
      int source = (owner + p->nranks - slot) % p->nranks;
      for (size_t i = p->boundaries[owner]; i < p->boundaries[owner + 1]; i++)
        if (p->offered[source][i]) p->sums[i] += p->acc[source][i];
    }
}

/* ---- oktopk -----------------------------------------------------------------------------------*/

static const char *repartition(struct published *p)
{
  size_t nranks = (size_t)p->nranks;
  if (nranks == 1) return "IndexError: global_boundaries[0] of an empty array";
  for (size_t j = 0; j <= nranks; j++) p->boundaries[j] = j < nranks ? 0 : p->n;
  for (size_t r = 0; r < nranks; r++) {
    size_t chunk = p->noffered[r] / nranks, seen = 0;
    if (p->noffered[r] == 0) return "IndexError: an index of an empty array";
    for (size_t i = 0; i < p->n; i++) {
      if (!p->offered[r][i]) continue;
      for (size_t j = 1; j < nranks; j++)
        if (seen == chunk * j) p->boundaries[j] += i;
      seen++;
    }
  }
  for (size_t j = 1; j < nranks; j++) p->boundaries[j] /= nranks;
  return NULL;
}

/* What is in the result leaves the residual of those who offered it. */
static void write_result(struct published *p, const struct entry *entries, size_t count)
{
  memset(p->result, 0, p->n * sizeof *p->result);
  for (size_t e = 0; e < count; e++) {
    p->result[entries[e].index] = entries[e].value / (float)p->nranks;
    for (int r = 0; r < p->nranks; r++)
      if (p->offered[r][entries[e].index]) p->residual[r][entries[e].index] = 0;
  }
}

static const char *exact_global_step(struct published *p)
{
  size_t count, wanted = k_of(p);
  struct entry *entries = sorted(p->sums, p->n, false, &count);
  const char *raised = count == 0 ? "IndexError: values[-1] of an empty top-k" : NULL;
  p->nglobal = count < wanted ? count : wanted;
  write_result(p, entries, p->nglobal);
  if (!raised) p->global_threshold = fabsf(entries[p->nglobal - 1].value);
  free(entries);
  return raised;
}

static void reuse_global_step(struct published *p)
{
  const struct rules *rules = &rules_of[p->job];
  double t = floor((double)p->n * p->density);
  struct entry *entries = malloc((p->n + 1) * sizeof *entries);
  if (!entries) abort();
  p->nglobal = 0;
  for (size_t i = 0; i < p->n; i++) {
    if (!(fabsf(p->sums[i]) > (float)p->global_threshold)) continue;
    entries[p->nglobal++] = (struct entry){i, p->sums[i]};
  }
  write_result(p, entries, p->nglobal);
  free(entries);
  if ((double)p->nglobal < of(rules->global_low, t))
    p->global_threshold /= rules->global_decrease;
  else if ((double)p->nglobal > of(rules->global_high, t))
    p->global_threshold *= rules->global_increase;
}

const char *published_oktopk(struct published *p, const float *const gradients[])
{
  const struct rules *rules = &rules_of[p->job];
  double t = floor((double)p->n * p->density);
  const char *raised = NULL;

  add_to_residuals(p, gradients);
  for (int r = 0; r < p->nranks; r++) {
    double *threshold = &p->local_threshold[r];
    if (p->counter % rules->exact_interval == 0)
      *threshold = exact_threshold(p, r);
    else
      for (int j = 0; j < rules->loops; j++)
        if ((double)offer_above(p, r, *threshold) > floor(of(rules->raise_above, t)))
          *threshold *= 1.03;
    double count = (double)offer_above(p, r, *threshold);
    if (count < of(rules->local_low, t))
      *threshold /= rules->local_scale;
    else if (count > of(rules->local_high, t))
      *threshold *= rules->local_scale;
  }
  if (p->counter % rules->regions_interval == 0) raised = repartition(p);
  if (raised) return raised;
  reduce(p);
  if (p->counter % rules->exact_interval == 0)
    raised = exact_global_step(p);
  else
    reuse_global_step(p);
  p->counter++;
  return raised;
}

/* ---- the others -------------------------------------------------------------------------------*/

/* What ranks have offered. */
static void average_offered(struct published *p)
{
  memset(p->sums, 0, p->n * sizeof *p->sums);
  for (int r = 0; r < p->nranks; r++)
    for (size_t i = 0; i < p->n; i++) {
      if (!p->offered[r][i]) continue;
      p->sums[i] += p->acc[r][i];
      p->residual[r][i] = 0;
    }
  for (size_t i = 0; i < p->n; i++) p->result[i] = p->sums[i] / (float)p->nranks;
  p->counter++;
}

const char *published_topkaopt(struct published *p, const float *const gradients[])
{
  bool exact = p->counter % 32 == 0;
  if (!exact && p->job != SPARSE_PRESET_BERT)
    return "TypeError: '>' not supported between 'Tensor' and 'NoneType'";
  add_to_residuals(p, gradients);
  for (int r = 0; r < p->nranks; r++) {
    if (exact) p->local_threshold[r] = exact_threshold(p, r);
    offer_above(p, r, p->local_threshold[r]);
  }
  average_offered(p);
  return NULL;
}

/* Each copy has corrections of its own; none lowers and raises in the same step. */
static double corrected(struct published *p, int r, double threshold)
{
  size_t k = k_of(p), count = offer_above(p, r, threshold);
  size_t until = p->job == SPARSE_PRESET_BERT ? 5 * k / 6 : 3 * k / 4;
  int loops = p->job == SPARSE_PRESET_LSTM ? 50 : 20;
  if (count < 3 * k / 4) {
    for (int j = 0; j < loops && offer_above(p, r, threshold) < until; j++)
      threshold /= p->job == SPARSE_PRESET_VGG ? 1.02 : 1.012;
  } else if (count > 5 * k / 4 && p->job == SPARSE_PRESET_VGG) {
    for (int j = 0; j < loops && offer_above(p, r, threshold) > 5 * k / 4; j++) threshold *= 1.02;
  }
  return threshold;
}

const char *published_gaussiank(struct published *p, const float *const gradients[], double z)
{
  add_to_residuals(p, gradients);
  for (int r = 0; r < p->nranks; r++) {
    double mean = 0, square = 0, n = (double)p->n;
    for (size_t i = 0; i < p->n; i++) mean += p->acc[r][i] / n;
    for (size_t i = 0; i < p->n; i++) square += pow(p->acc[r][i] - mean, 2) / (n - 1);
    p->local_threshold[r] = corrected(p, r, mean + z * sqrt(square));
    offer_above(p, r, p->local_threshold[r]);
  }
  average_offered(p);
  return NULL;
}

/* ---- memory -----------------------------------------------------------------------------------*/

static void *zeroed(size_t count, size_t bytes)
{
  void *memory = calloc(count, bytes);
  if (!memory) abort();
  return memory;
}

struct published *published_create(sparse_preset_t job, double density, size_t n, int nranks)
{
  struct published *p = zeroed(1, sizeof *p);
  size_t ranks = (size_t)nranks;
  p->job = job;
  p->n = n;
  p->nranks = nranks;
  p->density = density;
  p->acc = zeroed(ranks, sizeof *p->acc);
  p->residual = zeroed(ranks, sizeof *p->residual);
  p->offered = zeroed(ranks, sizeof *p->offered);
  for (size_t r = 0; r < ranks; r++) {
    p->acc[r] = zeroed(n, sizeof **p->acc);
    p->residual[r] = zeroed(n, sizeof **p->residual);
    p->offered[r] = zeroed(n, sizeof **p->offered);
  }
  p->local_threshold = zeroed(ranks, sizeof *p->local_threshold);
  p->noffered = zeroed(ranks, sizeof *p->noffered);
  p->boundaries = zeroed(ranks + 1, sizeof *p->boundaries);
  p->sums = zeroed(n, sizeof *p->sums);
  p->result = zeroed(n, sizeof *p->result);
  return p;
}

void published_destroy(struct published *p)
{
  for (int r = 0; r < p->nranks; r++) {
    free(p->acc[r]);
    free(p->residual[r]);
    free(p->offered[r]);
  }
  free(p->acc);
  free(p->residual);
  free(p->offered);
  free(p->local_threshold);
  free(p->noffered);
  free(p->boundaries);
  free(p->sums);
  free(p->result);
  free(p);
}
