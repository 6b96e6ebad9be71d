/* SPDX-License-Identifier: Apache-2.0 */
/* topkA: every rank offers its k largest entries, everybody gets all of them and adds.
 *
 *   rank 0  acc  . 9 . . -7 . . .      offers 1:9 4:-7  \
 *   rank 1  acc  . 5 . . . . . 6       offers 1:5 7:6    } everybody: 1:14 4:-7 7:6, then / P
 *
 * A rank sends its k entries to P - 1 others, so the volume grows with the number of ranks. */
#include "check.h"
#include "simple.h"

void simple_topka(struct simple *s, const float *gradient, cudaStream_t stream)
{
  const size_t k = s->k, ranks = (size_t)s->nranks;
  s->last = (sparse_allreduce_statistics_t){.step = s->steps++};

  /* 1. acc = gradient + residual. The k largest entries are offered. All that is offered will be
   * in the result, so it leaves the residual; the rest stays for later steps. */
  simple_add_vector(s, s->acc, gradient, stream);
  s->rule = simple_largest(s, s->acc, k, stream);
  s->last.local = simple_select(s, s->acc, 0, s->n, s->rule, s->offered, stream);
  simple_clear_entries(s->acc, s->offered, k, NULL, stream);

  /* 2. Everybody gets all lists. An entry has 8 bytes and travels as one ncclUint64.
   * MPI: Allgather(indices), Allgather(values) */
  NCCLCHECK(ncclAllGather(s->offered, s->received, k, ncclUint64, s->comm, stream));
  s->last.words_sent = s->last.words_received = 2 * k * (ranks - 1);

  /* 3. Sums. Rank 0's entries first on every rank: the same order gives the same bits. */
  CUDACHECK(cudaMemsetAsync(s->sums, 0, s->n * sizeof *s->sums, stream));
  for (size_t r = 0; r < ranks; r++) simple_add_entries(s->sums, s->received + r * k, k, stream);

  /* 4. The average; and as a list what is in it, without sums that came out as 0. */
  simple_divide(s, s->result, s->sums, s->nranks, stream);
  const struct simple_rule nonzero = {0, -1};
  s->last.global = simple_select(s, s->sums, 0, s->n, nonzero, s->global, stream);
}
