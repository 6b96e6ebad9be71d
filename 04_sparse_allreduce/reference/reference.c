/* SPDX-License-Identifier: Apache-2.0 */
/* The reference: memory, and what every step does. The algorithms are in reference_steps.c, the
 * choice of large entries in reference_select.c, everything between ranks in reference_exchange.c.
 */
#include <stdlib.h>

#include "reference_parts.h"

/* ---- a step -----------------------------------------------------------------------------------*/

/* acc = residual = gradient + residual, on all ranks; nothing is in the result yet. */
static void accumulate(void *context, size_t range)
{
  struct reference *ref = context;
  const struct range elements = range_of(ref->n, range);
  const size_t first = elements.first, bytes = (elements.end - first) * sizeof(float);
  bool all_counted = true;
  for (int r = 0; r < ref->nranks; r++) {
    struct reference_rank *rank = &ref->ranks[r];
    for (size_t i = first; i < elements.end; i++) {
      float gradient = ref->gradients[r][i];
      bool counted = magnitude_bits(gradient) < MAGNITUDE_INFINITY;
      if (counted) rank->residual[i] = canonical(gradient + rank->residual[i]);
      all_counted &= counted;
    }
    memcpy(rank->acc + first, rank->residual + first, bytes);
  }
  if (!all_counted && ref->config.nonfinite == SPARSE_NONFINITE_ERROR) ref->nonfinite = true;
  memset(ref->sums + first, 0, bytes);
  memset(ref->result + first, 0, bytes);
}

/* The squares of the summed gradients, range by range. */
struct squares {
  const struct reference *ref;
  double sums[MOST_RANGES];
};

static void add_squares(void *context, size_t range)
{
  struct squares *squares = context;
  const struct reference *ref = squares->ref;
  const struct range elements = range_of(ref->n, range);
  double sums[1024], sum = 0;
  for (size_t first = elements.first; first < elements.end; first += 1024) {
    const size_t left = elements.end - first, count = left < 1024 ? left : 1024;
    memset(sums, 0, sizeof sums);
    for (int r = 0; r < ref->nranks; r++) {
      const float *gradient = ref->gradients[r] + first;
      for (size_t i = 0; i < count; i++)
        if (magnitude_bits(gradient[i]) < MAGNITUDE_INFINITY) sums[i] += gradient[i];
    }
    for (size_t i = 0; i < count; i++) sum += sums[i] * sums[i];
  }
  squares->sums[range] = sum;
}

static void measure_gradient(struct reference *ref)
{
  struct squares squares = {.ref = ref};
  double sum = 0;
  parallel_for(ref->team, range_count(ref->n), add_squares, &squares);
  for (size_t i = 0; i < range_count(ref->n); i++) sum += squares.sums[i];
  ref->gradient_norm = sqrt(sum) / ref->nranks;
}

/* What kind of step this is. Everything is exact in the first one after the warm-up, since there
 * is nothing to reuse yet. */
static void begin_step(struct reference *ref)
{
  const sparse_allreduce_config_t *c = &ref->config;
  const struct sparse_constants *k = &ref->constants;
  uint64_t warmup = c->warmup_steps > 0 ? (uint64_t)c->warmup_steps : 0;
  bool first = ref->step == warmup;
  bool reuses = c->algorithm == SPARSE_TOPKAOPT || c->algorithm == SPARSE_OKTOPK;
  bool oktopk = c->algorithm == SPARSE_OKTOPK;
  uint64_t local = (uint64_t)(oktopk ? k->local_interval : k->topkaopt_interval);

  ref->dense = c->algorithm == SPARSE_DENSE || ref->step < warmup;
  bool sparse = !ref->dense;
  ref->exact_local = sparse && reuses && (first || ref->step % local == 0);
  ref->exact_global = sparse && oktopk && (first || ref->step % (uint64_t)k->global_interval == 0);
  ref->repartitioned =
      sparse && oktopk && (first || ref->step % (uint64_t)k->repartition_interval == 0);
  ref->fell_back = false;
  ref->nonfinite = false;
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

static void allreduce(struct reference *ref)
{
  if (ref->dense) {
    step_dense(ref);
    return;
  }
  parallel_for(ref->team, range_count(ref->n), accumulate, ref);
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
    step_gaussiank(ref);
    break;
  case SPARSE_GAUSSIANKSA:
    step_gaussianksa(ref);
    break;
  case SPARSE_DENSE:
  case SPARSE_ALGORITHMS:
    break;
  }
}

/* Both read the gradients, and neither needs the other. */
static void measure_or_allreduce(void *context, size_t part)
{
  if (part == 0)
    allreduce(context);
  else
    measure_gradient(context);
}

void reference_step(struct reference *ref, const float *const gradients[],
                    const double *gaussian_thresholds)
{
  ref->gradients = gradients;
  ref->gaussian_thresholds = gaussian_thresholds;
  begin_step(ref);
  parallel_for(ref->team, 2, measure_or_allreduce, ref);
  ref->step++;
}

/* ---- the paper's measure ----------------------------------------------------------------------*/

static void average_acc(void *context, size_t range)
{
  const struct reference *ref = context;
  const struct range elements = range_of(ref->n, range);
  for (size_t i = elements.first; i < elements.end; i++) {
    float sum = 0;
    for (int r = 0; r < ref->nranks; r++) sum += ref->ranks[r].acc[i];
    ref->mean[i] = sum / (float)ref->nranks;
  }
}

double reference_xi(struct reference *ref)
{
  const struct vector mean = {ref->team, ref->mean, ref->n};
  double squares = 0;
  if (ref->dense) return 0;
  parallel_for(ref->team, range_count(ref->n), average_acc, ref);
  list_indices(mean, select_largest(mean, ref->k), ref->largest, ref->k);

  /* Elements that are neither among the largest nor in the result would add nothing. */
  for (size_t e = 0, g = 0; e < ref->k || g < ref->nglobal;) {
    const bool more = e < ref->k, have = g < ref->nglobal;
    const bool is_best = more && (!have || ref->largest[e] <= ref->global[g].index);
    const uint32_t i = is_best ? ref->largest[e] : ref->global[g].index;
    const double best = is_best ? ref->mean[i] : 0;
    squares += (best - ref->result[i]) * (best - ref->result[i]);
    e += is_best;
    g += have && ref->global[g].index == i;
  }
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
  sparse_constants_init(&ref->constants, config->preset);
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
  ref->most_global = offered < n ? offered : n;
  ref->global = zeroed(ref->most_global, sizeof *ref->global, &failed);
  ref->sums = zeroed(n, sizeof *ref->sums, &failed);
  ref->mean = zeroed(n, sizeof *ref->mean, &failed);
  ref->largest = zeroed(ref->k, sizeof *ref->largest, &failed);
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
  free(ref->mean);
  free(ref->largest);
  free(ref->discarded);
  free(ref->lists);
  free(ref->merged);
  free(ref->merged_values);
  free(ref);
}
