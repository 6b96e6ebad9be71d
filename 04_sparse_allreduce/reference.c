/* SPDX-License-Identifier: Apache-2.0 */
/* The reference: memory, and what every step does. The algorithms are in reference_steps.c, the
 * choice of large entries in reference_select.c, everything between ranks in reference_exchange.c.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference_parts.h"

/* ---- a step -----------------------------------------------------------------------------------*/

static bool is_counted(const struct reference *ref, float gradient)
{
  return ref->config.nonfinite == SPARSE_NONFINITE_PROPAGATE || isfinite(gradient);
}

/* acc = residual = gradient + residual, on all ranks. */
static void accumulate(struct reference *ref, const float *const gradients[])
{
  for (int r = 0; r < ref->nranks; r++) {
    struct reference_rank *rank = &ref->ranks[r];
    for (size_t i = 0; i < ref->n; i++) {
      float gradient = gradients[r][i];
      if (is_counted(ref, gradient))
        rank->residual[i] = canonical(gradient + rank->residual[i]);
      else
        ref->nonfinite |= ref->config.nonfinite == SPARSE_NONFINITE_ERROR;
    }
    memcpy(rank->acc, rank->residual, ref->n * sizeof *rank->acc);
  }
}

static void measure_gradient(struct reference *ref, const float *const gradients[])
{
  double squares = 0;
  for (size_t i = 0; i < ref->n; i++) {
    double sum = 0;
    for (int r = 0; r < ref->nranks; r++)
      if (is_counted(ref, gradients[r][i])) sum += gradients[r][i];
    squares += sum * sum;
  }
  ref->gradient_norm = sqrt(squares) / ref->nranks;
}

/* What kind of step this is. Everything is exact in the first one after the warm-up, since there
 * is nothing to reuse yet. */
static void begin_step(struct reference *ref)
{
  const sparse_allreduce_config_t *c = &ref->config;
  uint64_t warmup = c->warmup_steps > 0 ? (uint64_t)c->warmup_steps : 0;
  bool first = ref->step == warmup;
  bool reuses = c->algorithm == SPARSE_TOPKAOPT || c->algorithm == SPARSE_OKTOPK;
  bool oktopk = c->algorithm == SPARSE_OKTOPK;
  uint64_t local = (uint64_t)(oktopk ? c->local_interval : c->topkaopt_interval);

  ref->dense = c->algorithm == SPARSE_DENSE || ref->step < warmup;
  bool sparse = !ref->dense;
  ref->exact_local = sparse && reuses && (first || ref->step % local == 0);
  ref->exact_global = sparse && oktopk && (first || ref->step % (uint64_t)c->global_interval == 0);
  ref->repartitioned =
      sparse && oktopk && (first || ref->step % (uint64_t)c->repartition_interval == 0);
  ref->fell_back = ref->nonfinite = false;
  ref->nglobal = ref->ndiscarded = 0;
  for (int r = 0; r < ref->nranks; r++) {
    struct reference_rank *rank = &ref->ranks[r];
    rank->overflowed = false;
    rank->words_sent = rank->words_received = 0;
    rank->noffered = 0;
    rank->selected_above = MAGNITUDE_NAN;
    rank->selected_tie = -1;
    memset(rank->region_counts, 0, (size_t)ref->nranks * sizeof *rank->region_counts);
  }
}

void reference_step(struct reference *ref, const float *const gradients[],
                    const double *gaussian_thresholds)
{
  begin_step(ref);
  measure_gradient(ref, gradients);
  if (ref->dense) {
    step_dense(ref, gradients);
  } else {
    accumulate(ref, gradients);
    switch (ref->config.algorithm) {
    case SPARSE_TOPKA:
    case SPARSE_TOPKA2:
      step_topka(ref);
      break;
    case SPARSE_TOPKAOPT:
      step_topkaopt(ref);
      break;
    case SPARSE_GTOPK:
      step_gtopk(ref);
      break;
    case SPARSE_OKTOPK:
      step_oktopk(ref);
      break;
    case SPARSE_TOPKSA:
      step_topksa(ref);
      break;
    case SPARSE_GAUSSIANK:
    case SPARSE_GAUSSIANKCONCAT:
      step_gaussiank(ref, gaussian_thresholds);
      break;
    case SPARSE_GAUSSIANKSA:
      step_gaussianksa(ref, gaussian_thresholds);
      break;
    case SPARSE_DENSE:
    case SPARSE_ALGORITHMS:
      break;
    }
  }
  ref->step++;
}

double reference_xi(const struct reference *ref)
{
  double squares = 0;
  if (ref->dense) return 0;
  float *mean = malloc(ref->n * sizeof *mean);
  if (!mean) return (double)NAN;

  for (size_t i = 0; i < ref->n; i++) {
    float sum = 0;
    for (int r = 0; r < ref->nranks; r++) sum += ref->ranks[r].acc[i];
    mean[i] = sum / (float)ref->nranks;
  }
  struct selection largest = select_largest(mean, ref->n, ref->k);
  for (size_t i = 0; i < ref->n; i++) {
    double best = selection_has(&largest, i, mean[i]) ? mean[i] : 0;
    squares += (best - ref->result[i]) * (best - ref->result[i]);
  }
  free(mean);
  return squares == 0 ? 0 : sqrt(squares) / ref->gradient_norm;
}

/* ---- memory -----------------------------------------------------------------------------------*/

static void *zeroed(size_t count, size_t bytes, bool *failed)
{
  void *memory = calloc(count > 0 ? count : 1, bytes);
  *failed |= memory == NULL;
  return memory;
}

static void derive_sizes(struct reference *ref)
{
  ref->t = (uint64_t)((double)ref->n * ref->config.density);
  ref->k = ref->t > 0 ? ref->t : 1;
  ref->capacity = 2 * ref->k > 4096 ? 2 * ref->k : 4096;
  if (ref->capacity > ref->n) ref->capacity = ref->n;
}

struct reference *reference_create(const sparse_allreduce_config_t *config, size_t n, int nranks)
{
  struct reference *ref = calloc(1, sizeof *ref);
  bool failed = false;
  if (!ref) return NULL;

  ref->config = *config;
  ref->n = n;
  ref->nranks = nranks;
  derive_sizes(ref);
  size_t ranks = (size_t)nranks, offered = (size_t)ref->capacity * ranks;
  ref->ranks = zeroed(ranks, sizeof *ref->ranks, &failed);
  for (int r = 0; ref->ranks && r < nranks; r++) {
    struct reference_rank *rank = &ref->ranks[r];
    rank->acc = zeroed(n, sizeof *rank->acc, &failed);
    rank->residual = zeroed(n, sizeof *rank->residual, &failed);
    rank->offered = zeroed(ref->capacity, sizeof *rank->offered, &failed);
    rank->region_counts = zeroed(ranks, sizeof *rank->region_counts, &failed);
  }
  ref->boundaries = zeroed(ranks + 1, sizeof *ref->boundaries, &failed);
  ref->result = zeroed(n, sizeof *ref->result, &failed);
  ref->global = zeroed(offered < n ? offered : n, sizeof *ref->global, &failed);
  ref->sums = zeroed(n, sizeof *ref->sums, &failed);
  if (config->algorithm == SPARSE_GTOPK) {
    ref->lists = zeroed(ref->k * ranks, sizeof *ref->lists, &failed);
    ref->merged = zeroed(ref->k * 2, sizeof *ref->merged, &failed);
    ref->merged_values = zeroed(ref->k * 2, sizeof *ref->merged_values, &failed);
    ref->discarded = zeroed(ref->k * (ranks - 1), sizeof *ref->discarded, &failed);
  }
  if (failed) {
    reference_destroy(ref);
    return NULL;
  }
  uniform_regions(ref);
  return ref;
}

void reference_destroy(struct reference *ref)
{
  if (!ref) return;
  for (int r = 0; ref->ranks && r < ref->nranks; r++) {
    struct reference_rank *rank = &ref->ranks[r];
    free(rank->acc);
    free(rank->residual);
    free(rank->offered);
    free(rank->region_counts);
  }
  free(ref->ranks);
  free(ref->boundaries);
  free(ref->result);
  free(ref->global);
  free(ref->sums);
  free(ref->discarded);
  free(ref->lists);
  free(ref->merged);
  free(ref->merged_values);
  free(ref);
}
