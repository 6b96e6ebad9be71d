/* SPDX-License-Identifier: Apache-2.0 */
#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "patterns.h"
#include "verify.h"

/* ---- options --------------------------------------------------------------------------------- */

struct program_options program_options = {.seed = 1};

/* Device memory that the handle takes, at most, beside that for each rank. */
enum { HANDLE_BYTES = 4 << 20, HANDLE_BYTES_PER_RANK = 2 << 20 };

const struct option_spec program_option_table[] = {
    {"pattern", 0, OPTION_STRING, &program_options.pattern, "NAME",
     "who sends how much to whom (halving):" PATTERN_NAMES, 0, 0},
    {"matrix", 0, OPTION_INPUT, &program_options.matrix_file, "FILE",
     "the same from a square matrix of bytes, row = source, column = destination", 0, 0},
    {"method", 0, OPTION_CHOICE, &program_options.method,
     "auto|sendrecv|barrier|lsa|copy-engine|lib-sendrecv",
     "who moves the bytes (auto): sendrecv and barrier are those of simple/, the others "
     "alltoallv.h's",
     0, 0},
    {"device-counts", 0, OPTION_FLAG, &program_options.device_counts, NULL,
     "the send counts are known to the device only", 0, 0},
    {"seed", 0, OPTION_LONG, &program_options.seed, "N", "for the patterns random and moe (1)", 0,
     1LL << 40},
    {0},
};

/* The text of --matrix on all ranks, to be freed; NULL on all of them after one line. Rank 0 reads
 * it, for a pipe can be read once only, and hosts may have different files of that name. */
static char *matrix_text(const struct rank *me, const struct options *opt)
{
  char error[LAUNCHER_TEXT] = "", *text = NULL;
  if (me->rank == 0)
    text = pattern_read_file(program_options.matrix_file, opt->timeout, error, sizeof error);
  if (launcher_refuse(me, error) != EXIT_VERIFIED) return NULL;
  size_t bytes = text ? strlen(text) + 1 : 0;
  launcher_broadcast(me, &bytes, sizeof bytes, 0);
  if (me->rank != 0) text = malloc(bytes);
  if (!text) launcher_fail(__FILE__, __LINE__, "malloc", "out of memory", NULL);
  launcher_broadcast(me, text, bytes, 0);
  return text;
}

size_t *program_matrix(const struct rank *me, const struct options *opt, const char *pattern,
                       size_t total)
{
  const size_t n = (size_t)me->nranks;
  const struct program_options *own = &program_options;
  char error[LAUNCHER_TEXT] = "", *text = NULL;
  if (own->matrix_file && own->pattern)
    snprintf(error, sizeof error, "--matrix and --pattern together; allowed: one of them");
  else if (own->matrix_file && opt->count)
    snprintf(error, sizeof error, "--matrix and --count together; allowed: one of them");
  else if (own->matrix_file && opt->sizes)
    snprintf(
        error, sizeof error,
        "--matrix: the file sets the size, so -b, -e and -f are not for it; allowed: it alone");
  else if (own->device_counts && opt->bench)
    snprintf(error, sizeof error,
             "--device-counts is not for --bench, which measures both ways; "
             "allowed: one of them");
  else if (own->device_counts && !program_takes_library())
    snprintf(error, sizeof error,
             "--device-counts needs a method of alltoallv.h; allowed: auto, lsa, copy-engine, "
             "lib-sendrecv");
  else if (opt->bench && !program_takes_library())
    snprintf(error, sizeof error,
             "--method is for alltoallv.h in --bench, which measures sendrecv and barrier anyway; "
             "allowed: auto, lsa, copy-engine, lib-sendrecv");
  if (launcher_refuse(me, error) != EXIT_VERIFIED) return NULL;
  if (own->matrix_file && !(text = matrix_text(me, opt))) return NULL;

  size_t *matrix = calloc(n * n, sizeof *matrix);
  if (!matrix) launcher_fail(__FILE__, __LINE__, "calloc", "out of memory", NULL);
  if (text)
    pattern_parse(own->matrix_file, text, me->nranks, opt->type->size, matrix, error, sizeof error);
  else
    pattern_matrix(pattern, me->nranks, total, opt->type->size, (unsigned long long)own->seed,
                   matrix, error, sizeof error);
  free(text);
  if (launcher_refuse(me, error) == EXIT_VERIFIED) return matrix;
  free(matrix);
  return NULL;
}

/* ---- buffers --------------------------------------------------------------------------------- */

struct program_buffers program_sizes(const size_t *matrix, int nranks, size_t element_size)
{
  struct program_buffers buffers = {0};
  for (int rank = 0; rank < nranks; rank++) {
    size_t send = matrix_sends(matrix, nranks, rank) * element_size;
    size_t recv = matrix_receives(matrix, nranks, rank) * element_size;
    if (send > buffers.send_bytes) buffers.send_bytes = send;
    if (recv > buffers.recv_bytes) buffers.recv_bytes = recv;
  }
  buffers.window_bytes = buffers.recv_bytes + 2 * PROGRAM_GUARD;
  return buffers;
}

size_t program_bytes(struct program_buffers buffers, int nranks)
{
  return buffers.send_bytes + buffers.window_bytes + HANDLE_BYTES +
         (size_t)nranks * HANDLE_BYTES_PER_RANK;
}

void program_cannot_run(const struct rank *me, const char *why)
{
  if (me->rank == 0) fprintf(stderr, "alltoallv_sm: --method: %s; allowed: auto, sendrecv\n", why);
  launcher_barrier(me);
  launcher_abort(EXIT_CANNOT_RUN);
}

bool program_takes_library(void)
{
  return program_options.method != METHOD_SENDRECV && program_options.method != METHOD_BARRIER;
}

void program_init(const struct rank *me, ncclComm_t comm, alltoallv_t *handle)
{
  alltoallv_config_t config = ALLTOALLV_CONFIG_INITIALIZER;
  static const alltoallv_method_t methods[] = {
      [METHOD_AUTO] = ALLTOALLV_AUTO,
      [METHOD_LSA] = ALLTOALLV_LSA,
      [METHOD_COPY_ENGINE] = ALLTOALLV_COPY_ENGINE,
      [METHOD_LIB_SENDRECV] = ALLTOALLV_SENDRECV,
  };
  config.method = methods[program_options.method];
  ncclResult_t result = alltoallv_init(comm, &config, handle);
  if (result == ncclInvalidUsage) /* on all ranks */
    program_cannot_run(me, alltoallv_last_error());
  CHECK_NCCL_RESULT(result, "alltoallv_init(comm, &config, handle)", alltoallv_last_error());
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

void program_check_async(alltoallv_t handle)
{
  ncclResult_t result;
  ALLTOALLVCHECK(alltoallv_get_async_error(handle, &result, NULL, NULL));
  if (result == ncclSuccess) return;
  launcher_error("alltoallv: %s: %s", ncclGetErrorString(result), alltoallv_last_error());
  launcher_abort(EXIT_FAILED_CALL);
}

void program_guard(const struct program_buffers *buffers, cudaStream_t stream)
{
  CUDACHECK(cudaMemsetAsync(buffers->window, ELEMENTS_GUARD_BYTE, buffers->window_bytes, stream));
}

void program_fill(const struct rank *me, char *sendbuff, const size_t *sendcounts,
                  const size_t *sdispls, size_t element_size, uint32_t round, cudaStream_t stream)
{
  for (int to = 0; to < me->nranks; to++)
    CUDACHECK(elements_fill((struct segment){sendbuff + sdispls[to] * element_size, sendcounts[to],
                                             element_size, me->rank, to, round},
                            stream));
}

void program_expect(const struct rank *me, char *recvbuff, const size_t *recvcounts,
                    const size_t *rdispls, size_t element_size, uint32_t round,
                    struct segment *segments)
{
  for (int from = 0; from < me->nranks; from++)
    segments[from] = (struct segment){recvbuff + rdispls[from] * element_size,
                                      recvcounts[from],
                                      element_size,
                                      from,
                                      me->rank,
                                      round};
}

static int by_start(const void *a, const void *b)
{
  const struct segment *x = a, *y = b;
  if (x->start != y->start) return x->start < y->start ? -1 : 1;
  return (x->count > y->count) - (x->count < y->count); /* empty ones first */
}

/* Sorted segments have to lie one after the other in the window, or nothing can be expected. */
static bool are_apart(const char *what, const struct segment *segments, int nsegments,
                      const struct program_buffers *buffers)
{
  const char *at = buffers->window, *end = at + buffers->window_bytes;
  for (int i = 0; i < nsegments; i++) {
    const struct segment *s = &segments[i];
    const char *start = s->start, *past = start + s->count * s->size;
    if (s->count == 0) continue;
    if (start < at || past > end) {
      launcher_error("%s: the segment from rank %d begins at byte %td of the receive buffer, %s; "
                     "allowed: rdispls that keep segments apart and within it",
                     what, s->source, start - buffers->window - PROGRAM_GUARD,
                     past > end ? "where it does not fit" : "inside of another one");
      return false;
    }
    at = past;
  }
  return true;
}

unsigned long long program_verify(const char *what, struct segment *segments, int nsegments,
                                  const struct program_buffers *buffers, cudaStream_t stream)
{
  struct element_errors errors, *device;
  /* An allocation, or a kernel's first launch, may wait for a device; and with all ranks in one
   * process the exchange there may wait for this thread. So it has to be over. */
  CUDACHECK(cudaStreamSynchronize(stream));
  qsort(segments, (size_t)nsegments, sizeof *segments, by_start);
  if (!are_apart(what, segments, nsegments, buffers)) return 1;
  CUDACHECK(cudaMalloc((void **)&device, sizeof *device));
  CUDACHECK(cudaMemsetAsync(device, 0, sizeof *device, stream));

  /* the segments and, byte by byte, what lies between them */
  char *at = buffers->window, *end = buffers->window + buffers->window_bytes;
  for (int i = 0; i <= nsegments; i++) {
    if (i < nsegments && segments[i].count == 0) continue;
    char *next = i < nsegments ? segments[i].start : end;
    struct segment gap = {at, (size_t)(next - at), 1, ELEMENTS_GUARD, 0, 0};
    CUDACHECK(elements_compare(gap, device, stream));
    if (i == nsegments) break;
    CUDACHECK(elements_compare(segments[i], device, stream));
    at = next + segments[i].count * segments[i].size;
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

void program_print_digest(const struct rank *me, const char *recvbuff, size_t count,
                          const struct datatype *type, cudaStream_t stream)
{
  struct verifier verifier;
  verifier_init(&verifier, me, type, stream);
  verifier_digest(&verifier, recvbuff, count);
  verifier_print_digest(&verifier);
  verifier_free(&verifier);
}
