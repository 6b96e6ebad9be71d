/* SPDX-License-Identifier: Apache-2.0 */
/* Exchanges of the reference. All ranks get what all ranks have, piece by piece, and each keeps
 * what is its own: plain, and the order of sums is that of the loops. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "simple.h"

enum { PIECE = 1 << 20 }; /* elements that travel at a time */

static void *memory(size_t bytes)
{
  void *memory = malloc(bytes > 0 ? bytes : 1);
  if (!memory) launcher_fail(__FILE__, __LINE__, "malloc", "out of memory", NULL);
  return memory;
}

static void numbers(struct simple *s, const uint64_t *mine, uint64_t *all, size_t count)
{
  s->link.allgather(s->link.context, mine, all, count * sizeof *mine);
}

static void gather(struct simple *s, const void *mine, const uint64_t *counts, size_t element_bytes,
                   void *all)
{
  const int P = s->nranks;
  uint64_t longest = 0;
  for (int r = 0; r < P; r++)
    if (longest < counts[r]) longest = counts[r];
  const size_t piece = longest < PIECE ? longest : PIECE;
  char *own = memory(piece * element_bytes), *pieces = memory((size_t)P * piece * element_bytes);
  for (uint64_t at = 0; at < longest; at += piece) {
#define LENGTH(r) (counts[r] <= at ? 0 : counts[r] - at < piece ? counts[r] - at : piece)
    memcpy(own, (const char *)mine + (LENGTH(s->rank) > 0 ? at * element_bytes : 0),
           LENGTH(s->rank) * element_bytes);
    s->link.allgather(s->link.context, own, pieces, piece * element_bytes);
    char *to = all;
    for (int r = 0; r < P; to += counts[r] * element_bytes, r++)
      if (LENGTH(r) > 0)
        memcpy(to + at * element_bytes, pieces + (size_t)r * piece * element_bytes,
               LENGTH(r) * element_bytes);
#undef LENGTH
  }
  free(pieces);
  free(own);
}

static void split(struct simple *s, const struct sparse_pair *mine, const uint64_t *begins,
                  struct sparse_pair *received, const uint64_t *places, const uint64_t *counts)
{
  const size_t P = (size_t)s->nranks, me = (size_t)s->rank;
  uint64_t all_begins[P * (P + 1)], lengths[P], total = 0;
  numbers(s, begins, all_begins, P + 1);
  memset(lengths, 0, sizeof lengths); /* or gcc believes that there may be no rank */
  for (size_t r = 0; r < P; r++) total += lengths[r] = all_begins[r * (P + 1) + P];
  struct sparse_pair *lists = memory(total * sizeof *lists), *list = lists;
  gather(s, mine, lengths, sizeof *lists, lists);
  for (size_t r = 0; r < P; list += lengths[r], r++)
    memcpy(received + places[r], list + all_begins[r * (P + 1) + me], counts[r] * sizeof *list);
  free(lists);
}

static void sum(struct simple *s, const float *mine, float *sums)
{
  const size_t P = (size_t)s->nranks, piece = s->n < PIECE ? s->n : PIECE;
  float *pieces = memory(P * piece * sizeof *pieces);
  for (size_t at = 0; at < s->n; at += piece) {
    const size_t count = s->n - at < piece ? s->n - at : piece;
    s->link.allgather(s->link.context, mine + at, pieces, count * sizeof *pieces);
    for (size_t i = 0; i < count; i++) {
      sums[at + i] = 0;
      for (size_t r = 0; r < P; r++) sums[at + i] = simple_add(sums[at + i], pieces[r * count + i]);
    }
  }
  free(pieces);
}

const struct simple_exchange simple_by_link = {numbers, gather, split, sum};
