/* SPDX-License-Identifier: Apache-2.0 */
/* --bench: NCCL's AllReduce on plain buffers and on symmetric windows, and the AllReduces of
 * simple/ (for floats) and lib/ on these windows. --method: one of these, once. */
#include "check.h"
#include "lib/allreduce.h"
#include "allreduce_program.h"
#include "simple/allreduce_simple.h"

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

/* ---- the others; without a `handle` NCCL's AllReduce is called ------------------------------- */

static void note_if_missing(const struct allreduce_buffers *b, const char *why)
{
  if (b->handle) return;
  launcher_note(b->me, "%s cannot run here (%s); using NCCL's AllReduce", b->variant->name, why);
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
  /* longer than the watchdog's timeout, because the watchdog can name each rank's step */
  const allreduce_config_t config = {.timeout_seconds = (double)b->opt->timeout + 10};
  const ncclResult_t result = allreduce_create(b->comm, &config, &handle);
  if (result != ncclInvalidUsage) /* which all ranks get alike */
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

/* An error of the library, such as a late rank, ends the job. */
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
enum { METHODS_MEMORY = 256 << 20 }; /* for the scratch memory of these */

int bench_example(const struct rank *me, const struct options *opt)
{
  const bool floats = opt->type->nccl == ncclFloat;
  const bool deadlock = launcher_graphs_can_deadlock && opt->graph_launches > 0 && me->nranks > 1;
  struct allreduce_variant variants[METHODS] = {methods[METHOD_NCCL]};
  int n = 1;
  if (opt->bench && (program_require_symmetric || program_method != METHOD_NCCL))
    return launcher_refuse(me, "--bench measures all methods: leave out --method and "
                               "--require-symmetric");
  if (program_require_symmetric && program_method != METHOD_NCCL)
    return launcher_refuse(me, "--require-symmetric is for --method nccl");
  if (!opt->bench && program_method != METHOD_DIRECT && !floats)
    return launcher_refuse(me, "--method barrier and lines add floats; "
                               "allowed: -d float, or --method nccl or direct");
  if (!program_has_symmetric_kernel(opt->type->nccl)) variants[0].name = "symmetric (no kernel)";
  if (deadlock)
    launcher_note(me,
                  "not measured: %sdirect. In graphs they can deadlock if ranks are threads; build "
                  "with MPI=1",
                  floats ? "barrier, lines and " : "");
  for (int m = METHOD_BARRIER; m < METHODS && !deadlock; m++)
    if (opt->bench ? floats || m == METHOD_DIRECT : m == program_method) variants[n++] = methods[m];
  return bench_allreduce(me, opt, "AllReduce, symmetric memory windows", variants, n,
                         METHODS_MEMORY);
}
