/* SPDX-License-Identifier: Apache-2.0 */
/* oktopk (Ok-Topk, PPoPP'22): about 4 k (P-1) / P words per rank, however many ranks there are. An
 * entry has two words. Step 3 sends k (P-1) / P entries, all but those of the rank's own region.
 * Step 4 sends the k / P large sums of this region to P-1 ranks, which is as many.
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

/* How far a count lies above fraction * t, or below it if negative; times fraction.den, so that it
 * is a whole number. */
static int64_t excess(uint64_t count, sparse_fraction_t fraction, uint64_t t)
{
  return (int64_t)count * fraction.den - (int64_t)t * fraction.num;
}

/* The threshold of the next step: lower if too few entries were selected, higher if too many. */
static double adapted(double threshold, uint64_t selected, const sparse_band_t *band, uint64_t t)
{
  if (excess(selected, band->low, t) < 0) return threshold / band->low_factor;
  if (excess(selected, band->high, t) > 0) return threshold * band->high_factor;
  return threshold;
}

static uint64_t select_by(struct simple *s, struct simple_rule rule, cudaStream_t stream)
{
  s->rule = rule;
  return simple_select(s, s->acc, 0, s->n, rule, s->offered, stream);
}

/* Returns how many entries are offered. */
static uint64_t offer(struct simple *s, cudaStream_t stream)
{
  const struct sparse_constants *c = &s->constants;
  double threshold = s->local_threshold;
  /* What exceeds the k-th magnitude is offered: k - 1 entries at most. (topkA takes exactly k.) */
  if (s->last.exact_local) threshold = simple_largest(s, s->acc, s->k, stream).above;
  uint64_t count = select_by(s, (struct simple_rule){(float)threshold, -1}, stream);

  /* An old threshold lets too much through when gradients grow. */
  for (int i = 0; i < c->raise_steps && !s->last.exact_local; i++) {
    if (excess(count, c->raise_above, s->t) <= 0) break;
    threshold *= c->raise_factor;
    count = select_by(s, (struct simple_rule){(float)threshold, -1}, stream);
  }
  s->last.overflowed = count > s->capacity;
  if (s->last.overflowed) { /* the k largest then */
    count = select_by(s, simple_largest(s, s->acc, s->k, stream), stream);
    threshold = s->rule.above;
  }
  /* For the next step: after exact ones, too, and from the raised threshold if it was raised. */
  s->local_threshold = adapted(threshold, count, &c->local_band, s->t);
  CUDACHECK(cudaMemcpyAsync(s->list, s->offered, count * sizeof *s->list, cudaMemcpyDeviceToHost,
                            stream));
  CUDACHECK(cudaStreamSynchronize(stream));
  return count;
}

/* ---- 2. regions ------------------------------------------------------------------------------ */

/* Every rank proposes boundaries that cut its own list into P equal parts; the mean of all
 * proposals is taken. Where a rank has fewer than P entries, regions are of equal size. */
static void new_regions(struct simple *s, uint64_t offered, cudaStream_t stream)
{
  const size_t P = (size_t)s->nranks;
  uint64_t mine[P], all[P * P], sums[P];
  for (size_t j = 0; j < P; j++) mine[j] = offered >= P ? s->list[offered / P * j].index : 0;
  mine[0] = offered < P; /* the first boundary is always 0: here it says "I cannot propose" */
  simple_gather_numbers(s, mine, all, P, stream); /* MPI: Allreduce(boundaries, SUM) */
  for (size_t j = 0; j < P; j++) {
    sums[j] = 0;
    for (size_t r = 0; r < P; r++) sums[j] += all[r * P + j];
    if (j > 0) s->boundaries[j] = sums[0] == 0 ? sums[j] / P : s->n / P * j;
  }
}

/* ---- 3. the split ---------------------------------------------------------------------------- */

/* Every part of the list goes to the owner of its region; s->sums becomes the sums of this rank's
 * own region. In turn i a rank sends to the rank i after it and receives from the rank i before
 * it, so that nobody is sent to by all others at once. */
static void split_and_add(struct simple *s, uint64_t offered, cudaStream_t stream)
{
  const int P = s->nranks;
  uint64_t begins[P + 1], counts[P], all[P * P]; /* all[from * P + to] */
  begins[0] = 0;
  for (int to = 0; to < P; to++) {
    uint64_t end = begins[to];
    while (end < offered && s->list[end].index < s->boundaries[to + 1]) end++;
    counts[to] = end - begins[to];
    begins[to + 1] = end;
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

  /* The order of turns is fixed, so the sums are the same bits in every run. */
  CUDACHECK(cudaMemsetAsync(s->sums, 0, s->n * sizeof *s->sums, stream));
  for (int i = 0; i < P; i++)
    simple_add_entries(s->sums, parts[i], (size_t)(parts[i + 1] - parts[i]), stream);
}

/* ---- 4. the large sums to everybody ---------------------------------------------------------- */

/* s->global becomes the lists s->reduced of all ranks, one after the other; returns its length.
 * Regions are in rank order, so indices ascend. MPI: Allgather(counts), Allgatherv */
static uint64_t gather_sums(struct simple *s, uint64_t mine, cudaStream_t stream)
{
  const int P = s->nranks;
  uint64_t counts[P], total = 0;
  simple_gather_numbers(s, &mine, counts, 1, stream);
  NCCLCHECK(ncclGroupStart());
  for (int r = 0; r < P; r++) {
    struct sparse_pair *to = s->global + total;
    if (counts[r] > 0)
      NCCLCHECK(ncclBroadcast(s->reduced, to, counts[r], ncclUint64, r, s->comm, stream));
    total += counts[r];
  }
  NCCLCHECK(ncclGroupEnd());
  s->last.words_sent += 2 * mine * ((uint64_t)P - 1);
  s->last.words_received += 2 * (total - mine);
  return total;
}

/* s->sums becomes the entries of s->global, and 0 elsewhere. */
static void scatter_global(struct simple *s, uint64_t count, cudaStream_t stream)
{
  CUDACHECK(cudaMemsetAsync(s->sums, 0, s->n * sizeof *s->sums, stream));
  simple_add_entries(s->sums, s->global, count, stream);
}

/* ---- the step -------------------------------------------------------------------------------- */

void simple_oktopk(struct simple *s, const float *gradient, cudaStream_t stream)
{
  const struct sparse_constants *c = &s->constants;
  const uint64_t step = s->steps++;
  s->last = (sparse_allreduce_statistics_t){
      .step = step,
      .exact_local = step % (uint64_t)c->local_interval == 0,
      .exact_global = step % (uint64_t)c->global_interval == 0,
      .repartitioned = step % (uint64_t)c->repartition_interval == 0,
  };

  /* 1. acc = gradient + residual; offer what is above the local threshold. */
  simple_add_vector(s, s->acc, gradient, stream);
  const uint64_t offered = s->last.local = offer(s, stream);

  /* 2. and 3. The owners of regions add up. */
  if (s->last.repartitioned) new_regions(s, offered, stream);
  split_and_add(s, offered, stream);

  /* 4. Sums above the global threshold to everybody. In an exact step that is all of them;
   * everybody finds the largest, and the smallest of those is the new threshold. */
  const struct simple_rule above = {s->last.exact_global ? 0 : (float)s->global_threshold, -1};
  const size_t mine = simple_select(s, s->sums, s->boundaries[s->rank], s->boundaries[s->rank + 1],
                                    above, s->reduced, stream);
  uint64_t global = gather_sums(s, mine, stream);
  scatter_global(s, global, stream);
  if (!s->last.exact_global) {
    s->global_threshold = adapted(s->global_threshold, global, &c->global_band, s->t);
  } else if (global > 0) {
    const size_t wanted = s->k < global ? s->k : global;
    const struct simple_rule rule = simple_largest(s, s->sums, wanted, stream);
    global = simple_select(s, s->sums, 0, s->n, rule, s->global, stream);
    scatter_global(s, global, stream);
    s->global_threshold = rule.above;
  }
  s->last.global = global;

  /* 5. The average. What was offered and is in the result leaves the residual. */
  simple_divide(s, s->result, s->sums, s->nranks, stream);
  simple_clear_entries(s->acc, s->offered, offered, s->sums, stream);
}
