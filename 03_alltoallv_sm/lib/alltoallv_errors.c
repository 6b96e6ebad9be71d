/* SPDX-License-Identifier: Apache-2.0 */
/* The sentence of the last error, and what the device has found. */
#include "alltoallv_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_error[ALLTOALLV_SENTENCE];

const char *alltoallv_last_error(void)
{
  return last_error;
}

ncclResult_t alltoallv_fail(ncclResult_t result, const char *format, ...)
{
  char sentence[sizeof(last_error)];
  va_list args;
  va_start(args, format);
  vsnprintf(sentence, sizeof(sentence), format, args);
  va_end(args);
  for (char *c = sentence; *c != '\0'; c++) /* one line, whatever NCCL has written */
    if (*c == '\n') *c = ' ';
  memcpy(last_error, sentence, sizeof(last_error));
  return result;
}

const char *alltoallv_nccl_reason(ncclResult_t result)
{
  const char *said = ncclGetLastError(NULL);
  return said != NULL && *said != '\0' ? said : ncclGetErrorString(result);
}

ncclResult_t alltoallv_describe(const struct alltoallv_error *e, int base, int *source,
                                int *destination)
{
  *source = e->source < 0 ? -1 : e->source + base;
  *destination = e->destination < 0 ? -1 : e->destination + base;
  /* In what this rank counts in. The other one may count in something else: then in bytes. */
  const uint32_t unit = e->unit.bytes;
  const bool whole = unit > 0 && e->sent % unit == 0 && e->expected % unit == 0;
  const unsigned long long sent = whole ? e->sent / unit : e->sent;
  const unsigned long long expected = whole ? e->expected / unit : e->expected;
  const char *what = whole ? alltoallv_unit_name(e->unit) : "bytes";
  switch (e->kind) {
  case ALLTOALLV_ERROR_MISMATCH:
    return alltoallv_fail(ncclInvalidArgument,
                          "rank %d sends %llu %s to rank %d, which expects %llu", *source, sent,
                          what, *destination, expected);
  case ALLTOALLV_ERROR_KIND:
    return alltoallv_fail(ncclInvalidUsage, "ranks %d and %d made different calls", *source,
                          *destination);
  case ALLTOALLV_ERROR_CAPACITY:
    if (*source < 0)
      return alltoallv_fail(ncclInvalidArgument, "rank %d would receive %llu %s, %llu fit",
                            *destination, sent, what, expected);
    return alltoallv_fail(ncclInvalidArgument, "rank %d sends %llu %s to rank %d, where %llu fit",
                          *source, sent, what, *destination, expected);
  default:
    return alltoallv_fail(ncclRemoteError, "rank %d waited in vain for rank %d", *destination,
                          *source);
  }
}

/* The device writes the rest of a record before its kind. */
bool alltoallv_has_error(const struct alltoallv_error *e)
{
  return __atomic_load_n(&e->kind, __ATOMIC_ACQUIRE) != ALLTOALLV_ERROR_NONE;
}

bool alltoallv_has_timed_out(const struct alltoallv_handle *h)
{
  return h->lsa != NULL && alltoallv_has_error(&alltoallv_lsa_errors(h->lsa)->timeout);
}

ncclResult_t alltoallv_get_async_error(alltoallv_t handle, ncclResult_t *result, int *source,
                                       int *destination)
{
  if (handle == NULL) return alltoallv_fail(ncclInvalidArgument, "NULL handle");
  ncclResult_t found = ncclSuccess;
  int from = -1, to = -1;
  struct alltoallv_errors *errors = handle->lsa != NULL ? alltoallv_lsa_errors(handle->lsa) : NULL;
  if (errors != NULL && alltoallv_has_error(&errors->timeout)) { /* stays */
    found = alltoallv_describe(&errors->timeout, handle->lsa_first, &from, &to);
  } else if (errors != NULL && alltoallv_has_error(&errors->counts)) {
    found = alltoallv_describe(&errors->counts, handle->lsa_first, &from, &to);
    __atomic_store_n(&errors->counts.kind, ALLTOALLV_ERROR_NONE, __ATOMIC_RELEASE);
  } else if (alltoallv_has_error(&handle->counts_error)) {
    found = alltoallv_describe(&handle->counts_error, 0, &from, &to);
    handle->counts_error.kind = ALLTOALLV_ERROR_NONE;
  }
  if (result != NULL) *result = found;
  if (source != NULL) *source = from;
  if (destination != NULL) *destination = to;
  return ncclSuccess;
}
