/* SPDX-License-Identifier: Apache-2.0 */
/* --bench: the same AllReduce on plain buffers, on symmetric windows, and on these windows by the
 * AllReduces of simple/, which add floats, and of lib/. And --method: one of these, once. */
#include "check.h"
#include "lib/allreduce.h"
#include "program.h"
#include "simple/simple.h"

#define LIBRARYCHECK(call) CHECK_NCCL_RESULT(call, #call, allreduce_last_error())

/* ---- NCCL's, on windows ---------------------------------------------------------------------- */

static void register_windows(struct allreduce_buffers *b)
{
  for (int i = 0; i < 2; i++) {
    void *buffer = i == 0 ? b->sendbuff : b->recvbuff;
    ncclWindow_t window = NULL;
    NCCLCHECK(ncclCommWindowRegister(b->comm, buffer, b->bytes, &window, NCCL_WIN_COLL_SYMMETRIC));
    b->handles[i] = window;
  }
}

static void deregister_windows(struct allreduce_buffers *b)
{
  NCCLCHECK(ncclCommWindowDeregister(b->comm, b->handles[0]));
  NCCLCHECK(ncclCommWindowDeregister(b->comm, b->handles[1]));
}

/* ---- the others: `handle` is theirs; NULL: NCCL's is taken ----------------------------------- */

static void note_if_missing(const struct allreduce_buffers *b, const char *why)
{
  if (!b->handle) launcher_note(b->me, "%s: NCCL's AllReduce is taken: %s", b->variant->name, why);
}

static void setup_simple(struct allreduce_buffers *b)
{
  const char *why = "";
  b->handle = simple_create(b->comm, b->handles[0], b->sendbuff, &why);
  note_if_missing(b, why);
}

static void teardown_simple(struct allreduce_buffers *b)
{
  if (b->handle) simple_destroy(b->handle);
}

static void call_barrier(struct allreduce_buffers *b, const void *sendbuff, void *recvbuff,
                         size_t count, cudaStream_t stream)
{
  barrier_allreduce(b->handle, sendbuff, recvbuff, count, stream);
}

static void call_lines(struct allreduce_buffers *b, const void *sendbuff, void *recvbuff,
                       size_t count, cudaStream_t stream)
{
  lines_allreduce(b->handle, sendbuff, recvbuff, count, stream);
}

static void setup_direct(struct allreduce_buffers *b)
{
  allreduce_t handle = NULL;
  /* The watchdog comes first: it knows the step of every rank. */
  const allreduce_config_t config = {.timeout_seconds = (double)b->opt->timeout + 10};
  const ncclResult_t result = allreduce_create(b->comm, &config, &handle);
  if (result != ncclInvalidUsage) /* which is on all ranks */
    CHECK_NCCL_RESULT(result, "allreduce_create(b->comm, &config, &handle)",
                      allreduce_last_error());
  b->handle = handle;
  note_if_missing(b, allreduce_last_error());
  if (!handle) return;
  LIBRARYCHECK(allreduce_add_window(handle, b->handles[0], b->sendbuff, b->bytes));
  LIBRARYCHECK(allreduce_add_window(handle, b->handles[1], b->recvbuff, b->bytes));
}

static void call_direct(struct allreduce_buffers *b, const void *sendbuff, void *recvbuff,
                        size_t count, cudaStream_t stream)
{
  const ncclDataType_t type = b->verifier->type->nccl;
  LIBRARYCHECK(allreduce_run(b->handle, sendbuff, recvbuff, count, type, stream));
}

/* A rank that did not come ends the job. */
static void teardown_direct(struct allreduce_buffers *b)
{
  ncclResult_t result = ncclSuccess;
  if (!b->handle) return;
  LIBRARYCHECK(allreduce_get_async_error(b->handle, &result));
  if (result != ncclSuccess) {
    launcher_error("direct: %s", allreduce_last_error());
    launcher_abort(result == ncclRemoteError ? EXIT_TIMEOUT : EXIT_FAILED_CALL);
  }
  LIBRARYCHECK(allreduce_destroy(b->handle));
}

static const struct allreduce_variant methods[METHODS] = {
    [METHOD_NCCL] = {"symmetric", false, register_windows, deregister_windows, NULL},
    [METHOD_BARRIER] = {"barrier", true, setup_simple, teardown_simple, call_barrier},
    [METHOD_LINES] = {"lines", true, setup_simple, teardown_simple, call_lines},
    [METHOD_DIRECT] = {"direct", true, setup_direct, teardown_direct, call_direct},
};
enum { METHODS_MEMORY = 256 << 20 }; /* beside the buffers: their scratch memory */

int bench_example(const struct rank *me, const struct options *opt)
{
  const bool floats = opt->type->nccl == ncclFloat;
  const bool deadlock = launcher_graphs_can_deadlock && opt->graph_launches > 0 && me->nranks > 1;
  struct allreduce_variant variants[METHODS] = {methods[METHOD_NCCL]};
  int n = 1;
  if (opt->bench && (program_require_symmetric || program_method != METHOD_NCCL))
    return launcher_refuse(me, "--method and --require-symmetric are not for --bench, which "
                               "measures all; allowed: one of them");
  if (!opt->bench && program_method != METHOD_DIRECT && !floats)
    return launcher_refuse(me, "--method barrier and lines add floats; "
                               "allowed: -d float, or --method nccl or direct");
  if (!program_has_symmetric_kernel(opt->type->nccl)) variants[0].name = "symmetric (no kernel)";
  if (deadlock)
    launcher_note(me,
                  "%sdirect: left out of graphs, which can deadlock where ranks are threads; "
                  "allowed: the build with MPI=1",
                  floats ? "barrier, lines and " : "");
  for (int m = METHOD_BARRIER; m < METHODS && !deadlock; m++)
    if (opt->bench ? floats || m == METHOD_DIRECT : m == program_method) variants[n++] = methods[m];
  return bench_allreduce(me, opt, "AllReduce, symmetric memory windows", variants, n,
                         METHODS_MEMORY);
}
