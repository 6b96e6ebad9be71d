/* SPDX-License-Identifier: Apache-2.0 */
/* Invariants I1 to I3: one walk over all elements, cut into ranges that several cores take. Nothing
 * here uses the reference's own functions, and sums are formed in double. */
#include <float.h>

#include "invariants_parts.h"

/* All that is known of one element. */
struct element {
  size_t i;
  double acc, acc_size;         /* sums over all ranks of acc and |acc| */
  double offered, offered_size; /* the same of what was offered */
  double residual;              /* sum over all ranks */
  double discarded;             /* GTOPK: what nodes of the tree did not pass on */
  bool in_offered, in_global;
  float value; /* of the entry in global */
};

static bool discarded_at(const struct reference *ref, int node, size_t i)
{
  for (size_t d = 0; d < ref->ndiscarded; d++)
    if (ref->discarded[d].node == node && ref->discarded[d].entry.index == i) return true;
  return false;
}

static double discarded_of(const struct reference *ref, size_t i)
{
  double sum = 0;
  for (size_t d = 0; d < ref->ndiscarded; d++)
    if (ref->discarded[d].entry.index == i) sum += ref->discarded[d].entry.value;
  return sum;
}

static void check_offer(struct report *report, int r, const struct element *e, bool offered)
{
  const struct reference_rank *rank = &report->ref->ranks[r];
  uint32_t size = magnitude(rank->acc[e->i]);
  bool nan_may = offers_k(report->ref, rank);
  bool should = size > rank->selected_above ||
                (size == rank->selected_above && (int64_t)e->i <= rank->selected_tie);
  if (size > INFINITE && !nan_may) should = false;
  if (offered != should)
    violated(report, 2, "rank %d, element %zu: acc %.9g %s, above %.9g, tie %lld", r, e->i,
             (double)rank->acc[e->i], offered ? "offered" : "not offered",
             value_of(rank->selected_above), (long long)rank->selected_tie);
}

static void check_residual(struct report *report, int r, const struct element *e, bool offered)
{
  const struct reference *ref = report->ref;
  const struct reference_rank *rank = &ref->ranks[r];
  bool left = offered && (e->in_global || !keeps_what_lost(ref));
  uint32_t wanted = left ? 0 : bits_of(rank->acc[e->i]);
  if (bits_of(rank->residual[e->i]) == wanted) return;
  if (ref->config.gtopk_exact_residual && e->in_global && discarded_at(ref, r, e->i)) return;
  violated(report, 2, "rank %d, element %zu: residual %.9g, acc %.9g, %soffered, %sin the result",
           r, e->i, (double)rank->residual[e->i], (double)rank->acc[e->i], offered ? "" : "not ",
           e->in_global ? "" : "not ");
}

/* What was lost is what was discarded, if anything. Where values are or become infinite, nothing
 * can be said. */
static void check_conservation(struct report *report, const struct element *e)
{
  const struct reference *ref = report->ref;
  double bound = ref->nranks * ldexp(1, -24) * e->acc_size;
  double lost = e->acc - e->residual - (e->in_global ? (double)e->value : 0);
  if (!(e->acc_size <= FLT_MAX)) return;
  if (is(ref, SPARSE_GTOPK) && !ref->config.gtopk_exact_residual && e->in_global &&
      fabs(lost) > bound)
    lost -= discarded_of(ref, e->i);
  if (!(fabs(lost) <= bound))
    violated(report, 1, "element %zu: %.9g lost of %.9g, bound %.3g", e->i, lost, e->acc, bound);
}

static void check_sum(struct report *report, const struct element *e)
{
  const struct reference *ref = report->ref;
  float sum = ref->sums[e->i], result = ref->result[e->i];
  float average = e->in_global ? e->value / (float)ref->nranks : 0;
  double bound = ref->nranks * ldexp(1, -24) * e->offered_size;
  if (e->in_global && !e->in_offered)
    violated(report, 3, "element %zu is in the result, but nobody offered it", e->i);
  if (bits_of(result) != bits_of(average) && !(isnan(result) && isnan(average)))
    violated(report, 3, "element %zu: result %.9g, sum %.9g of %d ranks", e->i, (double)result,
             (double)(e->in_global ? e->value : 0), ref->nranks);
  if (e->in_global && !same(e->value, sum))
    violated(report, 3, "element %zu: entry %.9g, sum %.9g", e->i, (double)e->value, (double)sum);
  if (!is(ref, SPARSE_GTOPK) && e->offered_size <= FLT_MAX && !(fabs(sum - e->offered) <= bound))
    violated(report, 3, "element %zu: sum %.9g, offered %.9g", e->i, (double)sum, e->offered);
}

/* A walk over a range of elements: where it is in the lists, and what it has found. */
struct walk {
  struct report report;
  char no_text[1]; /* of the report: whether there is one suffices */
  size_t *next;    /* [nranks] */
  size_t next_global;
  uint64_t nonzero;
  uint32_t smallest, largest_left; /* in the result, and not in it */
};

static bool is_offered(const struct walk *w, int r, size_t i)
{
  const struct reference_rank *rank = &w->report.ref->ranks[r];
  return w->next[r] < rank->noffered && rank->offered[w->next[r]] == i;
}

static bool is_in_global(const struct walk *w, size_t i)
{
  const struct reference *ref = w->report.ref;
  return w->next_global < ref->nglobal && ref->global[w->next_global].index == i;
}

/* Most elements: nobody offered it or should have, all residuals are acc, and its sum and result
 * are zero. Then I1 to I3 hold. */
static bool is_untouched(const struct walk *w, size_t i)
{
  const struct reference *ref = w->report.ref;
  bool untouched =
      !is_in_global(w, i) && bits_of(ref->sums[i]) == 0 && bits_of(ref->result[i]) == 0;
  for (int r = 0; r < ref->nranks && untouched; r++) {
    const struct reference_rank *rank = &ref->ranks[r];
    untouched = !is_offered(w, r, i) && magnitude(rank->acc[i]) < rank->selected_above &&
                bits_of(rank->residual[i]) == bits_of(rank->acc[i]);
  }
  return untouched;
}

static void look_at(struct walk *w, size_t i)
{
  const struct reference *ref = w->report.ref;
  struct element e = {.i = i, .in_global = is_in_global(w, i)};
  if (e.in_global) e.value = ref->global[w->next_global++].value;
  for (int r = 0; r < ref->nranks; r++) {
    const struct reference_rank *rank = &ref->ranks[r];
    bool offered = is_offered(w, r, i);
    w->next[r] += offered;
    e.in_offered |= offered;
    e.acc += rank->acc[i];
    e.acc_size += fabs(rank->acc[i]);
    e.residual += rank->residual[i];
    if (offered) e.offered += rank->acc[i];
    if (offered) e.offered_size += fabs(rank->acc[i]);
    check_offer(&w->report, r, &e, offered);
    check_residual(&w->report, r, &e, offered);
  }
  check_conservation(&w->report, &e);
  check_sum(&w->report, &e);

  uint32_t size = magnitude(ref->sums[i]);
  w->nonzero += size > 0;
  if (e.in_global && size < w->smallest) w->smallest = size;
  if (!e.in_global && size > w->largest_left) w->largest_left = size;
}

/* The first of `count` entries, ascending by the index that they begin with, from index i on. */
static size_t first_from(const void *entries, size_t size, size_t count, size_t i)
{
  size_t low = 0, high = count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    uint32_t index;
    memcpy(&index, (const char *)entries + middle * size, sizeof index);
    if (index < i)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

static void walk(struct walk *w, struct range elements)
{
  const struct reference *ref = w->report.ref;
  w->next_global = first_from(ref->global, sizeof *ref->global, ref->nglobal, elements.first);
  for (int r = 0; r < ref->nranks; r++) {
    const struct reference_rank *rank = &ref->ranks[r];
    w->next[r] = first_from(rank->offered, sizeof *rank->offered, rank->noffered, elements.first);
  }
  w->smallest = NOTHING_ABOVE;
  for (size_t i = elements.first; i < elements.end; i++)
    if (!is_untouched(w, i)) look_at(w, i);
}

static void walk_range(void *context, size_t range)
{
  struct walk *w = (struct walk *)context + range;
  walk(w, range_of(w->report.ref->n, range));
}

static bool ascends(const void *entries, size_t size, size_t count, size_t n)
{
  const char *at = entries;
  size_t least = 0; /* that the next index can be */
  for (size_t e = 0; e < count; e++) {
    uint32_t index;
    memcpy(&index, at + e * size, sizeof index);
    if (index < least || index >= n) return false;
    least = (size_t)index + 1;
  }
  return true;
}

static bool lists_ascend(const struct reference *ref)
{
  bool all = ascends(ref->global, sizeof *ref->global, ref->nglobal, ref->n);
  for (int r = 0; r < ref->nranks; r++) {
    const struct reference_rank *rank = &ref->ranks[r];
    all &= ascends(rank->offered, sizeof *rank->offered, rank->noffered, ref->n);
  }
  return all;
}

/* How many sums the result holds, and that none that it does not hold is larger. */
static void check_global(const struct invariants *inv, struct report *report, const struct walk *w)
{
  const struct reference *ref = report->ref;
  const uint32_t smallest = w->smallest, largest_left = w->largest_left;
  uint64_t wanted = w->nonzero, most = ref->t > 0 ? ref->t : 1;
  if (is(ref, SPARSE_TOPKA2)) most = ref->k;
  if ((ref->exact_global || is(ref, SPARSE_TOPKA2)) && wanted > most) wanted = most;
  if (is(ref, SPARSE_GTOPK)) wanted = ref->k;
  if (is(ref, SPARSE_OKTOPK) && !ref->exact_global) {
    float threshold = (float)inv->global_threshold;
    if (ref->nglobal > 0 && !(value_of(smallest) > (double)threshold))
      violated(report, 3, "smallest sum of the result %.9g, threshold %.9g", value_of(smallest),
               (double)threshold);
    if (value_of(largest_left) > (double)threshold)
      violated(report, 3, "sum %.9g not in the result, threshold %.9g", value_of(largest_left),
               (double)threshold);
  } else if (ref->nglobal != wanted) {
    violated(report, 3, "%zu entries in the result, not %llu", ref->nglobal,
             (unsigned long long)wanted);
  } else if (!is(ref, SPARSE_GTOPK) && ref->nglobal > 0 && largest_left > smallest) {
    violated(report, 3, "sum %.9g not in the result, but %.9g", value_of(largest_left),
             value_of(smallest));
  }
}

void check_elements(const struct invariants *inv, struct report *report)
{
  const struct reference *ref = report->ref;
  const size_t ranges = range_count(ref->n), nranks = (size_t)ref->nranks;
  struct walk walks[MOST_RANGES] = {0}, all = {.smallest = NOTHING_ABOVE};
  bool good = lists_ascend(ref);

  for (size_t i = 0; i < ranges; i++) {
    walks[i].report = (struct report){ref, walks[i].no_text, sizeof walks[i].no_text, 0};
    walks[i].next = inv->next + i * nranks;
  }
  if (good) parallel_for(ref->team, ranges, walk_range, walks);
  for (size_t i = 0; i < ranges; i++) {
    const struct walk *w = &walks[i];
    good &= w->report.told == 0;
    all.nonzero += w->nonzero;
    if (w->smallest < all.smallest) all.smallest = w->smallest;
    if (w->largest_left > all.largest_left) all.largest_left = w->largest_left;
  }
  if (!good) { /* once more from the beginning to the end, to say what comes first */
    all = (struct walk){.report = *report, .next = inv->next};
    walk(&all, (struct range){0, ref->n});
    for (int r = 0; r < ref->nranks; r++)
      if (all.next[r] != ref->ranks[r].noffered)
        violated(&all.report, 2, "rank %d: offered list not ascending at entry %zu", r,
                 all.next[r]);
    if (all.next_global != ref->nglobal)
      violated(&all.report, 3, "result not ascending at entry %zu", all.next_global);
    report->told = all.report.told;
  }
  check_global(inv, report, &all);
}
