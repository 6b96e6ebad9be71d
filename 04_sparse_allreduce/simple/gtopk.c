/* SPDX-License-Identifier: Apache-2.0 */
/* gtopk: the k largest of every rank meet in a binary tree. Where two lists meet, entries of the
 * same index are added and the k largest stay; rank 0's list at the end is the result.
 *
 *   rank 0 <- rank 1   rank 2 <- rank 3        round 1
 *   rank 0 <---------- rank 2                  round 2
 *   rank 0 ----------> everybody
 *
 * What a node of the tree does not pass on may have an index that wins elsewhere. The ranks that
 * contributed then believe that all of it arrived, and it is lost: so it was published. With
 * gtopk_exact_residual the node keeps such a partial sum in its own residual.
 *
 * Lists are short, so the host merges them. */
#include <stdlib.h>

#include "check.h"
#include "simple.h"

/* `to` becomes the union of two lists of k entries each; returns its length. */
static size_t unite(const struct sparse_pair *a, const struct sparse_pair *b, size_t k,
                    struct sparse_pair *to, float *values)
{
  size_t i = 0, j = 0, count = 0;
  while (i < k || j < k) {
    const int first = j == k || (i < k && a[i].index <= b[j].index);
    const int second = i == k || (j < k && b[j].index <= a[i].index);
    to[count] = first ? a[i] : b[j];
    if (first && second) to[count].value = simple_add(a[i].value, b[j].value);
    i += (size_t)first;
    j += (size_t)second;
    values[count] = to[count].value;
    count++;
  }
  return count;
}

/* Entries of the list with an index that the other list has, too: at its beginning. */
static size_t keep_common(struct sparse_pair *list, size_t count, const struct sparse_pair *other,
                          size_t other_count)
{
  size_t kept = 0;
  for (size_t e = 0, o = 0; e < count; e++) {
    while (o < other_count && other[o].index < list[e].index) o++;
    if (o < other_count && other[o].index == list[e].index) list[kept++] = list[e];
  }
  return kept;
}

void simple_gtopk(struct simple *s, const float *gradient)
{
  const size_t k = s->k, P = (size_t)s->nranks, me = (size_t)s->rank, bytes = k * sizeof *s->list;
  struct sparse_pair *mine = malloc(3 * bytes), *merged = malloc(2 * bytes);
  struct sparse_pair *dropped = malloc(bytes * 32); /* k in each round at most */
  size_t drops[33] = {0}, rounds = 0;               /* those of round i begin at drops[i] */
  float *values = malloc(2 * k * sizeof *values);
  if (!mine || !merged || !dropped || !values)
    launcher_fail(__FILE__, __LINE__, "malloc", "out of memory", NULL);
  struct sparse_pair *other = mine + k, *own = mine + 2 * k;

  simple_accumulate(s, gradient);
  simple_offer_largest(s);
  s->on->copy(s, mine, s->offered, bytes);
  s->on->copy(s, own, s->offered, bytes);

  /* Round by round; a rank that has sent its list is done, but takes part in the calls. */
  for (size_t step = 1; step < P; step *= 2, rounds++) {
    const int sends = me % (2 * step) == step, receives = me % (2 * step) == 0 && me + step < P;
    uint64_t begins[P + 1], places[P], counts[P];
    for (size_t r = 0; r <= P; r++) begins[r] = sends && r > me - step ? k : 0;
    for (size_t r = 0; r < P; r++) places[r] = 0, counts[r] = receives && r == me + step ? k : 0;
    s->on->copy(s, s->reduced, mine, bytes);
    s->between->split(s, s->reduced, begins, s->received, places, counts);
    drops[rounds + 1] = drops[rounds];
    if (sends) s->last.words_sent += 2 * k;
    if (!receives) continue;
    s->last.words_received += 2 * k;

    s->on->copy(s, other, s->received, bytes);
    const size_t count = unite(mine, other, k, merged, values);
    const struct simple_rule largest = simple_host_largest(values, count, k);
    size_t kept = 0;
    for (size_t e = 0; e < count; e++)
      if (simple_chosen(largest, e, values[e]))
        mine[kept++] = merged[e];
      else
        dropped[drops[rounds + 1]++] = merged[e];
  }

  /* Rank 0's list to everybody. MPI: Bcast */
  uint64_t counts[P];
  for (size_t r = 0; r < P; r++) counts[r] = r == 0 ? k : 0;
  s->on->copy(s, s->reduced, mine, bytes);
  s->between->gather(s, s->reduced, counts, sizeof *s->global, s->global);
  if (me == 0) s->last.words_sent += 2 * k * (P - 1);
  if (me != 0) s->last.words_received += 2 * k;
  s->last.global = k;
  simple_scatter_global(s);
  simple_average(s);

  /* The result may have entries that are 0, which left the residual all the same: so it is lists
   * that are compared here. */
  s->on->copy(s, mine, s->global, bytes);
  size_t count = keep_common(own, k, mine, k);
  s->on->copy(s, s->reduced, own, count * sizeof *own);
  s->on->clear_entries(s, s->acc, s->reduced, count, NULL);
  for (size_t i = 0; i < rounds && s->config.gtopk_exact_residual; i++) {
    count = keep_common(dropped + drops[i], drops[i + 1] - drops[i], mine, k);
    s->on->copy(s, s->reduced, dropped + drops[i], count * sizeof *dropped);
    s->on->add_entries(s, s->acc, s->reduced, count);
  }
  free(values);
  free(dropped);
  free(merged);
  free(mine);
}
