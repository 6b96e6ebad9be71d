/* SPDX-License-Identifier: Apache-2.0 */
/* --bench: the same AllReduce on plain and on registered buffers. Without it, for -d and --digest:
 * one AllReduce on registered ones. */
#include "bench_allreduce.h"
#include "check.h"

static void register_buffers(struct allreduce_buffers *b)
{
  NCCLCHECK(ncclCommRegister(b->comm, b->sendbuff, b->bytes, &b->handles[0]));
  NCCLCHECK(ncclCommRegister(b->comm, b->recvbuff, b->bytes, &b->handles[1]));
}

static void deregister_buffers(struct allreduce_buffers *b)
{
  NCCLCHECK(ncclCommDeregister(b->comm, b->handles[0]));
  NCCLCHECK(ncclCommDeregister(b->comm, b->handles[1]));
}

int harness(const struct rank *me, const struct options *opt)
{
  static const struct allreduce_variant registered = {"registered", false, register_buffers,
                                                      deregister_buffers, NULL};
  return bench_allreduce(me, opt, "AllReduce, user buffer registration", &registered, 1, 0);
}
