/* SPDX-License-Identifier: Apache-2.0 */
/* Each exchange in two ways. Between GPUs by NCCL's host calls, for which the host waits. Of the
 * reference by the link: all ranks get what all ranks have, and each keeps what is its own. */
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
  CUDACHECK(cudaStreamSynchronize(s->stream));
  simple_copy(s, all, s->work + bytes, (size_t)s->nranks * bytes);
}

/* Of `mine` sends[r] elements, from begins[r] on, go to rank r; `received` becomes receives[0]
 * elements from rank 0, then receives[1] from rank 1, ... MPI: Alltoallv */
static void exchange(struct simple *s, const char *mine, const uint64_t *begins,
                     const uint64_t *sends, char *received, const uint64_t *receives, size_t words)
{
  const size_t P = (size_t)s->nranks, me = (size_t)s->rank, size = 4 * words;
  for (size_t r = 0; r < P; r++) {
    s->last.words_sent += r == me ? 0 : words * sends[r];
    s->last.words_received += r == me ? 0 : words * receives[r];
  }
  if (s->comm) {
    NCCLCHECK(ncclGroupStart());
    for (int r = 0; r < s->nranks; received += receives[r++] * size) {
      const char *from = mine + begins[r] * size;
      if (sends[r] > 0)
        NCCLCHECK(ncclSend(from, sends[r] * words, ncclUint32, r, s->comm, s->stream));
      if (receives[r] > 0)
        NCCLCHECK(ncclRecv(received, receives[r] * words, ncclUint32, r, s->comm, s->stream));
    }
    NCCLCHECK(ncclGroupEnd());
    CUDACHECK(cudaStreamSynchronize(s->stream));
    return;
  }

  uint64_t begin[P * P], lengths[P], own = 0,
                                     longest = 0; /* begin: what rank i / P has for i % P */
  for (size_t r = 0; r < P; r++) own = begins[r] + sends[r] > own ? begins[r] + sends[r] : own;
  simple_numbers(s, begins, begin, P);
  simple_numbers(s, &own, lengths, 1);
  for (size_t r = 0; r < P; r++) longest = lengths[r] > longest ? lengths[r] : longest;
  char *list = simple_host_memory(longest * size), *lists = simple_host_memory(P * longest * size);
  memcpy(list, mine, own * size);
  s->link.allgather(s->link.context, list, lists, longest * size);
  for (size_t r = 0; r < P; received += receives[r++] * size)
    memcpy(received, lists + (r * longest + begin[r * P + me]) * size, receives[r] * size);
  free(lists);
  free(list);
}

void simple_gather(struct simple *s, const void *mine, const uint64_t *counts, size_t words,
                   void *all)
{
  uint64_t begins[s->nranks], sends[s->nranks];
  for (int r = 0; r < s->nranks; r++) begins[r] = 0, sends[r] = counts[s->rank];
  exchange(s, mine, begins, sends, all, counts, words);
}

void simple_split(struct simple *s, const struct sparse_pair *mine, const uint64_t *sends,
                  struct sparse_pair *received, uint64_t *receives)
{
  const size_t P = (size_t)s->nranks;
  uint64_t begins[P], all[P * P];
  simple_numbers(s, sends, all, P);
  for (size_t r = 0; r < P; r++) {
    begins[r] = r > 0 ? begins[r - 1] + sends[r - 1] : 0;
    receives[r] = all[r * P + (size_t)s->rank];
  }
  exchange(s, (const char *)mine, begins, sends, (char *)received, receives, 2);
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
  simple_zero(s, sums);
  for (size_t at = 0; at < s->n; at += PIECE) {
    const size_t count = s->n - at < PIECE ? s->n - at : PIECE;
    s->link.allgather(s->link.context, mine + at, pieces, count * sizeof *pieces);
    for (size_t r = 0; r < P; r++)
      for (size_t i = 0; i < count; i++)
        sums[at + i] = simple_add(sums[at + i], pieces[r * count + i]);
  }
  free(pieces);
}
