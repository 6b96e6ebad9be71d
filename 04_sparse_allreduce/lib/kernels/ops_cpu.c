/* SPDX-License-Identifier: Apache-2.0 */
/* The plain C twins of the operators, for `make CPU=1`, and the shortest way to read what the
 * kernels compute: one thread, one loop after the other. Results have the same bits as those of the
 * kernels, but for the last ones of mean and deviation.
 *
 * The structs that are launched hold a copy of an operator's arguments; "device" memory is plain
 * memory. */
#include "onesided/ops_onesided.h"

#ifdef CPU_STANDIN /* elsewhere this file is empty, so that every .c of the library may be \
                      compiled */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "decide/decide.h"

static ncclResult_t launch(cudaStream_t stream, void (*twin)(const void *args), const void *args,
                           size_t bytes)
{
  return cpu_launch(stream, twin, args, bytes) == cudaSuccess ? ncclSuccess
                                                              : ncclUnhandledCudaError;
}

size_t ops_scratch_bytes(size_t n, int nranks, size_t capacity)
{
  (void)nranks, (void)capacity;
  return n; /* is element i an entry of the result? */
}

ncclResult_t ops_load(void)
{
  return ncclSuccess;
}

/* ---- numbers ----------------------------------------------------------------------------------
 */

/* GPUs have one NaN as the result of arithmetic; the CPU keeps the bits of an operand. */
static float one_nan(float x)
{
  return x != x ? sparse_from_magnitude(SPARSE_NAN_LEVEL) : x;
}

static float half_value(uint16_t bits)
{
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  float x = exponent == 0    ? ldexpf((float)fraction, -24)
            : exponent == 31 ? (fraction ? NAN : INFINITY)
                             : ldexpf((float)(1024 + fraction), exponent - 25);
  return bits >> 15 ? -x : x;
}

static float bfloat16_value(uint16_t bits)
{
  const uint32_t wide = (uint32_t)bits << 16;
  float x;
  memcpy(&x, &wide, sizeof(x));
  return x;
}

static float gradient_value(const void *gradient, ncclDataType_t type, size_t i)
{
  switch (type) {
  case ncclHalf:
    return half_value(((const uint16_t *)gradient)[i]);
  case ncclBfloat16:
    return bfloat16_value(((const uint16_t *)gradient)[i]);
  default:
    return ((const float *)gradient)[i];
  }
}

/* ---- where entries come from ------------------------------------------------------------------
 */

static uint64_t list_count(struct sparse_list list)
{
  uint64_t count = 0;
  for (int p = 0; p < list.parts; p++) count += list.counts[p];
  return count;
}

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

static bool is_entry(struct sparse_pair pair)
{
  return pair.index != SPARSE_NO_INDEX;
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

/* ---- notes ------------------------------------------------------------------------------------
 * See struct sparse_notes. */

/* Where this rank sees what lies at `mine` in its own memory in that of rank p. */
static void *at_peer(const struct sparse_memory *m, int p, const void *mine)
{
  return m->state->peers[p] + ((const char *)mine - m->lists);
}

static void write_note(const struct sparse_memory *m, uint64_t *note, uint32_t value)
{
  __atomic_store_n(note, (uint64_t)m->state->number << 32 | value, __ATOMIC_RELEASE);
}

struct awaited {
  const uint64_t *notes;
  int count;
  uint32_t number, round; /* of the step; the first note has to say at least `round` */
  const uint64_t *stored; /* NULL, or it has to grow by the number of entries that a note says, */
  uint64_t before;        /* from this */
};

static bool all_there(const void *arg)
{
  const struct awaited *a = arg;
  for (int i = 0; i < a->count; i++)
    if (__atomic_load_n(&a->notes[i], __ATOMIC_ACQUIRE) >> 32 != a->number) return false;
  if ((uint32_t)a->notes[0] < a->round) return false;
  return a->stored == NULL || __atomic_load_n(a->stored, __ATOMIC_ACQUIRE) - a->before ==
                                  (uint32_t)a->notes[SPARSE_NOTE_COUNT];
}

/* Waits for what rank p has to tell in this step; false if it does not come in time. */
static bool await(const struct sparse_memory *m, int p, struct awaited a)
{
  struct sparse_state *s = m->state;
  const double seconds = m->config.timeout_seconds > 0 ? m->config.timeout_seconds : 1e9;
  if (!s->late && !cpu_wait(m->comm, all_there, &a, seconds)) s->late = (uint32_t)p + 1;
  return !s->late;
}

/* Tells the owners of regions where their entries are going to be. */
static void tell_owners(const struct sparse_memory *m)
{
  const struct sparse_state *s = m->state;
  for (int p = 0; p < m->nranks; p++) {
    uint64_t *notes = at_peer(m, p, m->notes->lists[m->rank]);
    write_note(m, &notes[SPARSE_NOTE_FIRST], (uint32_t)s->region_displs[p]);
    write_note(m, &notes[SPARSE_NOTE_COUNT], (uint32_t)s->region_counts[p]);
    write_note(m, &notes[SPARSE_NOTE_LEVEL], (uint32_t)-1);
    cpu_notify(m->comm, p);
  }
}

/* The entries to their memory, and then how many. */
static void store_parts(const struct sparse_memory *m)
{
  const struct sparse_state *s = m->state;
  for (int p = 0; p < m->nranks; p++) {
    const uint64_t first = s->region_displs[p], count = s->region_counts[p];
    if (p == m->rank) continue;
    memcpy(s->list_at[p] + first, m->offered + first, count * sizeof(*m->offered));
    __atomic_fetch_add((uint64_t *)at_peer(m, p, &m->notes->stored[m->rank]), count,
                       __ATOMIC_RELEASE);
    cpu_notify(m->comm, p);
  }
}

/* Which part of the offered list lies in which region. */
static void partition(const struct sparse_memory *m)
{
  struct sparse_state *s = m->state;
  for (int p = 0; p < m->nranks; p++) {
    const uint64_t first = lower_bound(m->offered, s->offered_count, s->boundaries[p]);
    s->region_displs[p] = first;
    s->region_counts[p] = lower_bound(m->offered, s->offered_count, s->boundaries[p + 1]) - first;
  }
}

/* And the owners get it. Who has waited in vain takes no part any more. */
static void send_parts(const struct sparse_memory *m)
{
  if (m->state->late) return;
  partition(m);
  tell_owners(m);
  store_parts(m);
}

/* The list that rank p has for this one, once it has told. */
static const struct sparse_pair *await_list(const struct sparse_memory *m, int p)
{
  const uint64_t *notes = m->notes->lists[p];
  struct sparse_state *s = m->state;
  const uint64_t *stored = p == m->rank ? NULL : &m->notes->stored[p];
  s->received_counts[p] = 0;
  if (!await(m, p, (struct awaited){notes, SPARSE_LIST_NOTES, s->number, 0, stored, s->stored[p]}))
    return m->received;
  s->received_counts[p] = (uint32_t)notes[SPARSE_NOTE_COUNT];
  if (p != m->rank) s->stored[p] += s->received_counts[p];
  return m->received + s->list_displs[p] + (uint32_t)notes[SPARSE_NOTE_FIRST];
}

static void tell_all_of_sums(const struct sparse_memory *m, uint64_t sums)
{
  const struct sparse_state *s = m->state;
  for (int p = 0; p < m->nranks; p++) {
    uint64_t *notes = at_peer(m, p, m->notes->sums[m->rank]);
    write_note(m, &notes[SPARSE_NOTE_SUMS], (uint32_t)sums);
    write_note(m, &notes[SPARSE_NOTE_NONFINITE], sparse_says_nonfinite(m, s));
    write_note(m, &notes[SPARSE_NOTE_TAKEN], (uint32_t)s->received_counts[p]);
    cpu_notify(m->comm, p);
  }
}

/* Each rank has a place for each digit in the memory of every rank: two, in turns. */
static uint32_t *histogram(const struct sparse_memory *m, int p, int digit)
{
  return m->histograms[2 * p + digit % 2];
}

/* counts[b] becomes the sum over all ranks. False if one does not come in time. */
static bool add_histograms(const struct sparse_memory *m, uint64_t *counts, int digit)
{
  for (int p = 0; p < m->nranks; p++) {
    uint32_t *to = at_peer(m, p, histogram(m, m->rank, digit));
    for (int b = 0; b < SPARSE_BINS; b++) to[b] = (uint32_t)counts[b];
    write_note(m, at_peer(m, p, &m->notes->histograms[m->rank]), (uint32_t)digit);
    cpu_notify(m->comm, p);
  }
  memset(counts, 0, SPARSE_BINS * sizeof(*counts));
  for (int p = 0; p < m->nranks; p++) {
    const uint64_t *note = &m->notes->histograms[p];
    if (!await(m, p, (struct awaited){note, 1, m->state->number, (uint32_t)digit, NULL, 0}))
      return false;
    for (int b = 0; b < SPARSE_BINS; b++) counts[b] += histogram(m, p, digit)[b];
  }
  return true;
}

/* Everybody's sums, one after the other. */
static void fetch_sums(const struct sparse_memory *m)
{
  struct sparse_state *s = m->state;
  uint64_t total = 0;
  for (int p = 0; p < m->nranks; p++) {
    const uint64_t *notes = m->notes->sums[p];
    const bool there =
        await(m, p, (struct awaited){notes, SPARSE_SUM_NOTES, s->number, 0, NULL, 0});
    s->gathered_displs[p] = total;
    s->gathered_counts[p] = there ? (uint32_t)notes[SPARSE_NOTE_SUMS] : 0;
    if (there && (uint32_t)notes[SPARSE_NOTE_NONFINITE])
      s->nonfinite = (uint32_t)notes[SPARSE_NOTE_NONFINITE];
    memcpy(m->gathered + total, at_peer(m, p, m->reduced),
           s->gathered_counts[p] * sizeof(*m->gathered));
    total += s->gathered_counts[p];
  }
}

/* ---- decisions --------------------------------------------------------------------------------
 */

struct control {
  struct sparse_memory m;
  enum sparse_decision what;
};

static void run_control(const void *args)
{
  const struct control *a = args;
  sparse_decide(a->what, &a->m);
}

ncclResult_t ops_decide(const struct sparse_memory *m, enum sparse_decision what,
                        cudaStream_t stream)
{
  const struct control a = {*m, what};
  return launch(stream, run_control, &a, sizeof(a));
}

/* ---- what is pending --------------------------------------------------------------------------
 */

static void settle(const struct sparse_memory *m)
{
  struct sparse_state *s = m->state;
  for (size_t i = 0; s->pending == SPARSE_REMOVE_OFFERED && i < m->n; i++)
    sparse_settle_element(s, m->residual, (uint32_t)i);
  for (uint64_t i = 0; s->pending == SPARSE_REMOVE_IN_RESULT && i < s->result_count; i++)
    if (is_entry(m->gathered[i])) sparse_settle_element(s, m->residual, m->gathered[i].index);
  s->pending = SPARSE_REMOVE_NOTHING;
}

static void run_settle(const void *args)
{
  settle(&((const struct control *)args)->m);
}

ncclResult_t ops_settle(const struct sparse_memory *m, cudaStream_t stream)
{
  const struct control a = {*m, SPARSE_THEN_NOTHING};
  return launch(stream, run_settle, &a, sizeof(a));
}

/* ---- the local pass ---------------------------------------------------------------------------
 */

struct local_pass {
  struct sparse_memory m;
  const void *gradient;
  enum sparse_candidates candidates;
  enum sparse_removal removal;
  bool moments, sends;
};

static void count_levels(struct sparse_state *s, sparse_level_t magnitude)
{
  for (int j = 0; magnitude <= s->limit && j < s->nlevels && magnitude > s->levels[j]; j++)
    s->level_counts[j]++;
}

static void run_local_pass(const void *args)
{
  const struct local_pass *a = args;
  const struct sparse_memory *m = &a->m;
  struct sparse_state *s = m->state;
  const bool finite_only = m->config.nonfinite != SPARSE_NONFINITE_PROPAGATE;
  settle(m);
  sparse_begin_pass(m, a->candidates);
  s->pending = a->removal;
  s->offered_count = 0;
  memset(s->level_counts, 0, sizeof(s->level_counts[0]) * (size_t)s->nlevels);
  for (size_t i = 0; i < m->n; i++) {
    if (a->gradient != NULL) {
      const float g = gradient_value(a->gradient, m->config.gradient_type, i);
      if (!finite_only || isfinite(g))
        m->residual[i] = one_nan(m->residual[i] + g);
      else if (!s->nonfinite)
        s->nonfinite = (uint32_t)i + 1;
    }
    const float acc = m->residual[i];
    const sparse_level_t magnitude = sparse_magnitude(acc);
    count_levels(s, magnitude);
    if (magnitude > s->levels[0] && magnitude <= s->limit && s->offered_count < m->room)
      m->offered[s->offered_count++] = (struct sparse_pair){(uint32_t)i, acc};
  }
  if (a->moments) {
    double sum = 0, squares = 0;
    for (size_t i = 0; i < m->n; i++) sum += m->residual[i];
    s->mean = sum / (double)m->n;
    for (size_t i = 0; i < m->n; i++)
      squares += (m->residual[i] - s->mean) * (m->residual[i] - s->mean);
    s->deviation = sqrt(squares / (double)(m->n - 1));
  }
  if (!a->sends) return;
  sparse_decide(SPARSE_OFFER_THRESHOLD, m);
  if (s->unoffered) return;
  uint64_t kept = 0; /* the kernel leaves the others to the owners of regions */
  for (uint64_t i = 0; kept < s->offered_count; i++)
    if (sparse_chosen(&s->selection, sparse_magnitude(m->offered[i].value), m->offered[i].index))
      m->offered[kept++] = m->offered[i];
  send_parts(m);
}

ncclResult_t ops_local_pass(const struct sparse_memory *m, const void *gradient,
                            enum sparse_candidates candidates, enum sparse_removal removal,
                            cudaStream_t stream)
{
  const struct local_pass a = {
      .m = *m, .gradient = gradient, .candidates = candidates, .removal = removal};
  return launch(stream, run_local_pass, &a, sizeof(a));
}

ncclResult_t ops_local_pass_moments(const struct sparse_memory *m, const void *gradient,
                                    enum sparse_candidates candidates, enum sparse_removal removal,
                                    cudaStream_t stream)
{
  const struct local_pass a = {
      .m = *m, .gradient = gradient, .candidates = candidates, .removal = removal, .moments = true};
  return launch(stream, run_local_pass, &a, sizeof(a));
}

ncclResult_t ops_pass_and_send(const struct sparse_memory *m, const void *gradient,
                               enum sparse_removal removal, cudaStream_t stream)
{
  const struct local_pass a = {.m = *m,
                               .gradient = gradient,
                               .candidates = SPARSE_ABOVE_THRESHOLDS,
                               .removal = removal,
                               .sends = true};
  return launch(stream, run_local_pass, &a, sizeof(a));
}

static void run_count_levels(const void *args)
{
  const struct control *a = args;
  const struct sparse_memory *m = &a->m;
  struct sparse_state *s = m->state;
  if (s->count_from != SPARSE_FROM_NOTHING) {
    const struct input in =
        input_from(m, (struct sparse_list){m->offered, &s->offered_count, 1}, s->count_from);
    memset(s->level_counts, 0, sizeof(s->level_counts[0]) * (size_t)s->nlevels);
    for (uint64_t i = 0; i < in.count; i++)
      if (is_entry(entry(&in, i))) count_levels(s, sparse_magnitude(entry(&in, i).value));
  }
  sparse_decide(a->what, m);
}

ncclResult_t ops_count_levels(const struct sparse_memory *m, enum sparse_decision then,
                              cudaStream_t stream)
{
  const struct control a = {*m, then};
  return launch(stream, run_count_levels, &a, sizeof(a));
}

/* ---- selection --------------------------------------------------------------------------------
 */

struct select {
  struct sparse_memory m;
  struct sparse_select what;
};

/* Three digits of a magnitude, highest first: a histogram of those that agree in the digits before
 * says in which digit the wanted one lies, and how many of the same digits are still wanted.
 * all_ranks: of the entries of all of them together, lower ranks taking theirs first. */
static void search(const struct sparse_memory *m, const struct input *in, bool all_ranks,
                   struct sparse_selection *selection)
{
  static const int shifts[] = {20, 10, 0};
  struct sparse_state *s = m->state;
  uint64_t wanted = s->wanted;
  uint32_t prefix = 0;
  *selection = (struct sparse_selection){SPARSE_NAN_LEVEL, SPARSE_NAN_LEVEL, -1, 0};
  for (int digit = 0; digit < 3; digit++) {
    const int bins = digit == 0 ? 2048 : 1024, shift = shifts[digit];
    uint64_t counts[SPARSE_BINS] = {0}, total = 0;
    for (uint64_t i = 0; i < in->count; i++) {
      const struct sparse_pair pair = entry(in, i);
      const uint32_t magnitude = (uint32_t)sparse_magnitude(pair.value);
      if (!is_entry(pair) || (digit > 0 && magnitude >> shifts[digit - 1] != prefix)) continue;
      counts[magnitude >> shift & (uint32_t)(bins - 1)]++;
    }
    if (all_ranks && !add_histograms(m, counts, digit)) wanted = 0;
    for (int b = 0; b < bins; b++) total += counts[b];
    if (wanted > total) wanted = total;
    if (digit == 0) s->wanted = wanted;
    if (digit == 0 && all_ranks) s->gathered_total = total;
    if (wanted == 0) return;
    int bin = bins - 1;
    while (wanted > counts[bin]) wanted -= counts[bin--];
    prefix = prefix << (digit == 0 ? 11 : 10) | (uint32_t)bin;
  }
  selection->above = (sparse_level_t)prefix;
  selection->take = wanted;
  if (!all_ranks) return;
  const uint32_t bin = prefix & 1023, own = histogram(m, m->rank, 2)[bin];
  for (int p = 0; p < m->rank; p++) {
    const uint32_t theirs = histogram(m, p, 2)[bin];
    selection->take -= theirs < selection->take ? theirs : selection->take;
  }
  if (selection->take > own) selection->take = own;
}

static void keep(const struct sparse_memory *m, const struct sparse_select *a)
{
  const struct input in = input_from(m, a->from, *a->keep);
  struct sparse_selection selection = *a->selection;
  uint64_t kept = 0, dropped = 0, taken = 0;
  for (uint64_t i = 0; i < in.count; i++) {
    const struct sparse_pair pair = entry(&in, i);
    const sparse_level_t magnitude = sparse_magnitude(pair.value);
    if (!is_entry(pair)) continue;
    bool chosen = sparse_chosen(&selection, magnitude, pair.index);
    if (selection.take > 0 && magnitude == selection.above) {
      chosen = magnitude <= selection.limit && taken < selection.take;
      if (chosen) {
        taken++;
        a->selection->tie = pair.index;
      }
    }
    if (chosen)
      a->to.pairs[kept++] = pair;
    else if (a->dropped.pairs != NULL)
      a->dropped.pairs[dropped++] = pair;
  }
  *a->to.counts = kept;
  if (a->dropped.pairs != NULL) *a->dropped.counts = dropped;
}

static bool says_something(const uint32_t *source)
{
  return source != NULL && *source != SPARSE_FROM_NOTHING;
}

static void search_and_keep(const struct sparse_memory *m, const struct sparse_select *a)
{
  if (says_something(a->search)) {
    const struct input in = input_from(m, a->from, *a->search);
    search(m, &in, false, a->selection);
  }
  sparse_decide(a->found, m);
  if (says_something(a->keep)) keep(m, a);
}

static void run_select(const void *args)
{
  const struct select *a = args;
  search_and_keep(&a->m, &a->what);
}

ncclResult_t ops_select(const struct sparse_memory *m, const struct sparse_select *select,
                        cudaStream_t stream)
{
  const struct select a = {*m, *select};
  return launch(stream, run_select, &a, sizeof(a));
}

static void run_select_sums(const void *args)
{
  const struct sparse_memory *m = args;
  struct sparse_state *s = m->state;
  if (s->late) return;
  const struct sparse_list sums = {m->reduced, &s->reduced_count, 1};
  const struct input in = input_from(m, sums, SPARSE_FROM_LIST);
  search(m, &in, true, &s->global);
  sparse_decide(SPARSE_GLOBAL_THRESHOLD, m);
  if (s->late) return;
  for (int p = 0; p < m->nranks; p++)
    write_note(m, at_peer(m, p, &m->notes->reduced[m->rank]), (uint32_t)s->reduced_count);
  const uint32_t all = SPARSE_FROM_LIST;
  const struct sparse_select chosen = {
      .from = sums, .to = {m->reduced, &s->chosen_count, 1}, .keep = &all, .selection = &s->global};
  keep(m, &chosen);
  tell_all_of_sums(m, s->chosen_count);
}

ncclResult_t ops_select_sums(const struct sparse_memory *m, cudaStream_t stream)
{
  return launch(stream, run_select_sums, m, sizeof(*m));
}

/* Of more candidates than its list holds a rank sends those that it chooses. */
static void choose_and_offer(const struct sparse_memory *m)
{
  struct sparse_state *s = m->state;
  const struct sparse_list offered = {m->offered, &s->offered_count, 1};
  const struct sparse_select select = {.from = offered,
                                       .to = offered,
                                       .search = &s->search_from,
                                       .keep = &s->keep_from,
                                       .selection = &s->selection,
                                       .found = SPARSE_OVERFLOW_FOUND};
  search_and_keep(m, &select);
  send_parts(m);
  s->unoffered = 0;
}

/* ---- regions ----------------------------------------------------------------------------------
 */

static void run_partition(const void *args)
{
  const struct control *a = args;
  partition(&a->m);
}

ncclResult_t ops_partition(const struct sparse_memory *m, cudaStream_t stream)
{
  const struct control a = {*m, SPARSE_THEN_NOTHING};
  return launch(stream, run_partition, &a, sizeof(a));
}

static void run_send_parts(const void *args)
{
  send_parts(&((const struct control *)args)->m);
}

ncclResult_t ops_send_parts(const struct sparse_memory *m, cudaStream_t stream)
{
  const struct control a = {*m, SPARSE_THEN_NOTHING};
  return launch(stream, run_send_parts, &a, sizeof(a));
}

static void run_propose(const void *args)
{
  const struct control *a = args;
  struct sparse_state *s = a->m.state;
  const uint64_t chunk = s->offered_count / (uint64_t)a->m.nranks;
  s->proposal[0] = chunk == 0;
  for (int j = 1; j < a->m.nranks; j++)
    s->proposal[j] = chunk == 0 ? 0 : a->m.offered[chunk * (uint64_t)j].index;
}

ncclResult_t ops_propose(const struct sparse_memory *m, cudaStream_t stream)
{
  const struct control a = {*m, SPARSE_THEN_NOTHING};
  return launch(stream, run_propose, &a, sizeof(a));
}

/* ---- sums -------------------------------------------------------------------------------------
 */

struct reduce {
  struct sparse_memory m;
  bool onesided; /* the lists that are for this rank; else: */
  const struct sparse_pair *base;
  const uint64_t *displs, *counts, *region;
  int first, stride;
  enum sparse_sums which;
  struct sparse_list to;
  enum sparse_decision then;
};

/* All lists at once, from the lowest index up: no memory for the region. */
static void run_reduce(const void *args)
{
  const struct reduce *a = args;
  const int n = a->m.nranks;
  const float threshold = (float)a->m.state->global_threshold;
  if (a->onesided && a->m.state->unoffered) choose_and_offer(&a->m);
  const struct sparse_pair *next[SPARSE_MAX_RANKS], *end[SPARSE_MAX_RANKS];
  uint64_t kept = 0;
  for (int p = 0; p < n; p++) {
    const struct sparse_pair *list = a->onesided ? await_list(&a->m, p) : a->base + a->displs[p];
    const uint64_t count = a->onesided ? a->m.state->received_counts[p] : a->counts[p];
    next[p] = list + lower_bound(list, count, a->region[0]);
    end[p] = list + lower_bound(list, count, a->region[1]);
    if (end[p] < next[p]) end[p] = next[p];
  }
  for (;;) {
    uint32_t index = SPARSE_NO_INDEX;
    for (int p = 0; p < n; p++)
      if (next[p] < end[p] && next[p]->index < index) index = next[p]->index;
    if (index == SPARSE_NO_INDEX) break;
    float sum = 0.0f;
    for (int i = 0, p = a->first; i < n; i++, p = (p + a->stride + n) % n)
      if (next[p] < end[p] && next[p]->index == index) sum = one_nan(sum + next[p]++->value);
    if (a->which == SPARSE_SUMS_NONZERO ? sum != 0 : fabsf(sum) > threshold)
      a->to.pairs[kept++] = (struct sparse_pair){index, sum};
  }
  const bool late = a->onesided && a->m.state->late;
  *a->to.counts = late ? 0 : kept;
  sparse_decide(a->then, &a->m);
  if (a->onesided && !late && a->which == SPARSE_SUMS_ABOVE) tell_all_of_sums(&a->m, kept);
}

ncclResult_t ops_reduce(const struct sparse_memory *m, const struct sparse_pair *base,
                        const uint64_t *displs, const uint64_t *counts, int first, int stride,
                        const uint64_t *region, enum sparse_sums which, struct sparse_list to,
                        enum sparse_decision then, cudaStream_t stream)
{
  const struct reduce a = {.m = *m,
                           .base = base,
                           .displs = displs,
                           .counts = counts,
                           .region = region,
                           .first = first,
                           .stride = stride,
                           .which = which,
                           .to = to,
                           .then = then};
  return launch(stream, run_reduce, &a, sizeof(a));
}

ncclResult_t ops_reduce_sent(const struct sparse_memory *m, enum sparse_sums which,
                             cudaStream_t stream)
{
  struct sparse_state *s = m->state;
  const struct reduce a = {.m = *m,
                           .onesided = true,
                           .region = s->boundaries + m->rank,
                           .first = m->rank,
                           .stride = -1,
                           .which = which,
                           .to = {m->reduced, &s->reduced_count, 1},
                           .then = which == SPARSE_SUMS_NONZERO ? SPARSE_WANT_K_NEAR_THRESHOLD
                                                                : SPARSE_THEN_NOTHING};
  return launch(stream, run_reduce, &a, sizeof(a));
}

struct lists {
  struct sparse_memory m;
  struct sparse_list a, b, to;
  enum sparse_decision then;
};

static void run_merge(const void *args)
{
  const struct lists *x = args;
  const uint64_t na = list_count(x->a), nb = list_count(x->b);
  uint64_t i = 0, j = 0, count = 0;
  while (i < na || j < nb) {
    struct sparse_pair pair;
    if (j == nb || (i < na && x->a.pairs[i].index < x->b.pairs[j].index)) {
      pair = x->a.pairs[i++];
    } else if (i == na || x->b.pairs[j].index < x->a.pairs[i].index) {
      pair = x->b.pairs[j++];
    } else {
      pair = x->a.pairs[i++];
      pair.value = one_nan(pair.value + x->b.pairs[j++].value);
    }
    x->to.pairs[count++] = pair;
  }
  *x->to.counts = count;
}

ncclResult_t ops_merge(const struct sparse_memory *m, struct sparse_list a, struct sparse_list b,
                       struct sparse_list to, cudaStream_t stream)
{
  const struct lists x = {.m = *m, .a = a, .b = b, .to = to};
  return launch(stream, run_merge, &x, sizeof(x));
}

/* ---- results ----------------------------------------------------------------------------------
 */

static void apply(const struct sparse_memory *m, struct sparse_list list)
{
  const uint64_t count = list_count(list);
  bool *in_result = m->scratch;
  /* and nothing is noted: the local pass looks into the list of the result itself */
  if (m->config.result == SPARSE_RESULT_ENTRIES) return;
  for (size_t i = 0; i < m->n; i++) {
    if (in_result[i]) m->dense[i] = 0;
    in_result[i] = false;
  }
  for (uint64_t i = 0; i < count; i++) {
    const struct sparse_pair pair = list.pairs[i];
    if (!is_entry(pair)) continue;
    m->dense[pair.index] = one_nan(pair.value / (float)m->nranks);
    in_result[pair.index] = true;
  }
}

static void run_apply(const void *args)
{
  const struct lists *x = args;
  apply(&x->m, x->a);
  sparse_decide(x->then, &x->m);
}

ncclResult_t ops_apply(const struct sparse_memory *m, struct sparse_list list, cudaStream_t stream)
{
  const struct lists x = {.m = *m, .a = list};
  return launch(stream, run_apply, &x, sizeof(x));
}

static struct sparse_list gathered(const struct sparse_memory *m)
{
  return (struct sparse_list){m->gathered, m->state->gathered_counts, m->nranks};
}

ncclResult_t ops_apply_gathered(const struct sparse_memory *m, cudaStream_t stream)
{
  const struct lists x = {.m = *m, .a = gathered(m), .then = SPARSE_COLLECT_GATHERED};
  return launch(stream, run_apply, &x, sizeof(x));
}

static void run_apply_sums(const void *args)
{
  const struct control *a = args;
  fetch_sums(&a->m);
  apply(&a->m, gathered(&a->m));
  sparse_decide(a->what, &a->m);
}

ncclResult_t ops_apply_sums(const struct sparse_memory *m, enum sparse_decision adapt,
                            cudaStream_t stream)
{
  const struct control a = {*m, adapt};
  return launch(stream, run_apply_sums, &a, sizeof(a));
}

struct add {
  struct sparse_memory m;
  struct sparse_list list;
  float scale, *vector;
};

static void add_to(const struct add *a, size_t i, float result)
{
  a->vector[i] = one_nan(fmaf(a->scale, result, a->vector[i]));
}

static void run_add_entries(const void *args)
{
  const struct add *a = args;
  const uint64_t count = list_count(a->list);
  for (uint64_t i = 0; i < count; i++) {
    const struct sparse_pair pair = a->list.pairs[i];
    if (pair.index < a->m.n) add_to(a, pair.index, one_nan(pair.value / (float)a->m.nranks));
  }
}

ncclResult_t ops_add_entries(const struct sparse_memory *m, struct sparse_list list, float scale,
                             float *vector, cudaStream_t stream)
{
  const struct add a = {*m, list, scale, vector};
  return launch(stream, run_add_entries, &a, sizeof(a));
}

static void run_add_dense(const void *args)
{
  const struct add *a = args;
  for (size_t i = 0; i < a->m.n; i++) add_to(a, i, a->m.dense[i]);
}

ncclResult_t ops_add_dense(const struct sparse_memory *m, float scale, float *vector,
                           cudaStream_t stream)
{
  const struct add a = {.m = *m, .scale = scale, .vector = vector};
  return launch(stream, run_add_dense, &a, sizeof(a));
}

static void run_clear(const void *args)
{
  const struct sparse_memory *m = args;
  memset(m->dense, 0, m->n * sizeof(*m->dense));
  memset(m->scratch, 0, m->n);
}

ncclResult_t ops_clear(const struct sparse_memory *m, cudaStream_t stream)
{
  return launch(stream, run_clear, m, sizeof(*m));
}

static void run_return(const void *args)
{
  const struct lists *x = args;
  const uint64_t count = list_count(x->a), among = list_count(x->b);
  for (uint64_t i = 0; i < count; i++) {
    const struct sparse_pair pair = x->a.pairs[i];
    if (!is_entry(pair)) continue;
    const uint64_t at = lower_bound(x->b.pairs, among, pair.index);
    if (at < among && x->b.pairs[at].index == pair.index)
      x->m.residual[pair.index] = one_nan(x->m.residual[pair.index] + pair.value);
  }
}

ncclResult_t ops_return(const struct sparse_memory *m, struct sparse_list list,
                        struct sparse_list among, cudaStream_t stream)
{
  const struct lists x = {.m = *m, .a = list, .b = among};
  return launch(stream, run_return, &x, sizeof(x));
}

/* ---- dense vectors ------------------------------------------------------------------------------
 */

static void run_scatter(const void *args)
{
  const struct lists *x = args;
  const uint64_t count = list_count(x->a);
  for (uint64_t i = 0; i < count; i++)
    if (is_entry(x->a.pairs[i])) x->m.dense[x->a.pairs[i].index] = x->a.pairs[i].value;
}

ncclResult_t ops_scatter(const struct sparse_memory *m, struct sparse_list list,
                         cudaStream_t stream)
{
  const struct lists x = {.m = *m, .a = list};
  return launch(stream, run_scatter, &x, sizeof(x));
}

static void run_average(const void *args)
{
  const struct control *a = args;
  for (size_t i = 0; i < a->m.n; i++) a->m.dense[i] = one_nan(a->m.dense[i] / (float)a->m.nranks);
}

ncclResult_t ops_average(const struct sparse_memory *m, cudaStream_t stream)
{
  const struct control a = {*m, SPARSE_THEN_NOTHING};
  return launch(stream, run_average, &a, sizeof(a));
}

static void run_convert(const void *args)
{
  const struct local_pass *a = args;
  for (size_t i = 0; i < a->m.n; i++)
    a->m.dense[i] = gradient_value(a->gradient, a->m.config.gradient_type, i);
}

ncclResult_t ops_convert(const struct sparse_memory *m, const void *gradient, cudaStream_t stream)
{
  const struct local_pass a = {.m = *m, .gradient = gradient};
  return launch(stream, run_convert, &a, sizeof(a));
}

/* ---- indices and values apart -------------------------------------------------------------------
 */

struct zip {
  struct sparse_list list;
  uint32_t *indices;
  float *values;
};

static void run_unzip(const void *args)
{
  const struct zip *a = args;
  const uint64_t count = list_count(a->list);
  for (uint64_t i = 0; i < count; i++) {
    a->indices[i] = a->list.pairs[i].index;
    a->values[i] = a->list.pairs[i].value;
  }
}

ncclResult_t ops_unzip(const struct sparse_memory *m, struct sparse_list list, uint32_t *indices,
                       float *values, cudaStream_t stream)
{
  const struct zip a = {list, indices, values};
  (void)m;
  return launch(stream, run_unzip, &a, sizeof(a));
}

struct unzipped {
  struct sparse_list to;
  const uint32_t *indices;
  const float *values;
};

static void run_zip(const void *args)
{
  const struct unzipped *a = args;
  const uint64_t count = list_count(a->to);
  for (uint64_t i = 0; i < count; i++)
    a->to.pairs[i] = (struct sparse_pair){a->indices[i], a->values[i]};
}

ncclResult_t ops_zip(const struct sparse_memory *m, const uint32_t *indices, const float *values,
                     struct sparse_list to, cudaStream_t stream)
{
  const struct unzipped a = {to, indices, values};
  (void)m;
  return launch(stream, run_zip, &a, sizeof(a));
}

#endif
