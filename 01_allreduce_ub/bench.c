/* SPDX-License-Identifier: Apache-2.0 */
/* --bench: the same AllReduce on plain and on registered buffers. */
#include "bench_allreduce.h"
#include "check.h"

static void setup_registered(void *state)
{
  struct allreduce_buffers *b = state;
  NCCLCHECK(ncclMemAlloc(&b->sendbuff, b->bytes));
  NCCLCHECK(ncclMemAlloc(&b->recvbuff, b->bytes));
  NCCLCHECK(ncclCommRegister(b->comm, b->sendbuff, b->bytes, &b->handles[0]));
  NCCLCHECK(ncclCommRegister(b->comm, b->recvbuff, b->bytes, &b->handles[1]));
}

static void teardown_registered(void *state)
{
  struct allreduce_buffers *b = state;
  launcher_barrier(b->me); /* a slower peer may still read this rank's memory */
  NCCLCHECK(ncclCommDeregister(b->comm, b->handles[0]));
  NCCLCHECK(ncclCommDeregister(b->comm, b->handles[1]));
  NCCLCHECK(ncclMemFree(b->sendbuff));
  NCCLCHECK(ncclMemFree(b->recvbuff));
}

int bench_example(const struct rank *me, const struct options *opt)
{
  static const struct allreduce_variant registered = {"registered", false, setup_registered,
                                                      teardown_registered, NULL};
  return bench_allreduce(me, opt, "AllReduce, user buffer registration", &registered, 1, 0);
}
