/* SPDX-License-Identifier: Apache-2.0 */
/* The paths by name, a rank's memory, and what several paths do. */
#include "float16.h"
#include "simple.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

const struct simple_path simple_paths[] = {
    [SPARSE_DENSE] = {"dense", simple_dense},
    [SPARSE_TOPKA] = {"topkA", simple_topka},
    [SPARSE_TOPKA2] = {"topkA2", simple_topka2},
    [SPARSE_TOPKAOPT] = {"topkAopt", simple_topkaopt},
    [SPARSE_GTOPK] = {"gtopk", simple_gtopk},
    [SPARSE_OKTOPK] = {"oktopk", simple_oktopk},
    [SPARSE_TOPKSA] = {"topkSA", simple_topksa},
    [SPARSE_GAUSSIANK] = {"gaussiank", simple_gaussiank},
    [SPARSE_GAUSSIANKCONCAT] = {"gaussiankconcat", simple_gaussiank}, /* entries are whole here */
    [SPARSE_GAUSSIANKSA] = {"gaussiankSA", simple_gaussianksa},
};
_Static_assert(sizeof simple_paths / sizeof *simple_paths >= SPARSE_ALGORITHMS,
               "a path without a row");
const int simple_path_count = sizeof simple_paths / sizeof *simple_paths;

void simple_paper_words(int path, double n, double k, double ranks, double *low, double *high)
{
  const double others = (ranks - 1) / ranks, rounds = ceil(log2(ranks));
  if (path == SPARSE_DENSE) {
    *low = *high = 2 * n * others;
  } else if (path == SPARSE_GTOPK) {
    *low = *high = 4 * k * rounds;
  } else if (path == SPARSE_OKTOPK) { /* the gather; split and balancing may take as much each */
    *low = 2 * k * others;
    *high = 6 * k * others;
  } else if (path == SPARSE_TOPKSA) {
    *low = fmin(4 * k, 2 * k + n) * others;
    *high = (2 * k + n) * others;
  } else if (path == SPARSE_GAUSSIANKSA) { /* not in the table: as TOPKSA, but all is gathered */
    *low = 4 * k * others;
    *high = 2 * k * others + 2 * k * (ranks - 1);
  } else { /* every rank sends what it offers to all others */
    *low = *high = 2 * k * (ranks - 1);
  }
}

/* ---- memory ---------------------------------------------------------------------------------- */

#ifdef CPU_STANDIN /* where the host can read device memory */
#define simple_on_device simple_on_host
#endif

struct simple *simple_create(ncclComm_t comm, const struct rank *me, size_t count,
                             const sparse_allreduce_config_t *config)
{
  const size_t ranks = (size_t)me->nranks;
  struct simple *s = launcher_allocate(sizeof *s);
  *s = (struct simple){.config = *config,
                       .on = comm ? &simple_on_device : &simple_on_host,
                       .comm = comm,
                       .me = me,
                       .allgather = launcher_allgather,
                       .rank = me->rank,
                       .nranks = me->nranks,
                       .n = count,
                       .t = (size_t)((double)count * config->density),
                       .local_threshold = (double)NAN,
                       .global_threshold = (double)NAN,
                       .given_threshold = (double)NAN};
  sparse_constants_init(&s->constants, config->preset);
  sparse_allreduce_sizes(count, config->density, &s->k, &s->capacity);
  for (size_t j = 0; j < ranks; j++) s->boundaries[j] = count / ranks * j;
  s->boundaries[ranks] = count;

  /* First the work memory: keys before and after sorting, and CUB's. Then lists, then vectors. */
  s->work_bytes = (s->on == &simple_on_host ? 0 : 32 * count) + (1 << 20);
  const size_t lists = ranks * s->capacity, entries = s->capacity + 2 * lists;
  const size_t bytes = s->work_bytes + entries * sizeof *s->offered + 3 * count * sizeof *s->acc;
  if (comm)
    CUDACHECK(cudaMalloc((void **)&s->work, bytes));
  else
    s->work = launcher_allocate(bytes);
  s->offered = (struct sparse_pair *)(s->work + s->work_bytes);
  s->received = s->offered + s->capacity;
  s->global = s->received + lists;
  s->acc = (float *)(s->global + lists);
  s->sums = s->acc + count;
  s->result = s->sums + count;
  simple_reset(s);
  return s;
}

void simple_destroy(struct simple *s)
{
  if (!s) return;
  if (s->comm)
    CUDACHECK(cudaFree(s->work));
  else
    free(s->work);
  free(s);
}

void simple_reset(struct simple *s)
{
  s->steps = 0;
  s->exact_step = (uint64_t)s->config.warmup_steps; /* finds thresholds and regions anew */
  simple_zero(s, s->acc);
  if (s->comm) CUDACHECK(cudaStreamSynchronize(s->stream)); /* the next step may have another one */
}

void simple_set_density(struct simple *s, double density)
{
  s->config.density = density;
  s->t = (size_t)((double)s->n * density);
  sparse_allreduce_sizes(s->n, density, &s->k, NULL); /* the capacity stays */
  if (s->steps > s->exact_step) s->exact_step = s->steps;
}

void simple_zero(struct simple *s, float *vector)
{
  if (s->on == &simple_on_host)
    memset(vector, 0, s->n * sizeof *vector);
  else
    CUDACHECK(cudaMemsetAsync(vector, 0, s->n * sizeof *vector, s->stream));
}

void simple_copy(struct simple *s, void *to, const void *from, size_t bytes)
{
  if (s->on == &simple_on_host) {
    memcpy(to, from, bytes);
    return;
  }
  CUDACHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, s->stream));
  CUDACHECK(cudaStreamSynchronize(s->stream));
}

/* ---- a step ---------------------------------------------------------------------------------- */

void simple_step(struct simple *s, const float *gradient, cudaStream_t stream)
{
  s->stream = stream;
  if (s->comm) CUDACHECK(cudaStreamSynchronize(stream)); /* the gradient */
  s->nonfinite = 0;
  s->last = (sparse_allreduce_statistics_t){.step = s->steps,
                                            .k = s->k,
                                            .capacity = s->capacity,
                                            .boundaries = s->boundaries,
                                            .gaussian_threshold = (double)NAN};
  if (s->steps < (uint64_t)s->config.warmup_steps)
    simple_dense(s, gradient);
  else
    simple_paths[s->config.algorithm].step(s, gradient);
  s->on->divide(s, s->result, s->sums, s->nranks);
  s->last.local_threshold = s->local_threshold;
  s->last.global_threshold = s->global_threshold;
  s->steps++;
}

int simple_is_due(const struct simple *s, int interval)
{
  return s->steps == s->exact_step || s->steps % (uint64_t)interval == 0;
}

void simple_accumulate(struct simple *s, const float *gradient)
{
  const struct simple_rule not_finite = {SIMPLE_INFINITY - 1, SIMPLE_NAN, -1};
  s->nonfinite = s->on->select(s, gradient, not_finite, NULL);
  s->on->add_gradient(s, s->acc, gradient);
}

/* ---- what a rank offers ---------------------------------------------------------------------- */

double simple_kth_magnitude(struct simple *s)
{
  return float16_of_bits(s->on->largest(s, s->acc, s->k).above);
}

struct simple_rule simple_above(const struct simple *s, double threshold)
{
  const float rounded = simple_add((float)threshold, 0); /* one NaN */
  const int all = rounded < 0;                           /* zeros, too */
  return (struct simple_rule){all ? 0 : simple_bits(rounded), SIMPLE_INFINITY,
                              all ? (int64_t)s->n - 1 : -1};
}

size_t simple_count_above(struct simple *s, double threshold)
{
  return s->on->select(s, s->acc, simple_above(s, threshold), NULL);
}

static void offer(struct simple *s, struct simple_rule rule)
{
  s->last.local = s->on->select(s, s->acc, rule, s->offered);
}

double simple_offer_largest(struct simple *s)
{
  const struct simple_rule largest = s->on->largest(s, s->acc, s->k);
  offer(s, largest);
  return float16_of_bits(largest.above);
}

void simple_offer_above(struct simple *s, double *threshold)
{
  const size_t most = (float)*threshold == 0 ? s->k : s->capacity;
  s->last.overflowed = simple_count_above(s, *threshold) > most;
  if (s->last.overflowed)
    *threshold = simple_offer_largest(s);
  else
    offer(s, simple_above(s, *threshold));
}

uint64_t simple_offered_index(struct simple *s, uint64_t e)
{
  struct sparse_pair entry;
  simple_copy(s, &entry, s->offered + e, sizeof entry);
  return entry.index;
}

/* How many of the offered entries have a lower index: a binary search in the list. */
static uint64_t offered_below(struct simple *s, uint64_t index)
{
  uint64_t low = 0, high = s->last.local;
  while (low < high) {
    const uint64_t middle = (low + high) / 2;
    if (simple_offered_index(s, middle) < index)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* ---- sums ------------------------------------------------------------------------------------ */

void simple_sum_at_all(struct simple *s)
{
  const struct sparse_pair *list = s->received;
  uint64_t counts[s->nranks];
  simple_numbers(s, &s->last.local, counts, 1);
  simple_gather(s, s->offered, counts, 2, s->received);
  simple_zero(s, s->sums);
  for (int r = 0; r < s->nranks; list += counts[r], r++)
    s->on->entries(s, SIMPLE_ADD, s->sums, list, counts[r], NULL);
  simple_list_sums(s, SIMPLE_NONZERO);
}

void simple_sum_at_owners(struct simple *s)
{
  const int P = s->nranks;
  uint64_t sends[P], receives[P], places[P], begin = 0;
  memset(sends, 0, sizeof sends); /* or gcc believes that there may be no rank */
  for (int r = 0; r < P; begin += sends[r++])
    sends[r] = (r < P - 1 ? offered_below(s, s->boundaries[r + 1]) : s->last.local) - begin;
  simple_split(s, s->offered, sends, s->received, receives);

  /* First this rank's own entries are added, then those of the rank before it, and so on. The order
   * is fixed, so the sums have the same bits in every run. */
  places[0] = 0;
  for (int r = 1; r < P; r++) places[r] = places[r - 1] + receives[r - 1];
  simple_zero(s, s->sums);
  for (int i = 0; i < P; i++) {
    const int from = (s->rank - i + P) % P;
    s->on->entries(s, SIMPLE_ADD, s->sums, s->received + places[from], receives[from], NULL);
  }
}

/* Where the r-th of P parts of a list begins; the first parts may have one entry more. */
static uint64_t part(uint64_t total, uint64_t P, uint64_t r)
{
  return total / P * r + (r < total % P ? r : total % P);
}

/* Evens out the lists s->received of all ranks: rank r gets the r-th part of all of them, in
 * s->global. */
static const struct sparse_pair *even_out(struct simple *s, uint64_t counts[], uint64_t total)
{
  const uint64_t P = (uint64_t)s->nranks, me = (uint64_t)s->rank;
  struct sparse_pair *mine = s->global + part(total, P, me);
  uint64_t e = 0, owner = 0, sends[P], receives[P];
  memset(sends, 0, sizeof sends);
  for (uint64_t r = 0; r < me; r++) e += counts[r]; /* where this rank's entries begin */
  for (const uint64_t end = e + counts[me]; e < end; sends[owner]++, e++)
    while (e >= part(total, P, owner + 1)) owner++;
  for (uint64_t r = 0; r < P; r++) counts[r] = part(total, P, r + 1) - part(total, P, r);
  simple_split(s, s->received, sends, mine, receives);
  return mine;
}

void simple_gather_sums(struct simple *s, struct simple_rule rule, int balance)
{
  const uint64_t own = s->on->select(s, s->sums, rule, s->received), P = (uint64_t)s->nranks;
  const struct sparse_pair *mine = s->received;
  uint64_t counts[P], total = 0;
  simple_numbers(s, &own, counts, 1);
  for (uint64_t r = 0; r < P; r++) total += counts[r];
  if (balance) mine = even_out(s, counts, total);
  simple_gather(s, mine, counts, 2, s->global);
  s->last.global = total;
  simple_sums_of_list(s);
}

/* ---- result and residual --------------------------------------------------------------------- */

void simple_list_sums(struct simple *s, struct simple_rule rule)
{
  s->last.global = s->on->select(s, s->sums, rule, s->global);
}

void simple_sums_of_list(struct simple *s)
{
  simple_zero(s, s->sums);
  s->on->entries(s, SIMPLE_ADD, s->sums, s->global, s->last.global, NULL);
}

void simple_clear_offered(struct simple *s)
{
  s->on->entries(s, SIMPLE_SET_0, s->acc, s->offered, s->last.local, NULL);
}

void simple_clear_offered_in_result(struct simple *s)
{
  s->on->entries(s, SIMPLE_SET_0, s->acc, s->offered, s->last.local, s->sums);
}
