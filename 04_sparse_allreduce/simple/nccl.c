/* SPDX-License-Identifier: Apache-2.0 */
/* Exchanges by NCCL's host calls, between the GPUs' memories. The host waits for each. An entry has
 * 8 bytes and travels as one ncclUint64. */
#include "check.h"
#include "simple.h"

static void numbers(struct simple *s, const uint64_t *mine, uint64_t *all, size_t count)
{
  uint64_t *gathered = s->numbers + count;
  s->on->copy(s, s->numbers, mine, count * sizeof *mine);
  NCCLCHECK(ncclAllGather(s->numbers, gathered, count, ncclUint64, s->comm, s->stream));
  CUDACHECK(cudaStreamSynchronize(s->stream));
  s->on->copy(s, all, gathered, (size_t)s->nranks * count * sizeof *mine);
}

/* NCCL has no Allgatherv: a broadcast from each rank that has something, in one group. */
static void gather(struct simple *s, const void *mine, const uint64_t *counts, size_t element_bytes,
                   void *all)
{
  char *to = all;
  NCCLCHECK(ncclGroupStart());
  for (int r = 0; r < s->nranks; r++) {
    const size_t bytes = counts[r] * element_bytes;
    const void *from = r == s->rank ? mine : to;
    if (bytes > 0) NCCLCHECK(ncclBroadcast(from, to, bytes, ncclInt8, r, s->comm, s->stream));
    to += bytes;
  }
  NCCLCHECK(ncclGroupEnd());
  CUDACHECK(cudaStreamSynchronize(s->stream));
}

/* In turn i a rank sends to the rank i after it and receives from the rank i before it, so that
 * nobody is sent to by all others at once. MPI: Isend, Irecv, Waitall */
static void split(struct simple *s, const struct sparse_pair *mine, const uint64_t *begins,
                  struct sparse_pair *received, const uint64_t *places, const uint64_t *counts)
{
  const int P = s->nranks;
  NCCLCHECK(ncclGroupStart());
  for (int i = 0; i < P; i++) {
    const int to = (s->rank + i) % P, from = (s->rank - i + P) % P;
    const uint64_t sends = begins[to + 1] - begins[to];
    if (sends > 0)
      NCCLCHECK(ncclSend(mine + begins[to], sends, ncclUint64, to, s->comm, s->stream));
    if (counts[from] > 0)
      NCCLCHECK(
          ncclRecv(received + places[from], counts[from], ncclUint64, from, s->comm, s->stream));
  }
  NCCLCHECK(ncclGroupEnd());
  CUDACHECK(cudaStreamSynchronize(s->stream));
}

static void sum(struct simple *s, const float *mine, float *sums)
{
  NCCLCHECK(ncclAllReduce(mine, sums, s->n, ncclFloat, ncclSum, s->comm, s->stream));
  CUDACHECK(cudaStreamSynchronize(s->stream));
}

const struct simple_exchange simple_by_nccl = {numbers, gather, split, sum};
