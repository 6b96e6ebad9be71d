/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU version of the kernels and flags: ranks exchange flags through NCCL, the stores are
 * copies. Lines are the same as barrier here. */
#include <stdlib.h>

#include "cpu.h"
#include "simple.h"

void barrier_call(const struct exchange *x, const char *send, char *recv, cudaStream_t stream)
{
  unsigned *flag = x->simple.scratch->flags[0];
  NCCLCHECK(ncclAllReduce(flag, flag, 1, ncclUint32, ncclSum, x->comm, stream));
  copy_to_peers(x, send, recv, stream);
  NCCLCHECK(ncclAllReduce(flag, flag, 1, ncclUint32, ncclSum, x->comm, stream));
}

void lines_call(const struct exchange *x, const char *send, char *recv, cudaStream_t stream)
{
  barrier_call(x, send, recv, stream);
}

void bare_push_call(const struct exchange *x, const char *send, char *recv, cudaStream_t stream)
{
  copy_to_peers(x, send, recv, stream);
}

void signal_and_wait(const struct exchange *x, int which, const size_t *notify, const size_t *await,
                     cudaStream_t stream)
{
  unsigned *flags = x->simple.scratch->flags[which];
  const int me = x->me->rank;
  NCCLCHECK(ncclGroupStart());
  for (int p = 0; p < x->me->nranks; p++) {
    if (p == me) continue;
    if (notify[p] > 0) NCCLCHECK(ncclSend(&flags[me], 1, ncclUint32, p, x->comm, stream));
    if (await[p] > 0) NCCLCHECK(ncclRecv(&flags[p], 1, ncclUint32, p, x->comm, stream));
  }
  NCCLCHECK(ncclGroupEnd());
}

const char *simple_open(struct exchange *x)
{
  struct simple *s = &x->simple;
  const char *ranks = getenv("CPU_STANDIN_LSA_RANKS"); /* several hosts are being simulated */
  const int n = x->me->nranks;
  const size_t bytes = sizeof *s->scratch + x->window_bytes;
  if (n > SIMPLE_MAX_RANKS || (ranks && atoi(ranks) < n)) return "not all ranks share memory";
  NCCLCHECK(ncclMemAlloc((void **)&s->scratch, bytes));
  s->window = (char *)(s->scratch + 1);
  NCCLCHECK(
      ncclCommWindowRegister(x->comm, s->scratch, bytes, &s->registered, NCCL_WIN_COLL_SYMMETRIC));
  for (int p = 0; p < n; p++) s->peer[p] = cpu_window_pointer(s->registered, 0, p);
  return NULL;
}

void simple_close(struct exchange *x)
{
  NCCLCHECK(ncclCommWindowDeregister(x->comm, x->simple.registered));
  NCCLCHECK(ncclMemFree(x->simple.scratch));
}
