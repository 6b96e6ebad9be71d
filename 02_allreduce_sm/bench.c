/* SPDX-License-Identifier: Apache-2.0 */
/* --bench: the same AllReduce on plain buffers and on symmetric windows. */
#include "bench_allreduce.h"
#include "check.h"
#include "program.h"

static void setup_symmetric(void *state)
{
  struct allreduce_buffers *b = state;
  ncclWindow_t windows[2] = {NULL, NULL};
  NCCLCHECK(ncclMemAlloc(&b->sendbuff, b->bytes));
  NCCLCHECK(ncclMemAlloc(&b->recvbuff, b->bytes));
  NCCLCHECK(
      ncclCommWindowRegister(b->comm, b->sendbuff, b->bytes, &windows[0], NCCL_WIN_COLL_SYMMETRIC));
  NCCLCHECK(
      ncclCommWindowRegister(b->comm, b->recvbuff, b->bytes, &windows[1], NCCL_WIN_COLL_SYMMETRIC));
  b->handles[0] = windows[0];
  b->handles[1] = windows[1];
}

static void teardown_symmetric(void *state)
{
  struct allreduce_buffers *b = state;
  NCCLCHECK(ncclCommWindowDeregister(b->comm, b->handles[0]));
  NCCLCHECK(ncclCommWindowDeregister(b->comm, b->handles[1]));
  launcher_barrier(b->me); /* no rank frees what a slower peer may still read */
  NCCLCHECK(ncclMemFree(b->sendbuff));
  NCCLCHECK(ncclMemFree(b->recvbuff));
}

/* NCCL has symmetric kernels for sums of floating types of up to 32 bits; on windows, other types
 * take the same path as on plain buffers. The name of the column marks them. */
static bool has_symmetric_kernel(ncclDataType_t type)
{
  return type == ncclFloat || type == ncclHalf || type == ncclBfloat16;
}

int bench_example(const struct rank *me, const struct options *opt)
{
  if (program_require_symmetric)
    return launcher_refuse(me, "--require-symmetric is not for --bench; allowed: one of them");
  const char *name = has_symmetric_kernel(opt->type->nccl) ? "symmetric" : "symmetric (no kernel)";
  return bench_allreduce(me, opt, "AllReduce, symmetric memory windows",
                         (struct allreduce_variant){name, setup_symmetric, teardown_symmetric});
}
