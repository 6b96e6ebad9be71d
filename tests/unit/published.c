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

/* NaN is the largest, as torch has it. */
static int by_size(const struct entry *x, const struct entry *y)
{
  float a = fabsf(x->value), b = fabsf(y->value);
  if (isnan(a) || isnan(b)) return isnan(b) - isnan(a);
  return (a < b) - (a > b);
}

static int first_of_equals(const void *a, const void *b)
{
  const struct entry *x = a, *y = b;
  int order = by_size(x, y);
  return order ? order : (x->index > y->index) - (x->index < y->index);
}

static int last_of_equals(const void *a, const void *b)
{
  const struct entry *x = a, *y = b;
  int order = by_size(x, y);
  return order ? order : (x->index < y->index) - (x->index > y->index);
}

/* The entries of a vector that are not zero (or all), largest first. */
static struct entry *sorted(const float *values, size_t n, bool zeros, bool last, size_t *count)
{
  struct entry *entries = malloc((n + 1) * sizeof *entries);
  *count = 0;
  if (!entries) abort();
  for (size_t i = 0; i < n; i++)
    if (zeros || values[i] != 0) entries[(*count)++] = (struct entry){i, values[i]};
  qsort(entries, *count, sizeof *entries, last ? last_of_equals : first_of_equals);
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
  struct entry *entries = sorted(p->acc[r], p->n, true, false, &count);
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

/* numpy's searchsorted: a binary search that, with keys that ascend, begins where the one before
 * ended. In what is not sorted it finds little. */
static void leave_by_searchsorted(struct published *p, int r, const struct entry *b, size_t count)
{
  size_t low = 0;
  for (size_t i = 0; i < p->n; i++) {
    size_t high = count;
    if (!p->offered[r][i]) continue;
    while (low < high) {
      size_t middle = low + (high - low) / 2;
      if (b[middle].index < i)
        low = middle + 1;
      else
        high = middle;
    }
    if (b[low == count ? 0 : low].index == i) p->residual[r][i] = 0;
  }
}

/* What is in the result leaves the residual of those who offered it. `order` is that in which the
 * indices of the result come out of the step. */
static const char *update_residuals(struct published *p, const struct entry *order, size_t count)
{
  bool search = p->job != SPARSE_PRESET_VGG && !p->repaired;
  p->left = p->stayed = 0;
  for (int r = 0; r < p->nranks; r++) {
    if (search && count == 0 && p->noffered[r] > 0) return "IndexError: B_ar[idx] of an empty B_ar";
    if (search) leave_by_searchsorted(p, r, order, count);
    for (size_t e = 0; e < count; e++) {
      size_t i = order[e].index;
      if (!p->offered[r][i]) continue;
      if (!search) p->residual[r][i] = 0;
      p->left += p->residual[r][i] == 0;
      p->stayed += p->residual[r][i] != 0;
    }
  }
  return NULL;
}

static void write_result(struct published *p, float *result, const struct entry *entries,
                         size_t count)
{
  memset(result, 0, p->n * sizeof *result);
  for (size_t e = 0; e < count; e++) result[entries[e].index] = entries[e].value / (float)p->nranks;
}

static const char *exact_global_step(struct published *p)
{
  size_t count, wanted = k_of(p);
  struct entry *other = sorted(p->sums, p->n, false, true, &count);
  struct entry *entries = sorted(p->sums, p->n, false, false, &count);
  const char *raised = count == 0 ? "IndexError: values[-1] of an empty top-k" : NULL;
  p->nglobal = count < wanted ? count : wanted;
  write_result(p, p->result, entries, p->nglobal);
  write_result(p, p->other_result, other, p->nglobal);
  memset(p->arrived, 0, p->n * sizeof *p->arrived);
  for (size_t e = 0; e < p->nglobal; e++) p->arrived[entries[e].index] = entries[e].value;
  if (!raised) p->global_threshold = fabsf(entries[p->nglobal - 1].value);
  if (!raised) raised = update_residuals(p, entries, p->nglobal);
  free(entries);
  free(other);
  return raised;
}

static const char *reuse_global_step(struct published *p)
{
  const struct rules *rules = &rules_of[p->job];
  double t = floor((double)p->n * p->density);
  struct entry *entries = malloc((p->n + 1) * sizeof *entries);
  if (!entries) abort();
  memset(p->arrived, 0, p->n * sizeof *p->arrived);
  p->nglobal = 0;
  for (size_t i = 0; i < p->n; i++) {
    if (!(fabsf(p->sums[i]) > (float)p->global_threshold)) continue;
    entries[p->nglobal++] = (struct entry){i, p->sums[i]};
    p->arrived[i] = p->sums[i];
  }
  write_result(p, p->result, entries, p->nglobal);
  write_result(p, p->other_result, entries, p->nglobal);
  const char *raised = update_residuals(p, entries, p->nglobal);
  free(entries);
  if ((double)p->nglobal < of(rules->global_low, t))
    p->global_threshold /= rules->global_decrease;
  else if ((double)p->nglobal > of(rules->global_high, t))
    p->global_threshold *= rules->global_increase;
  return raised;
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
  raised = p->counter % rules->exact_interval == 0 ? exact_global_step(p) : reuse_global_step(p);
  p->counter++;
  return raised;
}

/* ---- topkSA -----------------------------------------------------------------------------------*/

/* The residual loses the k largest, but only what is above the smallest of them is sent. */
const char *published_topksa(struct published *p, const float *const gradients[])
{
  size_t nranks = (size_t)p->nranks, size = p->n / nranks;
  if (size == 0) return "ZeroDivisionError: integer modulo by zero";
  if (size * nranks + p->n % size != p->n) return "RuntimeError: torch.split sizes do not add up";
  for (size_t j = 0; j <= nranks; j++) p->boundaries[j] = j < nranks ? j * size : p->n;

  add_to_residuals(p, gradients);
  p->left = p->stayed = 0;
  for (int r = 0; r < p->nranks; r++) {
    size_t count;
    struct entry *entries = sorted(p->acc[r], p->n, true, false, &count);
    for (size_t e = 0; e < k_of(p); e++) p->residual[r][entries[e].index] = 0;
    offer_above(p, r, fabsf(entries[k_of(p) - 1].value));
    free(entries);
  }
  reduce(p);
  memcpy(p->arrived, p->sums, p->n * sizeof *p->sums);
  for (size_t i = 0; i < p->n; i++) p->result[i] = p->sums[i] / (float)p->nranks;
  p->counter++;
  return NULL;
}

/* ---- the others -------------------------------------------------------------------------------*/

const char *published_topkaopt(struct published *p, const float *const gradients[])
{
  bool exact = p->counter % 32 == 0;
  if (!exact && p->job != SPARSE_PRESET_BERT)
    return "TypeError: '>' not supported between 'Tensor' and 'NoneType'";
  add_to_residuals(p, gradients);
  memset(p->sums, 0, p->n * sizeof *p->sums);
  for (int r = 0; r < p->nranks; r++) {
    if (exact) p->local_threshold[r] = exact_threshold(p, r);
    offer_above(p, r, p->local_threshold[r]);
    for (size_t i = 0; i < p->n; i++) {
      if (!p->offered[r][i]) continue;
      p->sums[i] += p->acc[r][i];
      p->residual[r][i] = 0;
    }
  }
  for (size_t i = 0; i < p->n; i++) p->result[i] = p->sums[i] / (float)p->nranks;
  p->counter++;
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
  memset(p->sums, 0, p->n * sizeof *p->sums);
  for (int r = 0; r < p->nranks; r++) {
    double mean = 0, square = 0, n = (double)p->n;
    for (size_t i = 0; i < p->n; i++) mean += p->acc[r][i] / n;
    for (size_t i = 0; i < p->n; i++) square += pow(p->acc[r][i] - mean, 2) / (n - 1);
    p->local_threshold[r] = corrected(p, r, mean + z * sqrt(square));
    offer_above(p, r, p->local_threshold[r]);
    for (size_t i = 0; i < p->n; i++) {
      if (!p->offered[r][i]) continue;
      p->sums[i] += p->acc[r][i];
      p->residual[r][i] = 0;
    }
  }
  for (size_t i = 0; i < p->n; i++) p->result[i] = p->sums[i] / (float)p->nranks;
  p->counter++;
  return NULL;
}

const char *published_tree(int nranks)
{
  int rounds = (int)log2(nranks);
  for (int round = 0, step = 1; round < rounds; round++, step *= 2) {
    int participants = (nranks + step - 1) / step;
    for (int local = 0; local < participants; local += 2)
      if (local + 1 >= participants) return "IndexError: range object index out of range";
  }
  return NULL;
}

/* ---- gtopk ------------------------------------------------------------------------------------*/

/* numpy: sums of the first merge are stored in a float array, all later ones in a double one. */
struct node_entry {
  size_t index;
  double value;
};

static size_t first_with(const struct node_entry *list, size_t k, size_t index)
{
  size_t i = 0;
  while (i < k && list[i].index != index) i++;
  return i;
}

/* The k largest of both lists, largest first, of equals the last, as argsort()[-k:] has it. An
 * index that both have stays in the received list, with 0 for its value: if there is little else,
 * it is chosen twice. */
static void merge_as_numpy(struct node_entry *own, const struct node_entry *received, size_t k,
                           bool first)
{
  struct node_entry *all = malloc(2 * k * sizeof *all);
  if (!all) abort();
  memcpy(all, own, k * sizeof *all);
  for (size_t j = 0; j < k; j++) {
    size_t i = first_with(own, k, received[j].index);
    all[k + j] = (struct node_entry){received[j].index, (float)received[j].value}; /* as sent */
    if (i == k || first_with(received, k, received[j].index) != j) continue;
    all[i].value += all[k + j].value;
    if (first) all[i].value = (float)all[i].value;
    all[k + j].value = 0;
  }
  for (size_t kept = 0; kept < k; kept++) {
    size_t largest = 2 * k;
    for (size_t i = 0; i < 2 * k; i++)
      if (!isnan(all[i].value) && /* taken */
          (largest == 2 * k || fabs(all[i].value) >= fabs(all[largest].value)))
        largest = i;
    own[kept] = all[largest];
    all[largest].value = NAN;
  }
  free(all);
}

const char *published_gtopk(struct published *p, const float *const gradients[])
{
  const size_t k = k_of(p), ranks = (size_t)p->nranks;
  const char *raised = published_tree(p->nranks);
  if (raised) return raised;
  struct node_entry *lists = malloc(ranks * k * sizeof *lists);
  struct node_entry *offered = malloc(ranks * k * sizeof *offered);
  if (!lists || !offered) abort();
  add_to_residuals(p, gradients);
  for (size_t r = 0; r < ranks; r++) {
    size_t count;
    struct entry *entries = sorted(p->acc[r], p->n, true, false, &count);
    for (size_t e = 0; e < k; e++)
      lists[r * k + e] = (struct node_entry){entries[e].index, entries[e].value};
    p->noffered[r] = k;
    free(entries);
  }
  memcpy(offered, lists, ranks * k * sizeof *lists);
  for (size_t step = 1; step < ranks; step *= 2)
    for (size_t node = 0; node < ranks; node += 2 * step)
      merge_as_numpy(lists + node * k, lists + (node + step) * k, k, step == 1);

  memset(p->result, 0, p->n * sizeof *p->result);
  for (size_t e = 0; e < k; e++)
    p->result[lists[e].index] = (float)lists[e].value / (float)p->nranks;
  for (size_t e = 0; e < ranks * k; e++) /* what is in the result leaves the residual */
    if (first_with(lists, k, offered[e].index) < k) p->residual[e / k][offered[e].index] = 0;
  free(offered);
  free(lists);
  p->counter++;
  return NULL;
}

uint32_t published_index_on_the_wire(uint32_t index)
{
  return (uint32_t)(float)index;
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
  p->arrived = zeroed(n, sizeof *p->arrived);
  p->result = zeroed(n, sizeof *p->result);
  p->other_result = zeroed(n, sizeof *p->other_result);
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
  free(p->arrived);
  free(p->result);
  free(p->other_result);
  free(p);
}
