/* SPDX-License-Identifier: Apache-2.0 */
/* --bench: NCCL's AllReduce on plain buffers and on symmetric windows, and the AllReduces of
 * simple/ (for floats) and lib/ on these windows. --method: one of these, once. */
#include "bench_allreduce.h"
#include "check.h"
#include "lib/allreduce.h"
#include "lib/allreduce_internal.h"
#include "simple/allreduce_simple.h"
#include "symmetric_kernels.h"

#define LIBRARYCHECK(call) CHECK_NCCL_RESULT(call, #call, allreduce_last_error())

/* NCCL's AllReduce, those of simple/, that of lib/ */
enum method { METHOD_NCCL, METHOD_BARRIER, METHOD_LINES, METHOD_DIRECT, METHODS };

static bool require_symmetric;
static int chosen = METHOD_NCCL;

const struct option_spec harness_options[] = {
    {"require-symmetric", 0, OPTION_FLAG, &require_symmetric, NULL,
     "exit with 77 unless symmetric kernels are certain to be used", 0, 0},
    {"method", 0, OPTION_CHOICE, &chosen, "nccl|barrier|lines|direct",
     "which AllReduce: NCCL's, one of simple/ (barrier, lines), or that of lib/ (direct) (nccl)", 0,
     0},
    {0},
};

/* ---- NCCL's, on windows ---------------------------------------------------------------------- */

static void register_windows(struct allreduce_buffers *b)
{
  for (int i = 0; i < 2; i++) {
    void *buffer = i == 0 ? b->sendbuff : b->recvbuff;
    ncclWindow_t window = NULL;
    NCCLCHECK(ncclCommWindowRegister(b->comm, buffer, b->bytes, &window, NCCL_WIN_COLL_SYMMETRIC));
    b->handles[i] = window;
  }
  if (b->opt->bench || chosen != METHOD_NCCL) return;
  const bool certain =
      note_symmetric_kernels(b->me, b->comm, b->verifier->type->nccl, b->handles[0]);
  const int code = require_symmetric && !certain ? EXIT_CANNOT_RUN : EXIT_VERIFIED;
  if (launcher_agree(b->me, code) == EXIT_VERIFIED) return;
  launcher_note(b->me, "--require-symmetric: leaving with exit code %d", EXIT_CANNOT_RUN);
  launcher_barrier(b->me); /* rank 0 has printed the note */
  launcher_abort(EXIT_CANNOT_RUN);
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

#if ALLREDUCE_HAS_DEVICE_CODE /* else the Makefile leaves simple/ out */
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
#endif

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
#if ALLREDUCE_HAS_DEVICE_CODE
    [METHOD_BARRIER] = {"barrier", true, setup_simple, teardown_simple, call_barrier},
    [METHOD_LINES] = {"lines", true, setup_simple, teardown_simple, call_lines},
#endif
    [METHOD_DIRECT] = {"direct", true, setup_direct, teardown_direct, call_direct},
};
enum { METHODS_MEMORY = 256 << 20 }; /* for the scratch memory of these */

int harness(const struct rank *me, const struct options *opt)
{
  const bool floats = opt->type->nccl == ncclFloat;
  const bool deadlock = launcher_graphs_can_deadlock && opt->graph_launches > 0 && me->nranks > 1;
  struct allreduce_variant variants[METHODS] = {methods[METHOD_NCCL]};
  int n = 1;
  if (opt->bench && (require_symmetric || chosen != METHOD_NCCL))
    return launcher_refuse(me, "--bench measures all methods: leave out --method and "
                               "--require-symmetric");
  if (require_symmetric && chosen != METHOD_NCCL)
    return launcher_refuse(me, "--require-symmetric is for --method nccl");
  if (!floats && (chosen == METHOD_BARRIER || chosen == METHOD_LINES))
    return launcher_refuse(me, "--method barrier and lines add floats; "
                               "allowed: -d float, or --method nccl or direct");
  if (!methods[chosen].name)
    return launcher_refuse(me,
                           "--method barrier and lines are kernels for NCCL 2.28 and CUDA 12.3, "
                           "and this build has older ones; allowed: nccl");
  if (!type_has_symmetric_kernel(opt->type->nccl)) variants[0].name = "symmetric (no kernel)";
  if (deadlock)
    launcher_note(me,
                  "not measured: %sdirect. In graphs they can deadlock if ranks are threads; build "
                  "with MPI=1",
                  floats ? "barrier, lines and " : "");
  for (int m = METHOD_BARRIER; m < METHODS && !deadlock; m++)
    if (methods[m].name && (opt->bench ? floats || m == METHOD_DIRECT : m == chosen))
      variants[n++] = methods[m];
  return bench_allreduce(me, opt, "AllReduce, symmetric memory windows", variants, n,
                         METHODS_MEMORY);
}
