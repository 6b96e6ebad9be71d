/* SPDX-License-Identifier: Apache-2.0 */
/* oktopk (Ok-Topk, PPoPP'22): about 6 k (P-1) / P words per rank, however many ranks there are.
 *
 *   rank 0  offers  . x . . x | . . x . | x . . x     1. what is above a local threshold
 *   rank 1  offers  x . . . x | . x x . | . . . x     2. regions with about as many entries each
 *                    rank 0's    rank 1's             3. the owner of a region adds its entries
 *   sums above the global threshold -> everybody      4. and sends the large sums to everybody
 *
 * A threshold is found exactly now and then. In between the old one is used again and follows the
 * number of entries that it selected. */
#include "check.h"
#include "simple.h"

/* ---- 1. thresholds --------------------------------------------------------------------------- */

/* Is count > fraction * t? In whole numbers, so that all ranks and machines agree. */
static bool exceeds(uint64_t count, sparse_fraction_t fraction, uint64_t t)
{
  return count * (uint64_t)fraction.den > (uint64_t)fraction.num * t;
}

static bool falls_below(uint64_t count, sparse_fraction_t fraction, uint64_t t)
{
  return count * (uint64_t)fraction.den < (uint64_t)fraction.num * t;
}

/* The threshold of the next step: lower if too few entries were selected, higher if too many. */
static double adapted(double threshold, uint64_t selected, const sparse_band_t *band, uint64_t t)
{
  if (falls_below(selected, band->low, t)) return threshold / band->low_factor;
  if (exceeds(selected, band->high, t)) return threshold * band->high_factor;
  return threshold;
}

static uint64_t offer(struct simple *s, cudaStream_t stream)
{
  const sparse_allreduce_config_t *c = &s->config;
  double threshold = s->local_threshold;
  uint64_t count;
  if (s->last.exact_local)
    threshold = simple_largest(s, s->acc, s->k, s->offered, stream).magnitude;
  count = simple_above(s, s->acc, 0, s->n, threshold, s->offered, s->capacity, stream);

  /* a threshold of earlier steps lets too much through when gradients grow */
  for (int i = 0; i < c->raise_steps && !s->last.exact_local; i++) {
    if (!exceeds(count, c->raise_above, s->t)) break;
    threshold *= c->raise_factor;
    count = simple_above(s, s->acc, 0, s->n, threshold, s->offered, s->capacity, stream);
  }

  float above = (float)threshold;
  s->last.selected_tie = -1;
  s->last.overflowed = count > s->capacity;
  if (s->last.overflowed) { /* more than fits: the k largest */
    struct simple_kth kth = simple_largest(s, s->acc, s->k, s->offered, stream);
    threshold = above = kth.magnitude;
    s->last.selected_tie = kth.index;
    count = s->k;
  }
  memcpy(&s->last.selected_above, &above, sizeof above);
  CUDACHECK(cudaMemcpyAsync(s->list, s->offered, count * sizeof *s->list, cudaMemcpyDeviceToHost,
                            stream));
  CUDACHECK(cudaStreamSynchronize(stream));
  s->local_threshold = adapted(threshold, count, &c->local_band, s->t);
  return count;
}

/* ---- 2. regions ------------------------------------------------------------------------------ */

/* Every rank proposes boundaries that cut its own list into P equal parts; the mean of all
 * proposals is taken. Where a rank has fewer than P entries, regions are of equal size. */
static void new_regions(struct simple *s, uint64_t offered, cudaStream_t stream)
{
  const size_t ranks = (size_t)s->nranks;
  uint64_t mine[ranks], all[ranks * ranks];
  mine[0] = offered >= ranks; /* can it propose? The first boundary is always 0 */
  for (size_t j = 1; j < ranks; j++) mine[j] = mine[0] ? s->list[offered / ranks * j].index : 0;
  simple_gather_numbers(s, mine, all, ranks, stream);

  bool all_can = true;
  for (size_t r = 0; r < ranks; r++) all_can = all_can && all[r * ranks];
  for (size_t j = 1; j < ranks; j++) {
    uint64_t sum = 0;
    for (size_t r = 0; r < ranks; r++) sum += all[r * ranks + j];
    s->boundaries[j] = all_can ? sum / ranks : s->n / ranks * j;
  }
}

/* ---- 3. the split ---------------------------------------------------------------------------- */

/* Every part of the list goes to the owner of its region, and s->sums becomes the sums of this
 * rank's own region. In turn i a rank sends to the rank i after it and receives from the rank i
 * before it, so that no rank is sent to by all others at once. */
static void reduce_region(struct simple *s, uint64_t offered, cudaStream_t stream)
{
  const int P = s->nranks;
  uint64_t begins[P + 1], counts[P], all[P * P]; /* all[from * P + to] */
  begins[0] = 0;
  for (int to = 0; to < P; to++) {
    uint64_t end = begins[to];
    while (end < offered && s->list[end].index < s->boundaries[to + 1]) end++;
    begins[to + 1] = end;
    counts[to] = end - begins[to];
  }
  simple_gather_numbers(s, counts, all, (size_t)P, stream); /* MPI: Alltoall(counts) */

  struct sparse_pair *parts[P + 1]; /* in the order of turns */
  parts[0] = s->received;
  NCCLCHECK(ncclGroupStart()); /* MPI: Isend, Irecv, Waitall */
  for (int i = 0; i < P; i++) {
    const int to = (s->rank + i) % P, from = (s->rank - i + P) % P;
    const uint64_t sends = counts[to], receives = all[from * P + s->rank];
    if (sends > 0)
      NCCLCHECK(ncclSend(s->offered + begins[to], sends, ncclUint64, to, s->comm, stream));
    if (receives > 0) NCCLCHECK(ncclRecv(parts[i], receives, ncclUint64, from, s->comm, stream));
    parts[i + 1] = parts[i] + receives;
    if (i > 0) s->last.words_sent += 2 * sends, s->last.words_received += 2 * receives;
  }
  NCCLCHECK(ncclGroupEnd());

  /* in the order of turns, which is fixed: the same bits in every run */
  CUDACHECK(cudaMemsetAsync(s->sums, 0, s->n * sizeof *s->sums, stream));
  for (int i = 0; i < P; i++)
    simple_add_entries(s, s->sums, parts[i], (size_t)(parts[i + 1] - parts[i]), stream);
}

/* ---- 4. the large sums to everybody ---------------------------------------------------------- */

/* s->global becomes the lists s->reduced of all ranks, one after the other; returns its length.
 * Regions are in rank order, so the indices ascend. MPI: Allgather(counts), Allgatherv */
static uint64_t gather_sums(struct simple *s, uint64_t mine, cudaStream_t stream)
{
  const int P = s->nranks;
  uint64_t counts[P], total = 0;
  simple_gather_numbers(s, &mine, counts, 1, stream);
  NCCLCHECK(ncclGroupStart());
  for (int r = 0; r < P; r++) {
    if (counts[r] > 0)
      NCCLCHECK(
          ncclBroadcast(s->reduced, s->global + total, counts[r], ncclUint64, r, s->comm, stream));
    total += counts[r];
  }
  NCCLCHECK(ncclGroupEnd());
  s->last.words_sent += 2 * mine * ((uint64_t)P - 1);
  s->last.words_received += 2 * (total - mine);
  return total;
}

/* s->sums becomes the sums of s->global and 0 elsewhere. */
static void scatter_global(struct simple *s, uint64_t count, cudaStream_t stream)
{
  CUDACHECK(cudaMemsetAsync(s->sums, 0, s->n * sizeof *s->sums, stream));
  simple_add_entries(s, s->sums, s->global, count, stream);
}

/* ---- the step -------------------------------------------------------------------------------- */

void simple_oktopk(struct simple *s, const float *gradient, cudaStream_t stream)
{
  const size_t room = (size_t)s->nranks * s->capacity;

  /* 1. acc = gradient + residual; offer what is above the local threshold. */
  simple_add_vector(s, s->acc, gradient, stream);
  const uint64_t offered = offer(s, stream);

  /* 2. and 3. The owners of regions add up. */
  if (s->last.repartitioned) new_regions(s, offered, stream);
  reduce_region(s, offered, stream);

  /* 4. Sums above the global threshold to everybody. Where that has to be exact, all sums are
   * gathered, everybody finds the t largest, and the smallest of those is the new threshold. */
  const double threshold = s->last.exact_global ? 0 : s->global_threshold;
  const uint64_t first = s->boundaries[s->rank], last = s->boundaries[s->rank + 1];
  const uint64_t mine = simple_above(s, s->sums, first, last, threshold, s->reduced, room, stream);
  uint64_t global = gather_sums(s, mine, stream);
  scatter_global(s, global, stream);
  if (!s->last.exact_global) {
    s->global_threshold = adapted(s->global_threshold, global, &s->config.global_band, s->t);
  } else if (global > 0) {
    global = s->k < global ? s->k : global;
    s->global_threshold = simple_largest(s, s->sums, global, s->global, stream).magnitude;
    scatter_global(s, global, stream);
  }

  /* 5. The average. What was offered and is in the result leaves the residual. */
  simple_divide(s, s->result, s->sums, s->nranks, stream);
  simple_clear_entries(s, s->acc, s->offered, offered, s->sums, stream);
  s->last.local = offered;
  s->last.global = global;
}
