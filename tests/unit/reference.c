/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "launcher.h"

/* A rank on its way through a step. */
struct side {
  struct reference *ref;
  int rank;
  const float *gradient;
  double threshold;
  pthread_t thread;
};

static void gather_by_launcher(void *me, const void *mine, void *all, size_t bytes)
{
  launcher_allgather(me, mine, all, bytes);
}

/* context: the rank's place in ref->shared */
static void gather_in_process(void *context, const void *mine, void *all, size_t bytes)
{
  struct side *side = context;
  struct reference *ref = side->ref;
  ref->shared[side->rank] = mine;
  pthread_barrier_wait(&ref->barrier);
  for (int r = 0; r < ref->nranks; r++)
    memcpy((char *)all + (size_t)r * bytes, ref->shared[r], bytes);
  pthread_barrier_wait(&ref->barrier);
}

struct reference *reference_create(const sparse_allreduce_config_t *config, size_t n, int nranks,
                                   const struct rank *me)
{
  struct reference *ref = calloc(1, sizeof *ref);
  if (!ref) return NULL;
  ref->me = me;
  ref->config = *config;
  ref->n = n;
  ref->nranks = nranks;
  ref->boundaries = calloc((size_t)nranks + 1, sizeof *ref->boundaries);
  pthread_barrier_init(&ref->barrier, NULL, (unsigned)nranks);
  for (int r = me ? me->rank : 0; r < (me ? me->rank + 1 : nranks); r++) {
    struct reference_rank *rank = &ref->ranks[r];
    const struct simple_link link = {(void *)(uintptr_t)me, gather_by_launcher};
    struct simple *s = rank->simple = simple_create(NULL, link, r, nranks, n, config);
    rank->residual = s->acc;
    rank->region_counts = calloc((size_t)nranks, sizeof *rank->region_counts);
    memcpy(ref->boundaries, s->boundaries, ((size_t)nranks + 1) * sizeof *ref->boundaries);
    ref->constants = s->constants;
    ref->k = s->k;
    ref->t = s->t;
    ref->capacity = s->capacity;
  }
  return ref;
}

void reference_destroy(struct reference *ref)
{
  for (int r = 0; r < ref->nranks; r++) {
    simple_destroy(ref->ranks[r].simple);
    free(ref->ranks[r].region_counts);
  }
  pthread_barrier_destroy(&ref->barrier);
  free(ref->boundaries);
  free(ref);
}

void reference_set_density(struct reference *ref, double density)
{
  ref->config.density = density;
  for (int r = 0; r < ref->nranks; r++) {
    struct simple *s = ref->ranks[r].simple;
    if (s == NULL) continue;
    simple_set_density(s, density);
    ref->k = s->k;
    ref->t = s->t;
  }
}

static void *run_side(void *argument)
{
  struct side *side = argument;
  struct reference *ref = side->ref;
  struct reference_rank *rank = &ref->ranks[side->rank];
  struct simple *s = rank->simple;
  uint64_t nonfinite, all[ref->nranks];
  if (!ref->me) s->link = (struct simple_link){side, gather_in_process};
  s->config = ref->config;
  s->constants = ref->constants;
  s->steps = ref->step;
  s->local_threshold = rank->local_threshold;
  s->global_threshold = ref->global_threshold;
  memcpy(s->boundaries, ref->boundaries, ((size_t)ref->nranks + 1) * sizeof *ref->boundaries);
  s->given_threshold = side->threshold;
  simple_step(s, side->gradient, 0);

  nonfinite = s->nonfinite;
  simple_numbers(s, &nonfinite, all, 1);
  for (int r = 1; r < ref->nranks; r++) all[0] += all[r];
  rank->noffered = s->last.local;
  rank->local_threshold = s->local_threshold;
  rank->gaussian_threshold = s->last.gaussian_threshold;
  rank->selected_above = s->last.selected_above;
  rank->selected_tie = s->last.selected_tie;
  rank->overflowed = s->last.overflowed;
  rank->words_sent = s->last.words_sent;
  rank->words_received = s->last.words_received;
  memset(rank->region_counts, 0, (size_t)ref->nranks * sizeof *rank->region_counts);
  for (size_t e = 0, region = 0; e < rank->noffered; e++) {
    while (s->offered[e].index >= s->boundaries[region + 1]) region++;
    rank->region_counts[region]++;
  }
  if (!ref->me && side->rank > 0) return NULL;
  ref->nonfinite = all[0] > 0 && ref->config.nonfinite == SPARSE_NONFINITE_ERROR;
  ref->step = s->steps;
  ref->result = s->result;
  ref->sums = s->sums;
  ref->global = s->global;
  ref->nglobal = s->last.dense || s->last.fell_back ? 0 : s->last.global;
  ref->dense = s->last.dense;
  ref->fell_back = s->last.fell_back;
  ref->exact_local = s->last.exact_local;
  ref->exact_global = s->last.exact_global;
  ref->repartitioned = s->last.repartitioned;
  memcpy(ref->boundaries, s->boundaries, ((size_t)ref->nranks + 1) * sizeof *ref->boundaries);
  ref->global_threshold = s->global_threshold;
  return NULL;
}

void reference_step(struct reference *ref, const float *const gradients[],
                    const double *gaussian_thresholds)
{
  struct side sides[16];
  for (int r = 0; r < ref->nranks; r++)
    sides[r] = (struct side){ref, r, gradients[r],
                             gaussian_thresholds ? gaussian_thresholds[r] : (double)NAN, 0};
  if (ref->me) {
    run_side(&sides[ref->me->rank]);
    return;
  }
  for (int r = 1; r < ref->nranks; r++)
    if (pthread_create(&sides[r].thread, NULL, run_side, &sides[r]) != 0) abort();
  run_side(&sides[0]);
  for (int r = 1; r < ref->nranks; r++) pthread_join(sides[r].thread, NULL);
}
