/* SPDX-License-Identifier: Apache-2.0 */
/* Invariants I4 to I6 and the interface. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "invariants_parts.h"

void violated(struct report *report, int invariant, const char *format, ...)
{
  va_list arguments;
  size_t used = strlen(report->text);
  if (report->told & 1u << invariant) return;
  report->told |= 1u << invariant;
  snprintf(report->text + used, report->size - used,
           "step %llu: I%d: ", (unsigned long long)report->ref->step - 1, invariant);
  used = strlen(report->text);
  va_start(arguments, format);
  vsnprintf(report->text + used, report->size - used, format, arguments);
  va_end(arguments);
  used = strlen(report->text);
  snprintf(report->text + used, report->size - used, "\n");
}

/* ---- I4: regions ------------------------------------------------------------------------------*/

static void check_regions(const struct invariants *inv, struct report *report)
{
  const struct reference *ref = report->ref;
  if (ref->boundaries[0] != 0 || ref->boundaries[ref->nranks] != ref->n)
    violated(report, 4, "regions do not cover everything");
  for (int j = 0; j < ref->nranks; j++) {
    if (ref->boundaries[j] > ref->boundaries[j + 1])
      violated(report, 4, "region %d ends before it begins", j);
    if (!ref->repartitioned && ref->boundaries[j] != inv->boundaries[j])
      violated(report, 4, "region %d moved, but this is no such step", j);
  }
  for (int r = 0; r < ref->nranks; r++) {
    const struct reference_rank *rank = &ref->ranks[r];
    size_t e = 0;
    for (int j = 0; j < ref->nranks; j++) {
      uint64_t count = 0;
      for (; e < rank->noffered && rank->offered[e] < ref->boundaries[j + 1]; e++) count++;
      if (count != rank->region_counts[j])
        violated(report, 4, "rank %d, region %d: %llu entries, not %llu", r, j,
                 (unsigned long long)count, (unsigned long long)rank->region_counts[j]);
    }
    if (rank->noffered > ref->capacity || (offers_k(ref, rank) && rank->noffered != ref->k))
      violated(report, 4, "rank %d: %zu entries, k %llu, capacity %llu", r, rank->noffered,
               (unsigned long long)ref->k, (unsigned long long)ref->capacity);
  }
}

/* ---- I5: thresholds ---------------------------------------------------------------------------*/

/* The threshold for the next step if `count` entries were above this one. */
static double followed(const struct reference *ref, const sparse_band_t *band, uint64_t count,
                       double threshold)
{
  bool low = count * (uint64_t)band->low.den < (uint64_t)band->low.num * ref->t;
  bool high = count * (uint64_t)band->high.den > (uint64_t)band->high.num * ref->t;
  return low ? threshold / band->low_factor : high ? threshold * band->high_factor : threshold;
}

struct position {
  const struct reference *ref;
  const struct reference_rank *rank;
  uint32_t bits;
  atomic_size_t above, equal;
};

static void find_position(void *context, size_t range)
{
  struct position *p = context;
  const struct range elements = range_of(p->ref->n, range);
  const float *acc = p->rank->acc;
  const uint32_t bits = p->bits;
  uint32_t above = 0, equal = 0;
  for (size_t i = elements.first; i < elements.end; i++) {
    above += magnitude(acc[i]) > bits;
    equal += magnitude(acc[i]) == bits;
  }
  p->above += above;
  p->equal += equal;
}

static bool is_kth_largest(const struct reference *ref, const struct reference_rank *rank,
                           uint32_t bits)
{
  struct position p = {ref, rank, bits, 0, 0};
  parallel_for(ref->team, range_count(ref->n), find_position, &p);
  return p.above < ref->k && p.above + p.equal >= ref->k;
}

/* The threshold that the rank says it has selected with. */
static bool selected_above(const struct reference_rank *rank, double threshold)
{
  float rounded = (float)threshold;
  uint32_t bits = rounded < 0 ? 0 : isnan(rounded) ? NOTHING_ABOVE : magnitude(rounded);
  return rank->selected_above == bits;
}

/* From the threshold before the step by raises to the one selected with, and by the band to the one
 * after it. */
static bool moved_by_factors(const struct invariants *inv, const struct reference *ref, int r)
{
  const struct reference_rank *rank = &ref->ranks[r];
  bool oktopk = is(ref, SPARSE_OKTOPK), found = ref->exact_local || rank->overflowed;
  double used = found ? value_of(rank->selected_above) : inv->local_thresholds[r];
  for (int j = 0; !found; j++) {
    bool above = rank->noffered * (uint64_t)ref->constants.raise_above.den >
                 (uint64_t)ref->constants.raise_above.num * ref->t;
    bool last = !oktopk || j == ref->constants.raise_steps;
    found = selected_above(rank, used) && (last || !above);
    if (!found && last) return false;
    if (!found) used *= ref->constants.raise_factor;
  }
  if (oktopk) used = followed(ref, &ref->constants.local_band, rank->noffered, used);
  return same(used, rank->local_threshold);
}

static void check_local_threshold(const struct invariants *inv, struct report *report, int r)
{
  const struct reference *ref = report->ref;
  const struct reference_rank *rank = &ref->ranks[r];
  bool exact = offers_k(ref, rank) || ref->exact_local ||
               (is(ref, SPARSE_GAUSSIANKSA) && !ref->config.gaussian_sa_threshold);
  bool right = true;
  if (exact) right = is_kth_largest(ref, rank, rank->selected_above);
  if (is(ref, SPARSE_TOPKAOPT) || is(ref, SPARSE_OKTOPK))
    right = right && moved_by_factors(inv, ref, r);
  else if (!offers_k(ref, rank))
    right = right && selected_above(rank, rank->local_threshold);
  if (!right)
    violated(report, 5, "rank %d: local threshold %.17g after %.17g, selected above %.9g", r,
             rank->local_threshold, inv->local_thresholds[r], value_of(rank->selected_above));
}

static void check_global_threshold(const struct invariants *inv, struct report *report)
{
  const struct reference *ref = report->ref;
  double wanted = inv->global_threshold;
  if (!is(ref, SPARSE_OKTOPK)) return;
  if (!ref->exact_global) {
    wanted = followed(ref, &ref->constants.global_band, ref->nglobal, wanted);
  } else if (ref->nglobal > 0) {
    uint32_t smallest = NOTHING_ABOVE;
    for (size_t e = 0; e < ref->nglobal; e++)
      if (magnitude(ref->global[e].value) < smallest) smallest = magnitude(ref->global[e].value);
    wanted = value_of(smallest);
  }
  if (!same(ref->global_threshold, wanted))
    violated(report, 5, "global threshold %.17g after %.17g, not %.17g", ref->global_threshold,
             inv->global_threshold, wanted);
}

/* ---- I6: words on the wire --------------------------------------------------------------------*/

/* Sums that are not zero in the region of rank j, or the size of the region where TOPKSA gathers
 * densely: what its owner hands to everyone. */
static uint64_t words_of_region(const struct reference *ref, int j)
{
  uint64_t words = 0;
  if (ref->fell_back) return ref->boundaries[j + 1] - ref->boundaries[j];
  if (is(ref, SPARSE_OKTOPK) && !ref->exact_global) {
    for (size_t e = 0; e < ref->nglobal; e++)
      words += ref->global[e].index >= ref->boundaries[j] &&
               ref->global[e].index < ref->boundaries[j + 1];
  } else {
    for (uint64_t i = ref->boundaries[j]; i < ref->boundaries[j + 1]; i++)
      words += ref->sums[i] != 0;
  }
  return 2 * words;
}

struct regions {
  const struct reference *ref;
  uint64_t *words;
};

static void count_words(void *context, size_t j)
{
  const struct regions *regions = context;
  regions->words[j] = words_of_region(regions->ref, (int)j);
}

static bool is_balanced(const struct reference *ref, uint64_t most, uint64_t all)
{
  sparse_balance_t balance = ref->config.balance;
  if (!is(ref, SPARSE_OKTOPK)) return false;
  return balance == SPARSE_BALANCE_AUTO ? most * (uint64_t)ref->nranks > 4 * all
                                        : balance == SPARSE_BALANCE_ALWAYS;
}

/* Where the even share of rank r begins among all words: the first ranks have an entry more. */
static uint64_t even_begin(uint64_t all, int nranks, int r)
{
  uint64_t entries = all / 2, each = entries / (uint64_t)nranks, more = entries % (uint64_t)nranks;
  return 2 * (each * (uint64_t)r + ((uint64_t)r < more ? (uint64_t)r : more));
}

static void check_words(struct report *report)
{
  const struct reference *ref = report->ref;
  const size_t nranks = (size_t)ref->nranks;
  uint64_t others = nranks - 1, k = ref->k, offered = 0, words[nranks];
  uint64_t begins[nranks + 1], most = 0; /* of the words of each region among those of all */
  struct regions regions = {ref, words};
  if (sums_by_owner(ref)) parallel_for(ref->team, nranks, count_words, &regions);
  begins[0] = 0;
  for (size_t r = 0; r < nranks; r++) {
    uint64_t own = sums_by_owner(ref) ? words[r] : 0;
    offered += 2 * ref->ranks[r].noffered;
    begins[r + 1] = begins[r] + own;
    if (own > most) most = own;
  }
  uint64_t gathered = begins[ref->nranks];
  bool balanced = is_balanced(ref, most, gathered);
  for (int r = 0; r < ref->nranks; r++) {
    const struct reference_rank *rank = &ref->ranks[r];
    uint64_t sent = 0, received = 0;
    if (ref->dense) {
      sent = received = 2 * ref->n * others / (others + 1);
    } else if (sums_by_owner(ref)) {
      uint64_t first = begins[r], last = begins[r + 1], own = last - first;
      if (balanced) {
        uint64_t begin = even_begin(gathered, ref->nranks, r);
        uint64_t end = even_begin(gathered, ref->nranks, r + 1);
        uint64_t from = begin > first ? begin : first, to = end < last ? end : last;
        uint64_t stays = to > from ? to - from : 0;
        sent += own - stays;
        received += end - begin - stays;
        own = end - begin;
      }
      sent += 2 * (rank->noffered - rank->region_counts[r]) + own * others;
      received += gathered - own;
      for (int q = 0; q < ref->nranks; q++)
        if (q != r) received += 2 * ref->ranks[q].region_counts[r];
    } else if (is(ref, SPARSE_GTOPK)) {
      /* A node receives in all rounds before that of its lowest bit, in which it sends. */
      for (int bit = 1; !(r & bit) && r + bit < ref->nranks; bit *= 2) received += 2 * k;
      sent = r > 0 ? 2 * k : 2 * k * others;
      received += r > 0 ? 2 * k : 0;
    } else {
      sent = 2 * rank->noffered * others;
      received = offered - 2 * rank->noffered;
    }
    if (rank->words_sent != sent || rank->words_received != received)
      violated(report, 6, "rank %d: words sent %llu received %llu, not %llu and %llu", r,
               (unsigned long long)rank->words_sent, (unsigned long long)rank->words_received,
               (unsigned long long)sent, (unsigned long long)received);
  }
}

/* ---- interface --------------------------------------------------------------------------------*/

struct invariants *invariants_create(const struct reference *ref)
{
  struct invariants *inv = calloc(1, sizeof *inv);
  size_t ranks = (size_t)ref->nranks;
  if (!inv) return NULL;
  inv->local_thresholds = calloc(ranks, sizeof *inv->local_thresholds);
  inv->boundaries = calloc(ranks + 1, sizeof *inv->boundaries);
  inv->next = calloc(MOST_RANGES * ranks, sizeof *inv->next);
  if (inv->local_thresholds && inv->boundaries && inv->next) return inv;
  invariants_destroy(inv);
  return NULL;
}

void invariants_destroy(struct invariants *inv)
{
  if (!inv) return;
  free(inv->local_thresholds);
  free(inv->boundaries);
  free(inv->next);
  free(inv);
}

void invariants_before(struct invariants *inv, const struct reference *ref)
{
  size_t ranks = (size_t)ref->nranks;
  for (size_t r = 0; r < ranks; r++) inv->local_thresholds[r] = ref->ranks[r].local_threshold;
  inv->global_threshold = ref->global_threshold;
  memcpy(inv->boundaries, ref->boundaries, (ranks + 1) * sizeof *inv->boundaries);
}

int invariants_after(const struct invariants *inv, const struct reference *ref, char *text,
                     size_t size)
{
  struct report report = {.ref = ref, .text = text, .size = size};
  text[0] = '\0';
  check_words(&report);
  if (!ref->dense) {
    check_elements(inv, &report);
    check_regions(inv, &report);
    for (int r = 0; r < ref->nranks; r++) check_local_threshold(inv, &report, r);
    check_global_threshold(inv, &report);
  }
  return report.told != 0;
}
