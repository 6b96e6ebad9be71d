/* SPDX-License-Identifier: Apache-2.0 */
/* How ranks tell each other what is where in their memory: the twin of onesided/ops_notes.cuh. What
 * the functions are for stands in ops_cpu.h. */
#include "kernels/ops_cpu.h"

#ifdef CPU_STANDIN

void *twin_at_peer(const struct sparse_memory *m, int p, const void *mine)
{
  return m->state->peers[p] + ((const char *)mine - m->lists);
}

void twin_write_note(const struct sparse_memory *m, uint64_t *note, uint32_t value)
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

void twin_tell_owners(const struct sparse_memory *m)
{
  const struct sparse_state *s = m->state;
  for (int p = 0; p < m->nranks; p++) {
    uint64_t *notes = twin_at_peer(m, p, m->notes->lists[m->rank]);
    twin_write_note(m, &notes[SPARSE_NOTE_FIRST], (uint32_t)s->region_displs[p]);
    twin_write_note(m, &notes[SPARSE_NOTE_COUNT], (uint32_t)s->region_counts[p]);
    twin_write_note(m, &notes[SPARSE_NOTE_LEVEL], (uint32_t)-1);
    cpu_notify(m->comm, p);
  }
}

void twin_store_parts(const struct sparse_memory *m)
{
  const struct sparse_state *s = m->state;
  for (int p = 0; p < m->nranks; p++) {
    const uint64_t first = s->region_displs[p], count = s->region_counts[p];
    if (p == m->rank) continue;
    memcpy(s->list_at[p] + first, m->offered + first, count * sizeof(*m->offered));
    __atomic_fetch_add((uint64_t *)twin_at_peer(m, p, &m->notes->stored[m->rank]), count,
                       __ATOMIC_RELEASE);
    cpu_notify(m->comm, p);
  }
}

const struct sparse_pair *twin_await_list(const struct sparse_memory *m, int p)
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

void twin_tell_all_of_sums(const struct sparse_memory *m, uint64_t sums)
{
  const struct sparse_state *s = m->state;
  for (int p = 0; p < m->nranks; p++) {
    uint64_t *notes = twin_at_peer(m, p, m->notes->sums[m->rank]);
    twin_write_note(m, &notes[SPARSE_NOTE_SUMS], (uint32_t)sums);
    twin_write_note(m, &notes[SPARSE_NOTE_NONFINITE], sparse_says_nonfinite(m, s));
    twin_write_note(m, &notes[SPARSE_NOTE_TAKEN], (uint32_t)s->received_counts[p]);
    cpu_notify(m->comm, p);
  }
}

uint32_t *twin_histogram(const struct sparse_memory *m, int p, int digit)
{
  return m->histograms[2 * p + digit % 2];
}

bool twin_add_histograms(const struct sparse_memory *m, uint64_t *counts, int digit)
{
  for (int p = 0; p < m->nranks; p++) {
    uint32_t *to = twin_at_peer(m, p, twin_histogram(m, m->rank, digit));
    for (int b = 0; b < SPARSE_BINS; b++) to[b] = (uint32_t)counts[b];
    twin_write_note(m, twin_at_peer(m, p, &m->notes->histograms[m->rank]), (uint32_t)digit);
    cpu_notify(m->comm, p);
  }
  memset(counts, 0, SPARSE_BINS * sizeof(*counts));
  for (int p = 0; p < m->nranks; p++) {
    const uint64_t *note = &m->notes->histograms[p];
    if (!await(m, p, (struct awaited){note, 1, m->state->number, (uint32_t)digit, NULL, 0}))
      return false;
    for (int b = 0; b < SPARSE_BINS; b++) counts[b] += twin_histogram(m, p, digit)[b];
  }
  return true;
}

void twin_fetch_sums(const struct sparse_memory *m)
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
    memcpy(m->gathered + total, twin_at_peer(m, p, m->reduced),
           s->gathered_counts[p] * sizeof(*m->gathered));
    total += s->gathered_counts[p];
  }
}

#endif
