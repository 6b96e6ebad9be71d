/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU versions of the operators, for `make CPU=1`, and the shortest way to read what the
 * kernels of lib/kernels/ compute. Results have the same bits, but for the last ones of mean and
 * deviation. "Device" memory is plain memory. */
#include <math.h>
#include <string.h>

#include <cpu_kernel.h>
#include "float16.h"
#include "handle.h"

/* An operator and its arguments, as far as it has them. It does run(call), or each(call, i) for all
 * entries of `list` or, without a list, all elements of the vectors; or it takes a decision. */
struct call {
  void (*run)(const struct call *call);
  void (*each)(const struct call *call, uint64_t i);
  void (*decision)(const struct sparse_memory *m), (*found)(const struct sparse_memory *m);
  struct sparse_memory m;
  struct sparse_list list, from;
  const void *gradient;
  enum sparse_candidates candidates;
  enum sparse_removal removal;
  struct sparse_selection *selection;
  const struct sparse_pair *lists;
  enum sparse_order order;
  enum sparse_sums which;
  enum sparse_thresholds thresholds;
  float scale, *vector;
};

/* GPUs have one NaN as the result of arithmetic; the CPU keeps the bits of an operand. */
static float one_nan(float x)
{
  return x != x ? sparse_from_magnitude(SPARSE_NAN_LEVEL) : x;
}

static uint64_t list_count(struct sparse_list list)
{
  uint64_t count = 0;
  for (int p = 0; p < list.parts; p++) count += list.counts[p];
  return count;
}

/* The first entry of a list whose index is not below `index`. */
static uint64_t lower_bound(const struct sparse_pair *pairs, uint64_t count, uint64_t index)
{
  uint64_t low = 0, high = count;
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (pairs[middle].index < index)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* ---- all operators --------------------------------------------------------------------------- */

static void run_call(const void *arg)
{
  const struct call *c = arg;
  const uint64_t count = c->list.pairs != NULL ? list_count(c->list) : c->m.n;
  for (uint64_t i = 0; c->each != NULL && i < count; i++) c->each(c, i);
  if (c->run != NULL) c->run(c);
  if (c->decision != NULL) c->decision(&c->m);
}

static ncclResult_t enqueue(const struct sparse_memory *m, cudaStream_t stream, struct call call)
{
  call.m = *m;
  return cpu_launch(stream, run_call, &call, sizeof(call)) == cudaSuccess ? ncclSuccess
                                                                          : ncclUnhandledCudaError;
}

#define DEFINE_DECISION(name)                                                 \
  ncclResult_t ops_##name(const struct sparse_memory *m, cudaStream_t stream) \
  {                                                                           \
    return enqueue(m, stream, (struct call){.decision = sparse_##name});      \
  }
OPS_DECISIONS(DEFINE_DECISION)

size_t ops_scratch_bytes(size_t n, int nranks, size_t capacity)
{
  (void)nranks, (void)capacity;
  return n; /* is element i an entry of the result? */
}

ncclResult_t ops_load(void)
{
  return ncclSuccess;
}

/* ---- the local pass -------------------------------------------------------------------------- */

/* Of a gradient of float, half or bfloat16. */
static float gradient_value(const void *gradient, ncclDataType_t type, size_t i)
{
  switch (type) {
  case ncclHalf:
    return half_to_float(((const uint16_t *)gradient)[i]);
  case ncclBfloat16:
    return bfloat16_to_float(((const uint16_t *)gradient)[i]);
  default:
    return ((const float *)gradient)[i];
  }
}

static void clear_pending(const struct call *c)
{
  const struct sparse_memory *m = &c->m;
  struct sparse_state *s = m->state;
  for (size_t i = 0; s->pending == SPARSE_REMOVE_OFFERED && i < m->n; i++)
    sparse_clear_element(s, m->residual, (uint32_t)i);
  for (uint64_t i = 0; s->pending == SPARSE_REMOVE_IN_RESULT && i < s->result_count; i++)
    sparse_clear_element(s, m->residual, m->gathered[i].index);
  s->pending = SPARSE_REMOVE_NOTHING;
}

ncclResult_t ops_clear_pending(const struct sparse_memory *m, cudaStream_t stream)
{
  return enqueue(m, stream, (struct call){.run = clear_pending});
}

static void local_pass(const struct call *c)
{
  const struct sparse_memory *m = &c->m;
  struct sparse_state *s = m->state;
  clear_pending(c);
  s->nlevels = sparse_first_levels(m, c->candidates, s->levels, &s->limit);
  sparse_begin(s, s->progress.epoch + 1);
  s->pending = c->removal;
  s->offered_count = 0;
  memset(s->level_counts, 0, sizeof(s->level_counts[0]) * (size_t)s->nlevels);
  for (size_t i = 0; i < m->n; i++) {
    if (c->gradient != NULL) {
      const float g = gradient_value(c->gradient, m->config.gradient_type, i);
      if (isfinite(g))
        m->residual[i] = one_nan(m->residual[i] + g);
      else if (!s->nonfinite)
        s->nonfinite = (uint32_t)i + 1;
    }
    const float acc = m->residual[i];
    const sparse_level_t magnitude = sparse_magnitude(acc);
    for (int j = 0; magnitude <= s->limit && j < s->nlevels; j++)
      s->level_counts[j] += magnitude > s->levels[j];
    if (magnitude > s->levels[0] && magnitude <= s->limit && s->offered_count < m->room)
      m->offered[s->offered_count++] = (struct sparse_pair){(uint32_t)i, acc};
  }
  if (c->candidates != SPARSE_GAUSSIAN_GUESS) return;
  double sum = 0, squares = 0;
  for (size_t i = 0; i < m->n; i++) sum += m->residual[i];
  s->mean = sum / (double)m->n;
  for (size_t i = 0; i < m->n; i++)
    squares += (m->residual[i] - s->mean) * (m->residual[i] - s->mean);
  s->deviation = sqrt(squares / (double)(m->n - 1));
}

ncclResult_t ops_local_pass(const struct sparse_memory *m, const void *gradient,
                            enum sparse_candidates candidates, enum sparse_removal removal,
                            cudaStream_t stream)
{
  const struct call c = {
      .run = local_pass, .gradient = gradient, .candidates = candidates, .removal = removal};
  return enqueue(m, stream, c);
}

/* ---- selection: a search for the largest entries, and a filter; counting above levels -------- */

/* A list, or all of the residual. */
struct input {
  const struct sparse_pair *pairs; /* NULL: the residual */
  const float *residual;
  uint64_t count;
};

static struct input input_from(const struct sparse_memory *m, struct sparse_list list,
                               uint32_t source)
{
  if (source == SPARSE_FROM_LIST) return (struct input){list.pairs, NULL, list_count(list)};
  return (struct input){NULL, m->residual, m->n};
}

static struct sparse_pair entry(const struct input *in, uint64_t i)
{
  if (in->pairs != NULL) return in->pairs[i];
  return (struct sparse_pair){(uint32_t)i, in->residual[i]};
}

/* The largest magnitude that at least `wanted` entries have or exceed, bit by bit. */
static void search(struct sparse_state *s, const struct input *in,
                   struct sparse_selection *selection)
{
  if (s->wanted > in->count) s->wanted = in->count;
  *selection = (struct sparse_selection){SPARSE_NAN_LEVEL, SPARSE_NAN_LEVEL, -1, s->wanted};
  if (s->wanted == 0) return;
  selection->above = 0;
  for (sparse_level_t bit = 1 << 30; bit > 0; bit >>= 1) {
    uint64_t count = 0;
    for (uint64_t i = 0; i < in->count; i++)
      count += sparse_magnitude(entry(in, i).value) >= (selection->above | bit);
    if (count >= s->wanted) selection->above |= bit;
  }
  for (uint64_t i = 0; i < in->count; i++)
    selection->take -= sparse_magnitude(entry(in, i).value) > selection->above;
}

static void keep(const struct call *c, const struct input *in)
{
  const struct sparse_selection selection = *c->selection;
  uint64_t kept = 0, taken = 0;
  for (uint64_t i = 0; i < in->count; i++) {
    const struct sparse_pair pair = entry(in, i);
    const sparse_level_t magnitude = sparse_magnitude(pair.value);
    bool chosen = sparse_chosen(&selection, magnitude, pair.index);
    if (selection.take > 0 && magnitude == selection.above) {
      chosen = magnitude <= selection.limit && taken < selection.take;
      if (chosen) {
        taken++;
        c->selection->tie = pair.index;
      }
    }
    if (chosen) c->list.pairs[kept++] = pair;
  }
  *c->list.counts = kept;
}

static void run_select(const struct call *c)
{
  struct sparse_state *s = c->m.state;
  if (s->search_from != SPARSE_FROM_NOTHING) {
    const struct input in = input_from(&c->m, c->from, s->search_from);
    search(s, &in, c->selection);
    c->found(&c->m);
  }
  if (s->keep_from != SPARSE_FROM_NOTHING) {
    const struct input in = input_from(&c->m, c->from, s->keep_from);
    keep(c, &in);
  }
}

ncclResult_t ops_select_sums(const struct sparse_memory *m, struct sparse_list from,
                             struct sparse_list to, struct sparse_selection *selection,
                             cudaStream_t stream)
{
  const struct call c = {run_select, .found = sparse_sums_found, .from = from, .list = to,
                         .selection = selection};
  return enqueue(m, stream, c);
}

ncclResult_t ops_select_offered(const struct sparse_memory *m, cudaStream_t stream)
{
  const struct sparse_list list = sparse_offered(m);
  const struct call c = {run_select, .found = sparse_offered_found, .from = list, .list = list,
                         .selection = &m->state->selection};
  return enqueue(m, stream, c);
}

static void count_levels(const struct call *c)
{
  struct sparse_state *s = c->m.state;
  if (s->count_from == SPARSE_FROM_NOTHING) return;
  const struct input in = input_from(&c->m, sparse_offered(&c->m), s->count_from);
  for (int j = 0; j < s->nlevels; j++) {
    s->level_counts[j] = 0;
    for (uint64_t i = 0; i < in.count; i++) {
      const sparse_level_t magnitude = sparse_magnitude(entry(&in, i).value);
      s->level_counts[j] += magnitude > s->levels[j] && magnitude <= s->limit;
    }
  }
  sparse_gaussian_correct(&c->m);
}

ncclResult_t ops_count_levels(const struct sparse_memory *m, cudaStream_t stream)
{
  return enqueue(m, stream, (struct call){.run = count_levels});
}

/* ---- sums: the lists of all ranks are added, in a fixed order -------------------------------- */

/* All lists at once, from the lowest index up: no memory for the region. */
static void reduce(const struct call *c)
{
  const struct sparse_state *s = c->m.state;
  const bool from_owner = c->order == SPARSE_FROM_OWNER;
  const int n = c->m.nranks, rank = c->m.rank, first = from_owner ? rank : 0;
  const uint64_t *region = from_owner ? s->kept.boundaries + rank : s->fixed.whole;
  const float threshold = (float)s->kept.global_threshold;
  const struct sparse_pair *next[SPARSE_MAX_RANKS], *end[SPARSE_MAX_RANKS];
  uint64_t kept = 0;
  for (int p = 0; p < n; p++) {
    const struct sparse_pair *list =
        c->lists + (from_owner ? s->fixed.list_displs : s->received_displs)[p];
    next[p] = list + lower_bound(list, s->received_counts[p], region[0]);
    end[p] = list + lower_bound(list, s->received_counts[p], region[1]);
  }
  for (;;) {
    uint32_t index = SPARSE_NO_INDEX;
    for (int p = 0; p < n; p++)
      if (next[p] < end[p] && next[p]->index < index) index = next[p]->index;
    if (index == SPARSE_NO_INDEX) break;
    float sum = 0.0f;
    for (int i = 0, p = first; i < n; i++, p = (p + (from_owner ? n - 1 : 1)) % n)
      if (next[p] < end[p] && next[p]->index == index) sum = one_nan(sum + next[p]++->value);
    if (c->which == SPARSE_SUMS_ALL ||
        (c->which == SPARSE_SUMS_NONZERO ? sum != 0 : fabsf(sum) > threshold))
      c->list.pairs[kept++] = (struct sparse_pair){index, sum};
  }
  *c->list.counts = kept;
}

ncclResult_t ops_reduce(const struct sparse_memory *m, const struct sparse_pair *lists,
                        enum sparse_order order, enum sparse_sums which, struct sparse_list to,
                        cudaStream_t stream)
{
  const struct call c = {.run = reduce,
                         .decision = order == SPARSE_FROM_OWNER ? sparse_send_reduced : NULL,
                         .list = to,
                         .which = which,
                         .lists = lists,
                         .order = order};
  return enqueue(m, stream, c);
}

/* ---- regions --------------------------------------------------------------------------------- */

static void partition(const struct call *c)
{
  struct sparse_state *s = c->m.state;
  const uint64_t *boundaries = s->kept.boundaries;
  for (int p = 0; p < c->m.nranks; p++) {
    s->region_displs[p] = lower_bound(c->m.offered, s->offered_count, boundaries[p]);
    s->region_counts[p] = lower_bound(c->m.offered, s->offered_count, boundaries[p + 1]);
    s->region_counts[p] -= s->region_displs[p];
  }
}

ncclResult_t ops_partition(const struct sparse_memory *m, cudaStream_t stream)
{
  return enqueue(m, stream, (struct call){.run = partition});
}

/* ---- the result ------------------------------------------------------------------------------ */

/* Averages of the entries, and 0 elsewhere, if a dense result is wanted. */
static void apply(const struct call *c)
{
  bool *in_result = c->m.scratch;
  const bool dense = c->m.config.result != SPARSE_RESULT_ENTRIES;
  for (size_t i = 0; i < c->m.n; i++) {
    if (dense && in_result[i]) c->m.dense[i] = 0;
    in_result[i] = false;
  }
  const uint64_t count = list_count(c->list);
  for (uint64_t i = 0; i < count; i++) {
    const struct sparse_pair pair = c->list.pairs[i];
    if (dense) c->m.dense[pair.index] = one_nan(pair.value / (float)c->m.nranks);
    in_result[pair.index] = true;
  }
  for (int i = 0; count > 0 && i < SPARSE_SAMPLE; i++)
    c->m.state->sample[i] = sparse_magnitude(c->list.pairs[sparse_sample_place(i, count)].value);
  sparse_applied(&c->m, count, c->thresholds);
}

ncclResult_t ops_apply(const struct sparse_memory *m, struct sparse_list list,
                       enum sparse_thresholds thresholds, cudaStream_t stream)
{
  return enqueue(m, stream, (struct call){.run = apply, .list = list, .thresholds = thresholds});
}

static void add(const struct call *c, uint64_t at, float average)
{
  c->vector[at] = one_nan(fmaf(c->scale, average, c->vector[at]));
}

static void add_entry(const struct call *c, uint64_t i)
{
  add(c, c->list.pairs[i].index, c->list.pairs[i].value / (float)c->m.nranks);
}

static void add_element(const struct call *c, uint64_t i)
{
  add(c, i, c->m.dense[i]);
}

ncclResult_t ops_add(const struct sparse_memory *m, struct sparse_list list, float scale,
                     float *vector, cudaStream_t stream)
{
  return enqueue(m, stream,
                 (struct call){.each = add_entry, .list = list, .scale = scale, .vector = vector});
}

ncclResult_t ops_add_dense(const struct sparse_memory *m, float scale, float *vector,
                           cudaStream_t stream)
{
  return enqueue(m, stream, (struct call){.each = add_element, .scale = scale, .vector = vector});
}

/* ---- entries and elements on their own ------------------------------------------------------- */

static void give_back(const struct call *c, uint64_t i)
{
  const struct sparse_pair pair = c->list.pairs[i];
  const bool *in_result = c->m.scratch;
  if (!sparse_chosen(c->selection, sparse_magnitude(pair.value), pair.index) &&
      in_result[pair.index])
    c->m.residual[pair.index] = one_nan(c->m.residual[pair.index] + pair.value);
}

ncclResult_t ops_return(const struct sparse_memory *m, struct sparse_list list,
                        const struct sparse_selection *selection, cudaStream_t stream)
{
  const struct call c = {
      .each = give_back, .list = list, .selection = (struct sparse_selection *)selection};
  return enqueue(m, stream, c);
}

static void scatter(const struct call *c, uint64_t i)
{
  c->m.dense[c->list.pairs[i].index] = c->list.pairs[i].value;
}

ncclResult_t ops_scatter(const struct sparse_memory *m, struct sparse_list list,
                         cudaStream_t stream)
{
  return enqueue(m, stream, (struct call){.each = scatter, .list = list});
}

static void average(const struct call *c, uint64_t i)
{
  bool *in_result = c->m.scratch;
  c->m.dense[i] = one_nan(c->m.dense[i] / (float)c->m.nranks);
  if (in_result != NULL) in_result[i] = true;
}

ncclResult_t ops_average(const struct sparse_memory *m, cudaStream_t stream)
{
  return enqueue(m, stream, (struct call){.each = average});
}

static void convert(const struct call *c, uint64_t i)
{
  c->m.dense[i] = gradient_value(c->gradient, c->m.config.gradient_type, i);
}

ncclResult_t ops_convert(const struct sparse_memory *m, const void *gradient, cudaStream_t stream)
{
  return enqueue(m, stream, (struct call){.each = convert, .gradient = gradient});
}

/* ---- one-sided ------------------------------------------------------------------------------- */

/* That protocol is one of many threads, so only the kernels have it: make CPU=1 SPARSE_KERNELS=1 */
const struct sparse_onesided *const ops_onesided = NULL;
