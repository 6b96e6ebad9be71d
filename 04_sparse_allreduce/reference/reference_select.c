/* SPDX-License-Identifier: Apache-2.0 */
/* Reference: which entries of an array are large. */
#include <stdatomic.h>

#include "reference_parts.h"

/* ---- the k-th largest -------------------------------------------------------------------------*/

enum { DIGIT_BITS = 11 };

/* How often a digit has each of its values, where the higher digits are those that are known. */
struct digit {
  struct vector vector;
  uint32_t found, known; /* the digits so far, and a mask of where they are */
  int shift;
  uint32_t mask;
  atomic_size_t histogram[1 << DIGIT_BITS];
};

static void count_digit(void *context, size_t i)
{
  struct digit *d = context;
  const float *values = d->vector.values;
  const uint32_t found = d->found, known = d->known, mask = d->mask;
  const int shift = d->shift;
  const struct range range = range_of(d->vector.n, i);
  uint32_t histogram[1 << DIGIT_BITS] = {0};
  for (size_t e = range.first; e < range.end; e++) {
    uint32_t bits = magnitude_bits(values[e]);
    if ((bits & known) == found) histogram[(bits >> shift) & mask]++;
  }
  for (uint32_t bin = 0; bin <= mask; bin++)
    if (histogram[bin] > 0) atomic_fetch_add(&d->histogram[bin], histogram[bin]);
}

/* The k-th largest magnitude, one digit of its bits after the other: a histogram of the digit over
 * the values whose higher digits are known to be right says in which bin the k-th one is. *rank
 * becomes its number, from 1, among the values that are equal to it. */
static uint32_t kth_magnitude(struct vector vector, size_t k, size_t *rank)
{
  static const struct {
    int shift, bits;
  } digits[] = {{20, DIGIT_BITS}, {10, 10}, {0, 10}};
  uint32_t found = 0, known = 0;

  for (size_t i = 0; i < sizeof digits / sizeof *digits; i++) {
    uint32_t bin = (1u << digits[i].bits) - 1;
    struct digit d = {vector, found, known, digits[i].shift, bin, {0}};
    parallel_for(vector.team, range_count(vector.n), count_digit, &d);
    for (; d.histogram[bin] < k; bin--) k -= d.histogram[bin];
    found |= bin << d.shift;
    known |= d.mask << d.shift;
  }
  *rank = k;
  return found;
}

struct equals {
  struct vector vector;
  uint32_t magnitude;
  size_t counts[MOST_RANGES]; /* of each range */
};

static void count_equals(void *context, size_t i)
{
  struct equals *equals = context;
  const float *values = equals->vector.values;
  const uint32_t magnitude = equals->magnitude;
  const struct range range = range_of(equals->vector.n, i);
  uint32_t count = 0;
  for (size_t e = range.first; e < range.end; e++) count += magnitude_bits(values[e]) == magnitude;
  equals->counts[i] = count;
}

/* The index of the number-th value, from 1, of a magnitude. */
static size_t find_equal(struct vector vector, uint32_t magnitude, size_t number)
{
  struct equals equals = {.vector = vector, .magnitude = magnitude};
  size_t i = 0;
  parallel_for(vector.team, range_count(vector.n), count_equals, &equals);
  for (; equals.counts[i] < number; i++) number -= equals.counts[i];
  for (size_t e = range_of(vector.n, i).first;; e++)
    if (magnitude_bits(vector.values[e]) == magnitude && --number == 0) return e;
}

struct selection select_largest(struct vector vector, size_t k)
{
  struct selection s = {.highest = MAGNITUDE_NAN, .tie = -1};
  size_t equals;
  s.above = kth_magnitude(vector, k, &equals);
  s.tie = (int64_t)find_equal(vector, s.above, equals);
  return s;
}

/* ---- all that are selected --------------------------------------------------------------------*/

struct selection select_above(double threshold, size_t n)
{
  float rounded = (float)threshold;
  struct selection s = {.above = MAGNITUDE_NAN, .highest = MAGNITUDE_INFINITY, .tie = -1};
  if (rounded < 0) {
    s.above = 0;
    s.tie = (int64_t)n - 1; /* zeros, too */
  } else if (!isnan(rounded)) {
    s.above = magnitude_bits(rounded);
  }
  return s;
}

struct listing {
  struct vector vector;
  struct selection selection;
  size_t counts[MOST_RANGES]; /* of each range; then where its list begins */
  uint32_t *indices;          /* one of the two */
  struct sparse_pair *entries;
};

static void count_range(void *context, size_t i)
{
  struct listing *l = context;
  const float *values = l->vector.values;
  const struct selection s = l->selection;
  const struct range range = range_of(l->vector.n, i);
  const size_t ties = (size_t)(s.tie + 1) < range.end ? (size_t)(s.tie + 1) : range.end;
  uint32_t count = 0;
  for (size_t e = range.first; e < range.end; e++) { /* without a branch, so that it is fast */
    const uint32_t bits = magnitude_bits(values[e]);
    count += (bits > s.above) & (bits <= s.highest);
  }
  for (size_t e = range.first; e < ties; e++) count += magnitude_bits(values[e]) == s.above;
  l->counts[i] = count;
}

static void list_range(void *context, size_t i)
{
  struct listing *l = context;
  const float *values = l->vector.values;
  const struct selection s = l->selection;
  const struct range range = range_of(l->vector.n, i);
  size_t at = l->counts[i];
  for (size_t e = range.first; e < range.end; e++) {
    if (!selection_has(&s, e, values[e])) continue;
    if (l->indices) l->indices[at++] = (uint32_t)e;
    if (l->entries) l->entries[at++] = (struct sparse_pair){(uint32_t)e, values[e]};
  }
}

/* Counts, and if there is a list and room for them, lists. */
static size_t look_through(struct listing *l, size_t room)
{
  const size_t ranges = range_count(l->vector.n);
  size_t count = 0;
  parallel_for(l->vector.team, ranges, count_range, l);
  for (size_t i = 0; i < ranges; i++) {
    const size_t here = l->counts[i];
    l->counts[i] = count;
    count += here;
  }
  if (count > 0 && count <= room) parallel_for(l->vector.team, ranges, list_range, l);
  return count;
}

size_t count_selected(struct vector vector, struct selection selection)
{
  struct listing l = {.vector = vector, .selection = selection};
  return look_through(&l, 0);
}

size_t list_indices(struct vector vector, struct selection selection, uint32_t *to, size_t room)
{
  struct listing l = {.vector = vector, .selection = selection, .indices = to};
  return look_through(&l, room);
}

size_t list_entries(struct vector vector, struct selection selection, struct sparse_pair *to,
                    size_t room)
{
  struct listing l = {.vector = vector, .selection = selection, .entries = to};
  return look_through(&l, room);
}

/* ---- a threshold for normal distributions -----------------------------------------------------*/

/* The z with P(|x| > z) = density for x of the standard normal distribution. The tail Q(z) is
 * convex for z >= 0, so Newton's steps from 0 approach the solution from below and never pass it,
 * until rounding stops them. */
static double normal_quantile(double density)
{
  const double pi = 3.14159265358979323846;
  double z = 0;
  for (;;) {
    double tail = erfc(z / sqrt(2)) / 2, slope = exp(-z * z / 2) / sqrt(2 * pi);
    double next = z + (tail - density / 2) / slope;
    if (!(next > z)) return z;
    z = next;
  }
}

/* The sum of x - center, or of its square, over a vector, range by range. */
struct moment {
  struct vector vector;
  double center;
  bool squared;
  double sums[MOST_RANGES];
};

static void add_moment(void *context, size_t i)
{
  struct moment *m = context;
  const struct range range = range_of(m->vector.n, i);
  const float *values = m->vector.values;
  const double center = m->center;
  double sum = 0;
  for (size_t e = range.first; e < range.end; e++)
    sum += m->squared ? (values[e] - center) * (values[e] - center) : values[e] - center;
  m->sums[i] = sum;
}

static double moment(struct vector vector, double center, bool squared)
{
  struct moment m = {.vector = vector, .center = center, .squared = squared};
  double sum = 0;
  parallel_for(vector.team, range_count(vector.n), add_moment, &m);
  for (size_t i = 0; i < range_count(vector.n); i++) sum += m.sums[i];
  return sum;
}

double gaussian_threshold(struct vector vector, double density)
{
  const size_t n = vector.n;
  const double mean = moment(vector, 0, false) / (double)n;
  const double squares = moment(vector, mean, true);
  const double deviation = n > 1 ? sqrt(squares / (double)(n - 1)) : (double)NAN;
  return mean + normal_quantile(density) * deviation;
}
