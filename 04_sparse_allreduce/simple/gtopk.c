/* SPDX-License-Identifier: Apache-2.0 */
/* gtopk: lists of the k largest of every rank meet in a binary tree. Where two lists meet, entries
 * of the same index are added and the k largest stay. Rank 0's list at the end is the result.
 *
 *   rank 0 <- rank 1   rank 2 <- rank 3        round 1
 *   rank 0 <---------- rank 2                  round 2
 *   rank 0 ----------> every rank
 *
 * What a node of the tree does not pass on may have an index that wins elsewhere. The ranks that
 * contributed then believe that all of it arrived. It is lost. The published algorithm does this.
 * With gtopk_exact_residual the node keeps that partial sum in its own residual.
 *
 * Lists are short, so the host merges them. */
#include <stdlib.h>
#include <string.h>

#include "simple.h"

/* Two lists of k entries, one after the other, become the k largest of their union, and after those
 * the entries that are dropped. Returns how many there are together. */
static size_t merge(struct sparse_pair *lists, size_t k)
{
  struct sparse_pair *all = launcher_allocate(2 * k * sizeof *all), *dropped = lists + k;
  float *values = launcher_allocate(2 * k * sizeof *values);
  size_t count = 0;
  for (size_t i = 0, j = k; i < k || j < 2 * k; count++) {
    const uint32_t a = i < k ? lists[i].index : UINT32_MAX; /* beyond all others */
    const uint32_t b = j < 2 * k ? lists[j].index : UINT32_MAX;
    all[count] = a <= b ? lists[i] : lists[j];
    if (a == b) all[count].value = simple_add(lists[i].value, lists[j].value);
    values[count] = all[count].value;
    i += a <= b;
    j += b <= a;
  }
  const struct simple_rule largest = simple_host_largest(values, count, k);
  for (size_t e = 0; e < count; e++)
    *(simple_chosen(largest, e, values[e]) ? lists++ : dropped++) = all[e];
  free(values);
  free(all);
  return count;
}

void simple_gtopk(struct simple *s, const float *gradient)
{
  const size_t k = s->k, P = (size_t)s->nranks, me = (size_t)s->rank, bytes = k * sizeof *s->global;
  uint64_t sends[P], receives[P], drops[64]; /* in each round; the entries are behind `received` */
  struct sparse_pair *lists = launcher_allocate(2 * bytes);
  size_t rounds = 0;

  simple_accumulate(s, gradient);
  simple_offer_largest(s);
  simple_copy(s, lists, s->offered, bytes);

  /* A rank that has sent its list is done, but takes part in the calls. */
  for (size_t step = 1; step < P; step *= 2, rounds++) {
    memset(sends, 0, sizeof sends);
    if (me % (2 * step) == step) sends[me - step] = k;
    simple_copy(s, s->global, lists, bytes);
    simple_split(s, s->global, sends, s->received, receives);
    drops[rounds] = 0;
    if (me % (2 * step) != 0 || me + step >= P) continue;
    simple_copy(s, lists + k, s->received, bytes);
    drops[rounds] = merge(lists, k) - k;
    simple_copy(s, s->received + (rounds + 1) * k, lists + k, drops[rounds] * sizeof *lists);
  }

  /* Rank 0's list goes to every rank. MPI: Bcast */
  memset(sends, 0, sizeof sends);
  sends[0] = k;
  simple_copy(s, s->global, lists, bytes);
  simple_gather(s, s->global, sends, 2, s->global);
  s->last.global = k;
  free(lists);

  /* The result may have entries that are 0, and those leave the residual, too. Therefore this looks
   * at a vector of ones at the result's entries, not at the sums. */
  simple_zero(s, s->sums);
  s->on->entries(s, SIMPLE_SET_1, s->sums, s->global, k, NULL);
  simple_clear_offered_in_result(s);
  for (size_t i = 0; i < rounds && s->config.gtopk_exact_residual; i++)
    s->on->entries(s, SIMPLE_ADD, s->acc, s->received + (i + 1) * k, drops[i], s->sums);

  simple_sums_of_list(s);
}
