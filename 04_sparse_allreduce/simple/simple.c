/* SPDX-License-Identifier: Apache-2.0 */
/* The paths by name, a rank's memory, and what several paths do. */
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
    [SPARSE_GAUSSIANKCONCAT] = {"gaussiankconcat",
                                simple_gaussiank}, /* entries travel whole here */
    [SPARSE_GAUSSIANKSA] = {"gaussiankSA", simple_gaussianksa},
};
const int simple_path_count = sizeof simple_paths / sizeof *simple_paths;

/* ---- memory ---------------------------------------------------------------------------------- */

static size_t most_in_result(size_t count, size_t capacity, int nranks)
{
  const size_t offered = (size_t)nranks * capacity;
  return offered < count ? offered : count;
}

enum { WORK_BYTES = 1 << 20 }; /* beside those for each element */

size_t simple_device_bytes(size_t count, double density, int nranks)
{
  size_t capacity;
  sparse_allreduce_sizes(count, density, NULL, &capacity);
  const size_t entries =
      ((size_t)nranks + 1) * capacity + 2 * most_in_result(count, capacity, nranks);
  return count * (3 * sizeof(float) + simple_on_device.work_bytes_per_element) +
         entries * sizeof(struct sparse_pair) + ((size_t)64 << 20);
}

static struct simple *create(struct simple given)
{
  struct simple *s = malloc(sizeof *s);
  if (!s) return NULL;
  *s = given;
  s->t = (size_t)((double)s->n * s->config.density);
  sparse_allreduce_sizes(s->n, s->config.density, &s->k, &s->capacity);
  s->given_threshold = (double)NAN;

  const size_t ranks = (size_t)s->nranks, vector = s->n * sizeof(float);
  const size_t entry = sizeof(struct sparse_pair);
  const size_t most = most_in_result(s->n, s->capacity, s->nranks) * entry;
  s->work_bytes = s->on->work_bytes_per_element * s->n + WORK_BYTES;
  s->acc = s->on->allocate(vector); /* zeros: no residual yet */
  s->sums = s->on->allocate(vector);
  s->result = s->on->allocate(vector);
  s->offered = s->on->allocate(s->capacity * entry);
  s->received = s->on->allocate(ranks * s->capacity * entry);
  s->reduced = s->on->allocate(most);
  s->global = s->on->allocate(most);
  s->work = s->on->allocate(s->work_bytes);
  s->numbers = s->on->allocate((ranks + 1) * ranks * sizeof *s->numbers);
  s->list = malloc(s->capacity * entry);
  s->boundaries = malloc((ranks + 1) * sizeof *s->boundaries);
  if (!s->acc || !s->sums || !s->result || !s->offered || !s->received || !s->reduced ||
      !s->global || !s->work || !s->numbers || !s->list || !s->boundaries) {
    simple_destroy(s);
    return NULL;
  }
  for (size_t j = 0; j < ranks; j++) s->boundaries[j] = s->n / ranks * j;
  s->boundaries[ranks] = s->n;
  return s;
}

static struct sparse_constants constants_of(const sparse_allreduce_config_t *config,
                                            const struct sparse_constants *constants)
{
  struct sparse_constants c;
  if (constants) return *constants;
  sparse_constants_init(&c, config->preset);
  return c;
}

struct simple *simple_create(ncclComm_t comm, size_t count, const sparse_allreduce_config_t *config,
                             const struct sparse_constants *constants)
{
  struct simple given = {.config = *config,
                         .constants = constants_of(config, constants),
                         .on = &simple_on_device,
                         .between = &simple_by_nccl,
                         .comm = comm,
                         .n = count};
  NCCLCHECK(ncclCommUserRank(comm, &given.rank));
  NCCLCHECK(ncclCommCount(comm, &given.nranks));
  return create(given);
}

struct simple *simple_create_on_host(struct simple_link link, int rank, int nranks, size_t count,
                                     const sparse_allreduce_config_t *config,
                                     const struct sparse_constants *constants)
{
  return create((struct simple){.config = *config,
                                .constants = constants_of(config, constants),
                                .on = &simple_on_host,
                                .between = &simple_by_link,
                                .link = link,
                                .rank = rank,
                                .nranks = nranks,
                                .n = count});
}

void simple_destroy(struct simple *s)
{
  if (!s) return;
  void *memory[] = {s->acc,     s->sums,   s->result, s->offered, s->received,
                    s->reduced, s->global, s->work,   s->numbers};
  for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) s->on->release(memory[i]);
  free(s->list);
  free(s->boundaries);
  free(s);
}

/* Thresholds and regions need no reset: the first step finds its own. */
void simple_reset(struct simple *s)
{
  s->steps = 0;
  s->on->zero(s, s->acc);
}

/* ---- a step ---------------------------------------------------------------------------------- */

void simple_step(struct simple *s, const float *gradient, cudaStream_t stream)
{
  const uint64_t step = s->steps;
  s->stream = stream;
  if (s->on == &simple_on_device) CUDACHECK(cudaStreamSynchronize(stream)); /* the gradient */
  s->nonfinite = 0;
  s->last = (sparse_allreduce_statistics_t){.step = step,
                                            .k = s->k,
                                            .capacity = s->capacity,
                                            .local_threshold = (double)NAN,
                                            .global_threshold = (double)NAN,
                                            .gaussian_threshold = (double)NAN,
                                            .selected_above = SIMPLE_NAN,
                                            .selected_tie = -1};
  if (step < (uint64_t)s->config.warmup_steps)
    simple_dense(s, gradient);
  else
    simple_paths[s->config.algorithm].step(s, gradient);
  s->steps++;
}

int simple_is_due(const struct simple *s, int interval)
{
  return s->steps == (uint64_t)s->config.warmup_steps || s->steps % (uint64_t)interval == 0;
}

void simple_accumulate(struct simple *s, const float *gradient)
{
  s->nonfinite = s->on->add_gradient(s, s->acc, gradient);
}

/* ---- what a rank offers ---------------------------------------------------------------------- */

double simple_magnitude(uint32_t bits)
{
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

struct simple_rule simple_above(const struct simple *s, double threshold)
{
  const float rounded = (float)threshold;
  struct simple_rule rule = {SIMPLE_NAN, SIMPLE_INFINITY, -1};
  if (rounded < 0)
    rule = (struct simple_rule){0, SIMPLE_INFINITY, (int64_t)s->n - 1}; /* zeros, too */
  else if (!isnan(rounded))
    memcpy(&rule.above, &rounded, sizeof rounded);
  rule.above &= 0x7fffffff; /* -0 is 0 */
  return rule;
}

size_t simple_count_above(struct simple *s, double threshold)
{
  return s->on->count(s, s->acc, 0, s->n, simple_above(s, threshold));
}

static void offer(struct simple *s, struct simple_rule rule)
{
  s->last.local = s->on->select(s, s->acc, 0, s->n, rule, s->offered);
  s->last.selected_above = rule.above;
  s->last.selected_tie = rule.tie;
}

void simple_offer_largest(struct simple *s)
{
  offer(s, s->on->largest(s, s->acc, s->k));
}

void simple_offer_above(struct simple *s, double *threshold)
{
  s->last.overflowed = simple_count_above(s, *threshold) > s->capacity;
  if (!s->last.overflowed) {
    offer(s, simple_above(s, *threshold));
  } else {
    simple_offer_largest(s);
    *threshold = simple_magnitude(s->last.selected_above);
  }
}

/* ---- sums ------------------------------------------------------------------------------------ */

void simple_sum_at_all(struct simple *s)
{
  const size_t ranks = (size_t)s->nranks;
  uint64_t counts[ranks], total = 0;
  s->between->numbers(s, &s->last.local, counts, 1);
  s->between->gather(s, s->offered, counts, sizeof *s->offered, s->received);
  s->on->zero(s, s->sums);
  for (size_t r = 0; r < ranks; total += counts[r], r++)
    s->on->add_entries(s, s->sums, s->received + total, counts[r]);
  s->last.words_sent += 2 * s->last.local * (ranks - 1);
  s->last.words_received += 2 * (total - s->last.local);
}

void simple_sum_at_owners(struct simple *s)
{
  const int P = s->nranks;
  uint64_t begins[P + 1], counts[P], all[P * P]; /* all[from * P + to] */
  s->on->copy(s, s->list, s->offered, s->last.local * sizeof *s->list);
  begins[0] = 0;
  for (int to = 0; to < P; to++) {
    uint64_t end = begins[to];
    while (end < s->last.local && s->list[end].index < s->boundaries[to + 1]) end++;
    counts[to] = end - begins[to];
    begins[to + 1] = end;
  }
  s->between->numbers(s, counts, all, (size_t)P); /* MPI: Alltoall(counts) */

  uint64_t places[P], receives[P], total = 0;
  for (int r = 0; r < P; r++) {
    receives[r] = all[r * P + s->rank];
    places[r] = total;
    total += receives[r];
  }
  s->between->split(s, s->offered, begins, s->received, places, receives);
  s->last.words_sent += 2 * (s->last.local - counts[s->rank]);
  s->last.words_received += 2 * (total - counts[s->rank]);

  /* First what this rank itself has, then what came from the rank before it, and so on: the order
   * is fixed, so the sums are the same bits in every run. */
  s->on->zero(s, s->sums);
  for (int i = 0; i < P; i++) {
    const int from = (s->rank - i + P) % P;
    s->on->add_entries(s, s->sums, s->received + places[from], receives[from]);
  }
}

/* oktopk may even out what the owners have before it is gathered: rank r gets entries
 * shares[r] ... shares[r + 1] - 1 of the concatenation, and s->received its share. */
static void even_out(struct simple *s, uint64_t counts[], uint64_t total)
{
  const uint64_t P = (uint64_t)s->nranks, me = (uint64_t)s->rank;
  uint64_t owned[P + 1], shares[P + 1], begins[P + 1], places[P], receives[P];
  owned[0] = shares[0] = 0;
  for (uint64_t r = 0; r < P; r++) {
    owned[r + 1] = owned[r] + counts[r];
    shares[r + 1] = shares[r] + total / P + (r < total % P);
  }
#define CLAMP(x, low, high) ((x) < (low) ? (low) : (x) > (high) ? (high) : (x))
  for (uint64_t r = 0; r <= P; r++)
    begins[r] = CLAMP(shares[r], owned[me], owned[me + 1]) - owned[me];
  for (uint64_t r = 0; r < P; r++) {
    const uint64_t first = CLAMP(owned[r], shares[me], shares[me + 1]);
    places[r] = first - shares[me];
    receives[r] = CLAMP(owned[r + 1], shares[me], shares[me + 1]) - first;
  }
#undef CLAMP
  s->between->split(s, s->reduced, begins, s->received, places, receives);
  s->last.words_sent += 2 * (counts[me] - receives[me]);
  s->last.words_received += 2 * (shares[me + 1] - shares[me] - receives[me]);
  for (uint64_t r = 0; r < P; r++) counts[r] = shares[r + 1] - shares[r];
}

uint64_t simple_gather_sums(struct simple *s, uint64_t mine)
{
  const int P = s->nranks;
  const sparse_balance_t balance = s->config.balance;
  uint64_t counts[P], total = 0, largest = 0;
  s->between->numbers(s, &mine, counts, 1);
  for (int r = 0; r < P; r++) {
    total += counts[r];
    if (largest < counts[r]) largest = counts[r];
  }
  const int even = s->config.algorithm == SPARSE_OKTOPK &&
                   (balance == SPARSE_BALANCE_ALWAYS ||
                    (balance == SPARSE_BALANCE_AUTO && largest * (uint64_t)P > 4 * total));
  if (even) even_out(s, counts, total);
  s->between->gather(s, even ? s->received : s->reduced, counts, sizeof *s->global, s->global);
  s->last.words_sent += 2 * counts[s->rank] * ((uint64_t)P - 1);
  s->last.words_received += 2 * (total - counts[s->rank]);
  return total;
}

/* ---- result and residual --------------------------------------------------------------------- */

void simple_scatter_global(struct simple *s)
{
  s->on->zero(s, s->sums);
  s->on->add_entries(s, s->sums, s->global, s->last.global);
}

void simple_average(struct simple *s)
{
  s->on->divide(s, s->result, s->sums, s->nranks);
}

void simple_clear_offered(struct simple *s)
{
  s->on->clear_entries(s, s->acc, s->offered, s->last.local, NULL);
}

void simple_clear_offered_in_result(struct simple *s)
{
  s->on->clear_entries(s, s->acc, s->offered, s->last.local, s->sums);
}
