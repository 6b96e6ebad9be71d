/* SPDX-License-Identifier: Apache-2.0 */
/* Each exchange exists in two versions. Between GPUs it uses NCCL's calls, and the host waits for
 * them. The reference asks the launcher: all ranks get what all ranks have, and each keeps its
 * part. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "simple.h"

void simple_numbers(struct simple *s, const uint64_t *mine, uint64_t *all, size_t count)
{
  const size_t bytes = count * sizeof *mine;
  if (!s->comm) {
    s->allgather(s->me, mine, all, bytes);
    return;
  }
  simple_copy(s, s->work, mine, bytes);
  NCCLCHECK(ncclAllGather(s->work, s->work + bytes, count, ncclUint64, s->comm, s->stream));
  CUDACHECK(cudaStreamSynchronize(s->stream));
  simple_copy(s, all, s->work + bytes, (size_t)s->nranks * bytes);
}

/* Rank r sends counts[r][p] elements to rank p: the next ones in its list `mine` or, if `same`, the
 * same to all. `received` becomes what rank 0 sends, then rank 1, ... MPI: Alltoallv */
static void exchange(struct simple *s, const char *mine, const uint64_t *counts, int same,
                     char *received, size_t words)
{
  const size_t P = (size_t)s->nranks, me = (size_t)s->rank, size = 4 * words;
  const uint64_t *sends = counts + me * P;
  uint64_t begins[P][P], receives[P], lengths[P], longest = 0;
  for (size_t r = 0; r < P; r++) {
    receives[r] = counts[r * P + me];
    lengths[r] = 0;
    for (size_t p = 0; p < P; p++) {
      begins[r][p] = same ? 0 : lengths[r];
      lengths[r] = begins[r][p] + counts[r * P + p];
    }
    longest = lengths[r] > longest ? lengths[r] : longest;
    s->last.words_sent += r == me ? 0 : words * sends[r];
  }
  if (s->comm) {
    NCCLCHECK(ncclGroupStart());
    for (int r = 0; r < s->nranks; received += receives[r++] * size) {
      const char *from = mine + begins[me][r] * size;
      if (sends[r] > 0)
        NCCLCHECK(ncclSend(from, sends[r] * words, ncclUint32, r, s->comm, s->stream));
      if (receives[r] > 0)
        NCCLCHECK(ncclRecv(received, receives[r] * words, ncclUint32, r, s->comm, s->stream));
    }
    NCCLCHECK(ncclGroupEnd());
    CUDACHECK(cudaStreamSynchronize(s->stream));
    return;
  }
  char *list = launcher_allocate(longest * size), *lists = launcher_allocate(P * longest * size);
  memcpy(list, mine, lengths[me] * size);
  s->allgather(s->me, list, lists, longest * size);
  for (size_t r = 0; r < P; received += receives[r++] * size)
    memcpy(received, lists + (r * longest + begins[r][me]) * size, receives[r] * size);
  free(lists);
  free(list);
}

void simple_gather(struct simple *s, const void *mine, const uint64_t *counts, size_t words,
                   void *all)
{
  const int P = s->nranks;
  uint64_t to_all[P * P];
  for (int i = 0; i < P * P; i++) to_all[i] = counts[i / P];
  exchange(s, mine, to_all, 1, all, words);
}

void simple_split(struct simple *s, const struct sparse_pair *mine, const uint64_t *sends,
                  struct sparse_pair *received, uint64_t *receives)
{
  const int P = s->nranks;
  uint64_t counts[P * P];
  simple_numbers(s, sends, counts, (size_t)P);
  for (int r = 0; r < P; r++) receives[r] = counts[r * P + s->rank];
  exchange(s, (const char *)mine, counts, 0, (char *)received, 2);
}

void simple_sum(struct simple *s, const float *mine, float *sums)
{
  enum { PIECE = 1 << 20 }; /* elements that the launcher takes at a time */
  const size_t P = (size_t)s->nranks;
  s->last.words_sent = 2 * s->n * (P - 1) / P;
  if (s->comm) {
    NCCLCHECK(ncclAllReduce(mine, sums, s->n, ncclFloat, ncclSum, s->comm, s->stream));
    CUDACHECK(cudaStreamSynchronize(s->stream));
    return;
  }
  simple_zero(s, sums);
  for (size_t at = 0; at < s->n; at += PIECE) {
    const size_t count = s->n - at < PIECE ? s->n - at : PIECE;
    float *pieces = launcher_allocate(P * count * sizeof *pieces);
    s->allgather(s->me, mine + at, pieces, count * sizeof *pieces);
    for (size_t r = 0; r < P; r++)
      for (size_t i = 0; i < count; i++)
        sums[at + i] = simple_add(sums[at + i], pieces[r * count + i]);
    free(pieces);
  }
}
