/* SPDX-License-Identifier: Apache-2.0 */
/* --bench: the same AllReduce on plain buffers, on symmetric windows, and on these windows by the
 * first rung, simple/, and by the last ones, own/. */
#include "bench_allreduce.h"
#include "check.h"
#include "simple/oneshot.h"
#include "program.h"
#include "symmetric_support.h"

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
  launcher_barrier(b->me); /* a slower peer may still read this rank's memory */
  NCCLCHECK(ncclCommWindowDeregister(b->comm, b->handles[0]));
  NCCLCHECK(ncclCommWindowDeregister(b->comm, b->handles[1]));
  NCCLCHECK(ncclMemFree(b->sendbuff));
  NCCLCHECK(ncclMemFree(b->recvbuff));
}

/* ---- simple/ and own/: on the windows of the column before ---------------------------------- */

/* The first rung, which adds floats. */
static void setup_oneshot(void *state)
{
  struct allreduce_buffers *b = state;
  const char *why = "";
  b->handles[2] = oneshot_create(b->comm, b->handles[0], b->sendbuff, &why);
  if (!b->handles[2]) launcher_note(b->me, "one-shot: NCCL's AllReduce is taken: %s", why);
}

static void call_oneshot(struct allreduce_buffers *b, const void *sendbuff, void *recvbuff,
                         size_t count, cudaStream_t stream)
{
  if (b->handles[2])
    oneshot_allreduce(b->handles[2], sendbuff, recvbuff, count, stream);
  else
    NCCLCHECK(ncclAllReduce(sendbuff, recvbuff, count, ncclFloat, ncclSum, b->comm, stream));
}

static void teardown_oneshot(void *state)
{
  struct allreduce_buffers *b = state;
  if (b->handles[2]) oneshot_destroy(b->handles[2]);
}

/* The last one. It has scratch memory. */
enum { OWN_MEMORY = 64 << 20 };

static void setup_own(void *state)
{
  struct allreduce_buffers *b = state;
  program_own_begin(b->me, b->opt, b->comm, b->sendbuff, b->handles[0], b->recvbuff, b->handles[1],
                    b->bytes);
}

static void call_own(struct allreduce_buffers *b, const void *sendbuff, void *recvbuff,
                     size_t count, cudaStream_t stream)
{
  const ncclDataType_t type = b->verifier->type->nccl;
  if (!program_own_enqueue(sendbuff, recvbuff, count, type, stream))
    NCCLCHECK(ncclAllReduce(sendbuff, recvbuff, count, type, ncclSum, b->comm, stream));
}

static void teardown_own(void *state)
{
  (void)state;
  program_own_check();
  program_own_end();
}

int bench_example(const struct rank *me, const struct options *opt)
{
  const struct allreduce_variant symmetric = {
      symmetric_kernel_for(opt->type->nccl) ? "symmetric" : "symmetric (no kernel)", false,
      setup_symmetric, teardown_symmetric, NULL};
  static const struct allreduce_variant oneshot = {"one-shot", true, setup_oneshot,
                                                   teardown_oneshot, call_oneshot};
  static const struct allreduce_variant own = {"own", true, setup_own, teardown_own, call_own};
  struct allreduce_variant variants[3] = {symmetric};
  int n = 1;
  if (program_require_symmetric)
    return launcher_refuse(me, "--require-symmetric is not for --bench; allowed: one of them");
  if (program_method != METHOD_NCCL)
    return launcher_refuse(me, "--method is not for --bench, which measures both; "
                               "allowed: one of them");
  if (launcher_graphs_can_deadlock && opt->graph_launches > 0 && me->nranks > 1) {
    launcher_note(me,
                  "%sown: left out of graphs, which can deadlock where ranks are threads; "
                  "allowed: the build with MPI=1",
                  opt->type->nccl == ncclFloat ? "one-shot and " : "");
  } else {
    if (opt->type->nccl == ncclFloat) variants[n++] = oneshot;
    variants[n++] = own;
  }
  return bench_allreduce(me, opt, "AllReduce, symmetric memory windows", variants, n, OWN_MEMORY);
}
