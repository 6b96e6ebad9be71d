/* SPDX-License-Identifier: Apache-2.0 */
/* Each exchange in two ways. Between GPUs by NCCL's host calls, for which the host waits; an entry
 * has 8 bytes and travels as one ncclUint64. Of the reference by the link: all ranks get what all
 * ranks have, and each keeps what is its own. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "simple.h"

void simple_numbers(struct simple *s, const uint64_t *mine, uint64_t *all, size_t count)
{
  const size_t bytes = count * sizeof *mine;
  if (!s->comm) {
    s->link.allgather(s->link.context, mine, all, bytes);
    return;
  }
  simple_copy(s, s->work, mine, bytes);
  NCCLCHECK(ncclAllGather(s->work, s->work + bytes, count, ncclUint64, s->comm, s->stream));
  simple_copy(s, all, s->work + bytes, (size_t)s->nranks * bytes);
}

/* NCCL has no Allgatherv: a broadcast from each rank that has something, in one group. */
static void gather_by_nccl(struct simple *s, const void *mine, const uint64_t *counts, size_t size,
                           char *all)
{
  NCCLCHECK(ncclGroupStart());
  for (int r = 0; r < s->nranks; all += counts[r] * size, r++) {
    const void *from = r == s->rank ? mine : all;
    if (counts[r] > 0)
      NCCLCHECK(ncclBroadcast(from, all, counts[r] * size, ncclInt8, r, s->comm, s->stream));
  }
  NCCLCHECK(ncclGroupEnd());
  CUDACHECK(cudaStreamSynchronize(s->stream));
}

/* The link takes as much from every rank: as much as the one that has most. */
static void gather_by_link(struct simple *s, const void *mine, const uint64_t *counts, size_t size,
                           char *all)
{
  uint64_t longest = 0;
  for (int r = 0; r < s->nranks; r++)
    if (longest < counts[r]) longest = counts[r];
  char *own = simple_host_memory(longest * size);
  char *padded = simple_host_memory((size_t)s->nranks * longest * size);
  memcpy(own, mine, counts[s->rank] * size);
  s->link.allgather(s->link.context, own, padded, longest * size);
  for (size_t r = 0; r < (size_t)s->nranks; all += counts[r] * size, r++)
    memcpy(all, padded + r * longest * size, counts[r] * size);
  free(padded);
  free(own);
}

void simple_gather(struct simple *s, const void *mine, const uint64_t *counts, size_t words,
                   void *all)
{
  const uint64_t others = (uint64_t)s->nranks - 1;
  (s->comm ? gather_by_nccl : gather_by_link)(s, mine, counts, words * 4, all);
  for (int r = 0; r < s->nranks; r++)
    if (r == s->rank)
      s->last.words_sent += words * counts[r] * others;
    else
      s->last.words_received += words * counts[r];
}

void simple_split(struct simple *s, const struct sparse_pair *mine, const uint64_t *sends,
                  struct sparse_pair *received, uint64_t *receives)
{
  const size_t P = (size_t)s->nranks, me = (size_t)s->rank;
  uint64_t all[P * P], lengths[P], total = 0; /* all[from * P + to] */
  simple_numbers(s, sends, all, P);
  memset(lengths, 0, sizeof lengths);
  for (size_t i = 0; i < P * P; total += all[i], i++) lengths[i / P] += all[i];
  for (size_t r = 0; r < P; r++) {
    receives[r] = all[r * P + me];
    s->last.words_sent += r == me ? 0 : 2 * sends[r];
    s->last.words_received += r == me ? 0 : 2 * receives[r];
  }

  if (!s->comm) {
    struct sparse_pair *lists = simple_host_memory(total * sizeof *lists), *list = lists;
    gather_by_link(s, mine, lengths, sizeof *lists, (char *)lists);
    for (size_t i = 0; i < P * P; list += all[i], i++) {
      if (i % P != me) continue;
      memcpy(received, list, all[i] * sizeof *list);
      received += all[i];
    }
    free(lists);
    return;
  }
  NCCLCHECK(ncclGroupStart()); /* MPI: Isend, Irecv, Waitall */
  for (int r = 0; r < s->nranks; mine += sends[r], received += receives[r], r++) {
    if (sends[r] > 0) NCCLCHECK(ncclSend(mine, sends[r], ncclUint64, r, s->comm, s->stream));
    if (receives[r] > 0)
      NCCLCHECK(ncclRecv(received, receives[r], ncclUint64, r, s->comm, s->stream));
  }
  NCCLCHECK(ncclGroupEnd());
  CUDACHECK(cudaStreamSynchronize(s->stream));
}

void simple_sum(struct simple *s, const float *mine, float *sums)
{
  enum { PIECE = 1 << 20 }; /* elements that the link takes at a time */
  const size_t P = (size_t)s->nranks;
  s->last.words_sent = s->last.words_received = 2 * s->n * (P - 1) / P;
  if (s->comm) {
    NCCLCHECK(ncclAllReduce(mine, sums, s->n, ncclFloat, ncclSum, s->comm, s->stream));
    CUDACHECK(cudaStreamSynchronize(s->stream));
    return;
  }
  float *pieces = simple_host_memory(P * PIECE * sizeof *pieces);
  for (size_t at = 0; at < s->n; at += PIECE) {
    const size_t count = s->n - at < PIECE ? s->n - at : PIECE;
    s->link.allgather(s->link.context, mine + at, pieces, count * sizeof *pieces);
    memset(sums + at, 0, count * sizeof *sums);
    for (size_t r = 0; r < P; r++)
      for (size_t i = 0; i < count; i++)
        sums[at + i] = simple_add(sums[at + i], pieces[r * count + i]);
  }
  free(pieces);
}
