/* SPDX-License-Identifier: Apache-2.0 */
#include "alltoallv_program.h"

#include <stdio.h>
#include <string.h>

#include "patterns.h"

/* ---- options --------------------------------------------------------------------------------- */

struct program_options program_options;

#define METHODS "auto|sendrecv|barrier|lines|copy-engine|lsa|lib-sendrecv|device-counts"
const struct option_spec harness_options[] = {
    {"pattern", 0, OPTION_STRING, &program_options.pattern, "NAME",
     "who sends how much to whom (halving):" PATTERN_NAMES, 0, 0},
    {"method", 0, OPTION_CHOICE, &program_options.method, METHODS,
     "how to move the bytes (auto): auto, lsa and lib-sendrecv are the library, and device-counts "
     "with counts that only the device knows; the others are in simple/",
     0, 0},
    {0},
};

/* ---- one exchange ---------------------------------------------------------------------------- */

void program_layout(struct exchange *x)
{
  size_t largest = 0, sends = 0;
  x->receives = 0;
  for (int p = 0; p < x->me->nranks; p++) {
    x->sdispls[p] = sends;
    x->rdispls[p] = x->receives;
    sends += x->sendcounts[p];
    x->receives += x->recvcounts[p];
    if (x->sendcounts[p] > largest) largest = x->sendcounts[p];
  }
  /* who tells p where p's part belongs hears where its own part belongs at p */
  ALLTOALLVCHECK(alltoallv_counts(x->handle, x->rdispls, x->places));
  x->largest = (size_t)launcher_max(x->me, (double)largest);
}

void program_allocate(struct exchange *x)
{
  x->guarded_bytes = x->bytes + 2 * PROGRAM_GUARD;
  NCCLCHECK(ncclMemAlloc((void **)&x->send, x->bytes));
  NCCLCHECK(ncclMemAlloc((void **)&x->guarded, x->guarded_bytes));
  CUDACHECK(cudaMalloc((void **)&x->device_counts, 3 * (size_t)x->me->nranks * sizeof(size_t)));
  CUDACHECK(cudaMalloc((void **)&x->words, (size_t)x->me->nranks * sizeof *x->words));
}

void program_free(struct exchange *x)
{
  NCCLCHECK(ncclMemFree(x->guarded));
  NCCLCHECK(ncclMemFree(x->send));
  CUDACHECK(cudaFree(x->device_counts));
  CUDACHECK(cudaFree(x->words));
}

/* ---- methods --------------------------------------------------------------------------------- */

void program_init(struct exchange *x)
{
  const alltoallv_config_t config = {.method = methods[program_options.method].handle};
  const ncclResult_t result = alltoallv_create(x->comm, &config, &x->handle);
  if (result == ncclInvalidUsage) { /* on all ranks */
    if (x->me->rank == 0)
      fprintf(stderr, "alltoallv_sm: --method: %s; allowed: auto, sendrecv, lib-sendrecv\n",
              alltoallv_last_error());
    launcher_barrier(x->me);
    launcher_abort(EXIT_CANNOT_RUN);
  }
  CHECK_NCCL_RESULT(result, "alltoallv_create", alltoallv_last_error());
  ALLTOALLVCHECK(alltoallv_register(x->handle, x->guarded, x->guarded_bytes));
}

static void library_call(const struct exchange *x, const char *send, char *recv,
                         cudaStream_t stream)
{
  ALLTOALLVCHECK(alltoallv(x->handle, send, x->sendcounts, x->sdispls, recv, x->recvcounts,
                           x->rdispls, x->type->size, stream));
}

static void device_counts_call(const struct exchange *x, const char *send, char *recv,
                               cudaStream_t stream)
{
  const int n = x->me->nranks;
  size_t *all = x->device_counts;
  const alltoallv_counts_t counts = {
      .sendcounts = all, .recvcounts = all + n, .rdispls = all + 2 * n, .room = x->receives};
  const alltoallv_buffers_t buffers = {send, recv, x->type->size};
  ALLTOALLVCHECK(alltoallv_device_counts(x->handle, &counts, &buffers, 1, stream));
}

/* Methods of simple/ need a handle for the exchange of counts only. */
const struct method methods[] = {
    [METHOD_AUTO] = {"alltoallv", library_call, true, false, ALLTOALLV_AUTO},
    [METHOD_SENDRECV] = {"send/recv", sendrecv_call, false, false, ALLTOALLV_SENDRECV},
    [METHOD_BARRIER] = {"barrier", barrier_call, false, true, ALLTOALLV_LSA},
    [METHOD_LINES] = {"lines", lines_call, false, true, ALLTOALLV_LSA},
    [METHOD_COPY_ENGINE] = {"copy engine", copy_engine_call, false, false, ALLTOALLV_LSA},
    [METHOD_LSA] = {"alltoallv", library_call, true, false, ALLTOALLV_LSA},
    [METHOD_LIB_SENDRECV] = {"alltoallv", library_call, true, false, ALLTOALLV_SENDRECV},
    [METHOD_DEVICE_COUNTS] = {"device counts", device_counts_call, true, false, ALLTOALLV_LSA},
    [METHOD_BARE_PUSH] = {"bare push", bare_push_call, false, true, ALLTOALLV_LSA},
};

/* ---- data ------------------------------------------------------------------------------------ */

void program_guard(const struct exchange *x, char *guarded, cudaStream_t stream)
{
  CUDACHECK(cudaMemsetAsync(guarded, ELEMENTS_GUARD_BYTE, x->guarded_bytes, stream));
}

void program_prepare(const struct exchange *x, char *send, char *recv, uint32_t round,
                     struct segment *expected, cudaStream_t stream)
{
  const size_t size = x->type->size;
  const int me = x->me->rank;
  for (int p = 0; p < x->me->nranks; p++) {
    char *from = send + x->sdispls[p] * size, *to = recv + x->rdispls[p] * size;
    struct segment input = {from, x->sendcounts[p], size, me, p, round};
    expected[p] = (struct segment){to, x->recvcounts[p], size, p, me, round};
    CUDACHECK(elements_launch(input, NULL, stream));
  }
}

unsigned long long program_verify(const char *what, const struct segment *segments, int nsegments,
                                  const struct exchange *x, char *guarded, cudaStream_t stream)
{
  const struct segment all = {guarded, x->guarded_bytes, 1, ELEMENTS_GUARD, 0, 0};
  struct element_errors errors, *device;
  /* An allocation, or a kernel's first launch, may wait for a device; and with all ranks in one
   * process the exchange there may wait for this thread. So it has to be over. */
  CUDACHECK(cudaStreamSynchronize(stream));
  CUDACHECK(cudaMalloc((void **)&device, sizeof *device));
  CUDACHECK(cudaMemsetAsync(device, 0, sizeof *device, stream));
  for (int i = 0; i < nsegments; i++) {
    CUDACHECK(elements_launch(segments[i], device, stream));
    CUDACHECK(cudaMemsetAsync(segments[i].start, ELEMENTS_GUARD_BYTE,
                              segments[i].count * segments[i].size, stream));
  }
  CUDACHECK(elements_launch(all, device, stream)); /* all that is left are guard bytes */
  CUDACHECK(cudaMemcpyAsync(&errors, device, sizeof errors, cudaMemcpyDeviceToHost, stream));
  CUDACHECK(cudaStreamSynchronize(stream));
  CUDACHECK(cudaFree(device));
  if (errors.wrong == 0) return 0;
  if (errors.source == ELEMENTS_GUARD)
    launcher_error("%s: bytes beside the parts are wrong (%llu)", what, errors.wrong);
  else
    launcher_error("%s: element %llu from rank %lld is wrong (%llu elements wrong)", what,
                   errors.first_plus_one - 1, errors.source, errors.wrong);
  return errors.wrong;
}
