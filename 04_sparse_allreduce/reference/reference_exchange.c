/* SPDX-License-Identifier: Apache-2.0 */
/* Reference: what happens between ranks. Here all ranks are at hand, so what is a collective on the
 * GPUs is a loop; what matters is the order in which values are added. */
#include <string.h>

#include "reference_parts.h"

/* ---- regions ----------------------------------------------------------------------------------*/

void uniform_regions(struct reference *ref)
{
  uint64_t size = ref->n / (uint64_t)ref->nranks;
  for (int j = 0; j < ref->nranks; j++) ref->boundaries[j] = size * (uint64_t)j;
  ref->boundaries[ref->nranks] = ref->n;
}

/* Each rank proposes to cut where its own entries fall in P equal parts; the average of the
 * proposals is monotone as they are. A rank with fewer entries than ranks has none to make. */
void balanced_regions(struct reference *ref)
{
  size_t nranks = (size_t)ref->nranks;
  uniform_regions(ref);
  for (size_t r = 0; r < nranks; r++)
    if (ref->ranks[r].noffered < nranks) return;

  for (size_t j = 1; j < nranks; j++) {
    uint64_t sum = 0;
    for (size_t r = 0; r < nranks; r++) {
      const struct reference_rank *rank = &ref->ranks[r];
      sum += rank->offered[rank->noffered / nranks * j];
    }
    ref->boundaries[j] = sum / nranks;
  }
}

void count_by_region(struct reference *ref)
{
  for (int r = 0; r < ref->nranks; r++) {
    struct reference_rank *rank = &ref->ranks[r];
    int region = 0;
    memset(rank->region_counts, 0, (size_t)ref->nranks * sizeof *rank->region_counts);
    for (size_t e = 0; e < rank->noffered; e++) {
      while (rank->offered[e] >= ref->boundaries[region + 1]) region++;
      rank->region_counts[region]++;
    }
  }
}

/* ---- sums -------------------------------------------------------------------------------------*/

/* Adds the offered entries first ... first + count - 1 of one rank. */
static void add_entries(struct reference *ref, const struct reference_rank *rank, size_t first,
                        size_t count)
{
  for (size_t e = first; e < first + count; e++) {
    uint32_t i = rank->offered[e];
    ref->sums[i] = canonical(ref->sums[i] + rank->acc[i]);
  }
}

void sum_in_rank_order(struct reference *ref)
{
  for (int r = 0; r < ref->nranks; r++) add_entries(ref, &ref->ranks[r], 0, ref->ranks[r].noffered);
}

/* In slot i of the rotation, owner r receives from rank r - i (mod P) and adds that. */
void sum_by_owner(struct reference *ref)
{
  for (int owner = 0; owner < ref->nranks; owner++) {
    for (int slot = 0; slot < ref->nranks; slot++) {
      const struct reference_rank *rank = &ref->ranks[(owner - slot + ref->nranks) % ref->nranks];
      size_t first = 0;
      for (int j = 0; j < owner; j++) first += rank->region_counts[j];
      add_entries(ref, rank, first, rank->region_counts[owner]);
    }
  }
}

void take_sums(struct reference *ref, const struct selection *selection)
{
  struct selection taken = {.above = 0, .highest = MAGNITUDE_NAN};
  if (selection) taken = *selection;
  if (taken.above == 0) taken.tie = -1; /* no zeros */
  ref->nglobal = list_entries(sums_of(ref), taken, ref->global, ref->most_global);
}

/* ---- the tree of gtopk ------------------------------------------------------------------------*/

/* Both lists have k entries and ascending indices. Their union goes to ref->merged. */
static size_t unite(struct reference *ref, const struct sparse_pair *own,
                    const struct sparse_pair *received)
{
  size_t a = 0, b = 0, count = 0;
  while (a < ref->k || b < ref->k) {
    bool take_own = b == ref->k || (a < ref->k && own[a].index <= received[b].index);
    bool take_received = a == ref->k || (b < ref->k && received[b].index <= own[a].index);
    struct sparse_pair entry = take_own ? own[a] : received[b];
    if (take_own && take_received) entry.value = canonical(own[a].value + received[b].value);
    a += take_own;
    b += take_received;
    ref->merged[count++] = entry;
  }
  return count;
}

/* The k largest of the union stay in the node's list, and it remembers the others. */
static void merge_at_node(struct reference *ref, int node, const struct sparse_pair *received)
{
  struct sparse_pair *own = ref->lists + (size_t)node * ref->k;
  size_t count = unite(ref, own, received), kept = 0;
  for (size_t e = 0; e < count; e++) ref->merged_values[e] = ref->merged[e].value;
  struct vector merged = {ref->team, ref->merged_values, count};
  struct selection largest = select_largest(merged, ref->k);
  for (size_t e = 0; e < count; e++) {
    if (selection_has(&largest, e, ref->merged_values[e]))
      own[kept++] = ref->merged[e];
    else
      ref->discarded[ref->ndiscarded++] = (struct reference_discard){node, ref->merged[e]};
  }
}

/* In the round with distance `step`, the multiples of 2 * step receive from the node `step` after
 * them, if there is one, which then is done. */
void merge_along_tree(struct reference *ref)
{
  size_t k = ref->k;
  for (int r = 0; r < ref->nranks; r++)
    for (size_t e = 0; e < k; e++) {
      uint32_t i = ref->ranks[r].offered[e];
      ref->lists[(size_t)r * k + e] = (struct sparse_pair){i, ref->ranks[r].acc[i]};
    }

  for (int step = 1; step < ref->nranks; step *= 2)
    for (int node = 0; node + step < ref->nranks; node += 2 * step)
      merge_at_node(ref, node, ref->lists + (size_t)(node + step) * k);

  memcpy(ref->global, ref->lists, k * sizeof *ref->global);
  ref->nglobal = k;
  for (size_t e = 0; e < k; e++) ref->sums[ref->global[e].index] = ref->global[e].value;
}

/* ---- words on the wire ------------------------------------------------------------------------*/

static void add_words(struct reference_rank *rank, uint64_t sent, uint64_t received)
{
  rank->words_sent += sent;
  rank->words_received += received;
}

void words_of_dense(struct reference *ref)
{
  uint64_t nranks = (uint64_t)ref->nranks, words = 2 * ref->n * (nranks - 1) / nranks;
  for (int r = 0; r < ref->nranks; r++) add_words(&ref->ranks[r], words, words);
}

void words_of_allgather(struct reference *ref)
{
  uint64_t others = (uint64_t)ref->nranks - 1, total = 0;
  for (int r = 0; r < ref->nranks; r++) total += ref->ranks[r].noffered;
  for (int r = 0; r < ref->nranks; r++) {
    uint64_t own = ref->ranks[r].noffered;
    add_words(&ref->ranks[r], 2 * own * others, 2 * (total - own));
  }
}

void words_of_split(struct reference *ref)
{
  for (int from = 0; from < ref->nranks; from++)
    for (int to = 0; to < ref->nranks; to++) {
      uint64_t words = from == to ? 0 : 2 * ref->ranks[from].region_counts[to];
      add_words(&ref->ranks[from], words, 0);
      add_words(&ref->ranks[to], 0, words);
    }
}

/* Do the owners, who have counts[r] entries, even them out first? */
static bool evens_out(const struct reference *ref, const uint64_t *counts)
{
  sparse_balance_t balance = ref->config.balance;
  uint64_t largest = 0;
  for (int r = 0; r < ref->nranks; r++)
    if (counts[r] > largest) largest = counts[r];
  return ref->config.algorithm == SPARSE_OKTOPK &&
         (balance == SPARSE_BALANCE_ALWAYS ||
          (balance == SPARSE_BALANCE_AUTO && largest * (uint64_t)ref->nranks > 4 * ref->nglobal));
}

/* Entry by entry: it goes from its owner to the rank whose share its place in the list is in. */
static void words_of_balancing(struct reference *ref, uint64_t *counts)
{
  uint64_t nranks = (uint64_t)ref->nranks, each = ref->nglobal / nranks;
  uint64_t larger = ref->nglobal % nranks, place = 0; /* shares that have one entry more */
  for (int owner = 0; owner < ref->nranks; owner++)
    for (uint64_t i = 0; i < counts[owner]; i++, place++) {
      bool in_larger = place < larger * (each + 1);
      uint64_t to = in_larger ? place / (each + 1) : larger + (place - larger * (each + 1)) / each;
      if (to == (uint64_t)owner) continue;
      add_words(&ref->ranks[owner], 2, 0);
      add_words(&ref->ranks[to], 0, 2);
    }
  for (uint64_t r = 0; r < nranks; r++) counts[r] = each + (r < larger);
}

void words_of_owners_gather(struct reference *ref)
{
  uint64_t others = (uint64_t)ref->nranks - 1, counts[ref->nranks];
  size_t e = 0;
  for (int r = 0; r < ref->nranks; r++) {
    counts[r] = 0;
    for (; e < ref->nglobal && ref->global[e].index < ref->boundaries[r + 1]; e++) counts[r]++;
  }
  if (evens_out(ref, counts)) words_of_balancing(ref, counts);
  for (int r = 0; r < ref->nranks; r++)
    add_words(&ref->ranks[r], 2 * counts[r] * others, 2 * (ref->nglobal - counts[r]));
}

void words_of_dense_gather(struct reference *ref)
{
  uint64_t others = (uint64_t)ref->nranks - 1;
  for (int r = 0; r < ref->nranks; r++) {
    uint64_t own = ref->boundaries[r + 1] - ref->boundaries[r];
    add_words(&ref->ranks[r], own * others, ref->n - own);
  }
}

void words_of_tree(struct reference *ref)
{
  uint64_t list = 2 * ref->k;
  for (int step = 1; step < ref->nranks; step *= 2)
    for (int node = 0; node + step < ref->nranks; node += 2 * step) {
      add_words(&ref->ranks[node + step], list, 0);
      add_words(&ref->ranks[node], 0, list);
    }
  for (int r = 1; r < ref->nranks; r++) { /* the broadcast */
    add_words(&ref->ranks[0], list, 0);
    add_words(&ref->ranks[r], 0, list);
  }
}
