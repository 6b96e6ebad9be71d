/* SPDX-License-Identifier: Apache-2.0 */
#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "patterns.h"
#include "verify.h"

/* ---- options --------------------------------------------------------------------------------- */

struct program_options program_options = {.seed = 1};

#define METHODS "auto|sendrecv|barrier|lines|copy-engine|lsa|lib-sendrecv"
const struct option_spec program_option_table[] = {
    {"pattern", 0, OPTION_STRING, &program_options.pattern, "NAME",
     "who sends how much to whom (halving):" PATTERN_NAMES, 0, 0},
    {"matrix", 0, OPTION_INPUT, &program_options.matrix_file, "FILE",
     "the same from a square matrix of bytes, row = source, column = destination", 0, 0},
    {"method", 0, OPTION_CHOICE, &program_options.method, METHODS,
     "who moves the bytes (auto): auto, lsa and lib-sendrecv are alltoallv.h's, the others those "
     "of "
     "simple/",
     0, 0},
    {"device-counts", 0, OPTION_FLAG, &program_options.device_counts, NULL,
     "the send counts are known to the device only", 0, 0},
    {"seed", 0, OPTION_LONG, &program_options.seed, "N", "for the patterns random and moe (1)", 0,
     1LL << 40},
    {0},
};

/* What is wrong with them together, or "". */
static const char *wrong_options(const struct options *opt)
{
  const struct program_options *own = &program_options;
  if (own->matrix_file && own->pattern)
    return "--matrix and --pattern together; allowed: one of them";
  if (own->matrix_file && opt->count) return "--matrix and --count together; allowed: one of them";
  if (own->matrix_file && opt->sizes)
    return "--matrix: the file sets the size, so -b, -e and -f are not for it; allowed: it alone";
  if (own->device_counts && opt->bench)
    return "--device-counts is not for --bench, which measures both ways; allowed: one of them";
  if (own->device_counts && !program_takes_library())
    return "--device-counts needs a method of alltoallv.h; allowed: auto, lsa, lib-sendrecv";
  if (opt->bench && !program_takes_library())
    return "--method is for alltoallv.h in --bench, which measures the others anyway; allowed: "
           "auto, lsa, lib-sendrecv";
  return "";
}

size_t *program_matrix(const struct rank *me, const struct options *opt, const char *pattern,
                       size_t total)
{
  const size_t n = (size_t)me->nranks, size = opt->type->size;
  const struct program_options *own = &program_options;
  char error[LAUNCHER_TEXT];
  snprintf(error, sizeof error, "%s", wrong_options(opt));
  size_t *matrix = calloc(n * n, sizeof *matrix);
  if (!matrix) launcher_fail(__FILE__, __LINE__, "calloc", "out of memory", NULL);
  /* a file: by rank 0, for a pipe can be read once only, and hosts may have different files */
  if (!*error && own->matrix_file && me->rank == 0)
    pattern_read(own->matrix_file, me->nranks, size, matrix, error, sizeof error);
  else if (!*error && !own->matrix_file)
    pattern_matrix(pattern, me->nranks, total, size, (unsigned long long)own->seed, matrix, error,
                   sizeof error);
  if (launcher_refuse(me, error) != EXIT_VERIFIED) {
    free(matrix);
    return NULL;
  }
  if (own->matrix_file) launcher_broadcast(me, matrix, n * n * sizeof *matrix, 0);
  return matrix;
}

/* ---- one exchange ---------------------------------------------------------------------------- */

struct exchange program_exchange(const struct rank *me, const struct datatype *type)
{
  const size_t n = (size_t)me->nranks;
  size_t *counts = calloc(5 * n, sizeof *counts);
  if (!counts) launcher_fail(__FILE__, __LINE__, "calloc", "out of memory", NULL);
  return (struct exchange){.me = me,
                           .type = type,
                           .sendcounts = counts,
                           .sdispls = counts + n,
                           .recvcounts = counts + 2 * n,
                           .rdispls = counts + 3 * n,
                           .places = counts + 4 * n};
}

size_t program_prefix_sums(const size_t *counts, size_t *displs, int n)
{
  size_t sum = 0;
  for (int i = 0; i < n; i++) {
    displs[i] = sum;
    sum += counts[i];
  }
  return sum;
}

void program_places(struct exchange *x, alltoallv_t handle)
{
  /* who tells p where p's part belongs hears where its own part belongs at p */
  ALLTOALLVCHECK(alltoallv_counts(x->rdispls, x->places, handle));
  x->largest = 0;
  for (int p = 0; p < x->me->nranks; p++)
    if (x->sendcounts[p] > x->largest) x->largest = x->sendcounts[p];
  x->largest = (size_t)launcher_max(x->me, (double)x->largest);
}

void program_allocate(struct exchange *x)
{
  x->send_bytes = (size_t)launcher_max(x->me, (double)(x->sends * x->type->size));
  x->recv_bytes = (size_t)launcher_max(x->me, (double)(x->receives * x->type->size));
  NCCLCHECK(ncclMemAlloc((void **)&x->send, x->send_bytes + 1));
  NCCLCHECK(ncclMemAlloc((void **)&x->window, x->recv_bytes + 2 * PROGRAM_GUARD));
}

size_t program_bytes(size_t send_bytes, size_t recv_bytes, int nranks)
{
  enum { HANDLE = 4 << 20, HANDLE_PER_RANK = 2 << 20 }; /* at most */
  return send_bytes + recv_bytes + 2 * PROGRAM_GUARD + HANDLE + (size_t)nranks * HANDLE_PER_RANK;
}

/* ---- ways to exchange ------------------------------------------------------------------------ */

void program_cannot_run(const struct rank *me, const char *why)
{
  if (me->rank == 0) fprintf(stderr, "alltoallv_sm: --method: %s; allowed: auto, sendrecv\n", why);
  launcher_barrier(me);
  launcher_abort(EXIT_CANNOT_RUN);
}

void program_init(const struct rank *me, ncclComm_t comm, alltoallv_t *handle)
{
  alltoallv_config_t config = ALLTOALLV_CONFIG_INITIALIZER;
  config.method = methods[program_options.method].handle;
  ncclResult_t result = alltoallv_init(comm, &config, handle);
  if (result == ncclInvalidUsage) /* on all ranks */
    program_cannot_run(me, alltoallv_last_error());
  CHECK_NCCL_RESULT(result, "alltoallv_init(comm, &config, handle)", alltoallv_last_error());
}

static void call_sendrecv(struct way *w, const char *send, size_t recv_at, cudaStream_t stream)
{
  const struct exchange *x = w->x;
  NCCLCHECK(sendrecv_alltoallv(send, x->sendcounts, x->sdispls, w->window + recv_at, x->recvcounts,
                               x->rdispls, x->type->nccl, x->type->size, x->me->nranks, w->comm,
                               stream));
}

static void call_library(struct way *w, const char *send, size_t recv_at, cudaStream_t stream)
{
  const struct exchange *x = w->x;
  ALLTOALLVCHECK(alltoallv(send, x->sendcounts, x->sdispls, w->window + recv_at, x->recvcounts,
                           x->rdispls, x->type->size, w->handle, stream));
}

static const char *open_device_counts(struct way *w)
{
  int reach;
  ALLTOALLVCHECK(alltoallv_info(w->handle, &reach, NULL));
  return reach < w->x->me->nranks ? "the kernel does not reach all ranks" : NULL;
}

static void call_device_counts(struct way *w, const char *send, size_t recv_at, cudaStream_t stream)
{
  const int n = w->x->me->nranks;
  size_t *counts = w->device_counts;
  ALLTOALLVCHECK(alltoallv_device_counts(send, counts, NULL, w->window + recv_at, w->room,
                                         ALLTOALLV_PACKED, counts + n, counts + 2 * n, NULL,
                                         w->x->type->size, w->handle, stream));
}

/* Methods of simple/ but for the copy engines need a handle for the exchange of counts only. */
const struct method methods[] = {
    [METHOD_AUTO] = {"alltoallv", "alltoallv", ALLTOALLV_AUTO, NULL, call_library, NULL},
    [METHOD_SENDRECV] = {"grouped send/recv", "send/recv", ALLTOALLV_SENDRECV, NULL, call_sendrecv,
                         NULL},
    [METHOD_BARRIER] = {"push between two barriers", "barrier", ALLTOALLV_SENDRECV, barrier_open,
                        barrier_call, barrier_close},
    [METHOD_LINES] = {"lines", "lines", ALLTOALLV_SENDRECV, lines_open, lines_call, lines_close},
    [METHOD_COPY_ENGINE] = {"copy engines", "copy engine", ALLTOALLV_AUTO, copy_engine_open,
                            copy_engine_call, copy_engine_close},
    [METHOD_LSA] = {"alltoallv", NULL, ALLTOALLV_LSA, NULL, call_library, NULL},
    [METHOD_LIB_SENDRECV] = {"alltoallv", NULL, ALLTOALLV_SENDRECV, NULL, call_library, NULL},
    [METHOD_DEVICE_COUNTS] = {NULL, "device counts", ALLTOALLV_AUTO, open_device_counts,
                              call_device_counts, NULL},
    [METHOD_BARE_PUSH] = {NULL, "bare push", ALLTOALLV_AUTO, barrier_open, bare_push_call,
                          barrier_close},
};

bool program_takes_library(void)
{
  return methods[program_options.method].call == call_library;
}

const char *way_open(struct way *w)
{
  return w->method->open ? w->method->open(w) : NULL;
}

void way_close(struct way *w)
{
  if (w->method->close) w->method->close(w);
}

void program_check_async(alltoallv_t handle)
{
  ncclResult_t result;
  ALLTOALLVCHECK(alltoallv_get_async_error(handle, &result, NULL, NULL));
  if (result == ncclSuccess) return;
  launcher_error("alltoallv: %s: %s", ncclGetErrorString(result), alltoallv_last_error());
  launcher_abort(EXIT_FAILED_CALL);
}

/* ---- data ------------------------------------------------------------------------------------ */

void program_guard(const struct exchange *x, char *window, cudaStream_t stream)
{
  CUDACHECK(
      cudaMemsetAsync(window, ELEMENTS_GUARD_BYTE, x->recv_bytes + 2 * PROGRAM_GUARD, stream));
}

void program_fill(const struct exchange *x, char *send, uint32_t round, cudaStream_t stream)
{
  for (int to = 0; to < x->me->nranks; to++)
    CUDACHECK(
        elements_fill((struct segment){send + x->sdispls[to] * x->type->size, x->sendcounts[to],
                                       x->type->size, x->me->rank, to, round},
                      stream));
}

void program_expect(const struct exchange *x, char *recv, uint32_t round, struct segment *segments)
{
  for (int from = 0; from < x->me->nranks; from++)
    segments[from] = (struct segment){recv + x->rdispls[from] * x->type->size,
                                      x->recvcounts[from],
                                      x->type->size,
                                      from,
                                      x->me->rank,
                                      round};
}

static int by_start(const void *a, const void *b)
{
  const struct segment *x = a, *y = b;
  if (x->start != y->start) return x->start < y->start ? -1 : 1;
  return (x->count > y->count) - (x->count < y->count); /* empty ones first */
}

unsigned long long program_verify(const char *what, struct segment *segments, int nsegments,
                                  const struct exchange *x, char *window, cudaStream_t stream)
{
  struct element_errors errors, *device;
  char *at = window, *end = window + x->recv_bytes + 2 * PROGRAM_GUARD;
  /* An allocation, or a kernel's first launch, may wait for a device; and with all ranks in one
   * process the exchange there may wait for this thread. So it has to be over. */
  CUDACHECK(cudaStreamSynchronize(stream));
  qsort(segments, (size_t)nsegments, sizeof *segments, by_start);
  CUDACHECK(cudaMalloc((void **)&device, sizeof *device));
  CUDACHECK(cudaMemsetAsync(device, 0, sizeof *device, stream));

  /* the segments and, byte by byte, what lies between them */
  for (int i = 0; i <= nsegments; i++) {
    char *next = i < nsegments ? segments[i].start : end;
    char *past = i < nsegments ? next + segments[i].count * segments[i].size : end;
    if (i < nsegments && segments[i].count == 0) continue;
    if (next < at || past > end) { /* device counts may say anything */
      launcher_error("%s: the segment from rank %d begins at byte %td of the receive buffer, where "
                     "it does not fit; allowed: segments apart from each other, within it",
                     what, segments[i].source, next - window - PROGRAM_GUARD);
      CUDACHECK(cudaFree(device));
      return 1;
    }
    struct segment gap = {at, (size_t)(next - at), 1, ELEMENTS_GUARD, 0, 0};
    CUDACHECK(elements_compare(gap, device, stream));
    if (i < nsegments) CUDACHECK(elements_compare(segments[i], device, stream));
    at = past;
  }
  CUDACHECK(cudaMemcpyAsync(&errors, device, sizeof errors, cudaMemcpyDeviceToHost, stream));
  CUDACHECK(cudaStreamSynchronize(stream));
  CUDACHECK(cudaFree(device));
  if (errors.wrong == 0) return 0;
  if (errors.source == ELEMENTS_GUARD)
    launcher_error("%s: bytes outside the segments were written (%llu wrong)", what, errors.wrong);
  else
    launcher_error("%s: element %llu from rank %lld is wrong (%llu elements wrong)", what,
                   errors.first_plus_one - 1, errors.source, errors.wrong);
  return errors.wrong;
}

void program_print_digest(const struct rank *me, const char *recv, size_t count,
                          const struct datatype *type, cudaStream_t stream)
{
  struct verifier verifier;
  verifier_init(&verifier, me, type, stream);
  verifier_digest(&verifier, recv, count);
  verifier_print_digest(&verifier);
  verifier_free(&verifier);
}
