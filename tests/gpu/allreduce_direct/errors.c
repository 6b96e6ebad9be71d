/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "calls.h"

/* What is refused before anything is enqueued, on one rank as on all. */
static void test_refusals(struct test *t)
{
  void *none;
  (void)cudaMalloc(&none, (size_t)1 << 50); /* fails, and no later call */
  allreduce_t handle = make_handle(t, NULL);
  (void)cudaGetLastError();
  float *send = (float *)(void *)t->send, *recv = (float *)(void *)t->recv;
  const size_t all = t->bytes / 4;
  const struct {
    const void *from;
    void *to;
    size_t count;
    ncclDataType_t type;
    const char *says;
  } cases[] = {
      {send, recv, 1, ncclNumTypes, "cannot be summed"},
      {send, recv, (size_t)-1, ncclFloat, "too many"},
      {NULL, recv, 1, ncclFloat, "the send buffer is NULL"},
      {send, t->results, 1, ncclFloat, "the receive buffer is in no window"},
      {send, recv + 1, all, ncclFloat, "the receive buffer is in no window"},
      {send, recv, all + 1, ncclFloat, "the receive buffer is in no window"},
      {t->send + 1, recv, 1, ncclFloat, "the send buffer is not aligned"},
      {send, t->recv + 2, 1, ncclFloat, "the receive buffer is not aligned"},
      {recv, recv + 1, 2, ncclFloat, "overlap"},
      {recv + 1, recv, 2, ncclFloat, "overlap"},
  };
  int code = EXIT_VERIFIED;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const ncclResult_t got =
        allreduce_run(handle, cases[i].from, cases[i].to, cases[i].count, cases[i].type, t->stream);
    if (got == ncclInvalidArgument && strstr(allreduce_last_error(), cases[i].says)) continue;
    launcher_error("case %zu: '%s'", i, allreduce_last_error());
    code = EXIT_WRONG_DATA;
  }
  int windows = 1;
  while (allreduce_add_window(handle, t->window, t->recv, t->bytes) == ncclSuccess) windows++;
  if (windows != ALLREDUCE_MAX_WINDOWS) code = EXIT_WRONG_DATA;
  while (allreduce_forget_window(handle, t->window) == ncclSuccess) windows--;
  if (windows != 0) code = EXIT_WRONG_DATA;
  if (allreduce_run(handle, send, recv, 1, ncclFloat, t->stream) != ncclInvalidArgument ||
      !strstr(allreduce_last_error(), "the receive buffer"))
    code = EXIT_WRONG_DATA;
  destroy_handle(t, handle);
  if (allreduce_create(NULL, NULL, &handle) != ncclInvalidArgument || handle != NULL)
    code = EXIT_WRONG_DATA;
  const allreduce_config_t wrong[] = {{.timeout_seconds = (double)NAN}, {.timeout_seconds = 1e300}};
  for (int i = 0; i < 2; i++)
    if (allreduce_create(t->comm, &wrong[i], &handle) != ncclInvalidArgument)
      code = EXIT_WRONG_DATA;
  result(t, code, "refusals");
}

/* Rank 0 calls for something else: all find out, and nothing is written that someone has not agreed
 * to; with bare lines, which compare at the end, nothing after a rank's own elements. Only with
 * lines the places of results may differ. */
struct disagreement {
  const char *what;
  size_t mine, theirs; /* counts of rank 0 and of the others */
  ncclDataType_t type; /* of rank 0 */
  size_t recv_at;
};

static void test_disagreement(struct test *t, const struct disagreement *d)
{
  allreduce_config_t config = small_limits(t);
  const bool odd = t->me->rank == 0;
  const size_t count = odd ? d->mine : d->theirs, least = d->mine < d->theirs ? d->mine : d->theirs;
  float *recv = (float *)(void *)t->recv + (odd ? d->recv_at : 0);
  float *send = (float *)(void *)t->send;
  config.timeout_seconds = 20;
  allreduce_t handle = make_handle(t, &config);
  const struct allreduce_launch own =
      allreduce_choose(count * sizeof(float), t->me->nranks, handle->limits);
  launcher_step(d->what);
  CUDACHECK(cudaMemset(t->recv, 0xa5, 1 << 20));
  launcher_barrier(t->me);
  LIBRARYCHECK(allreduce_run(handle, send, recv, count, odd ? d->type : ncclFloat, t->stream));
  int code = found_error(t, handle) == ncclInvalidArgument ? EXIT_VERIFIED : EXIT_WRONG_DATA;
  launcher_barrier(t->me);
  CUDACHECK(cudaMemcpy(t->host, t->recv, 1 << 20, cudaMemcpyDeviceToHost));
  const bool bare = own.method == ALLREDUCE_ONEHOP || own.method == ALLREDUCE_TWOHOP;
  for (size_t i = (bare ? count : least) * 4; i < (1 << 20); i++)
    if ((unsigned char)t->host[i] != 0xa5) code = EXIT_WRONG_DATA;
  destroy_handle(t, handle);
  result(t, code, d->what);
}

/* The last rank makes its three calls when the others have given up theirs and have filled their
 * receive buffers anew. It writes into those of the call that has failed, at most; and has an error
 * as well, if not in the first call: then the sum of that is right. */
static void test_late(struct test *t, size_t count, const char *what)
{
  allreduce_config_t config = small_limits(t);
  const bool late = t->me->rank == t->me->nranks - 1;
  const size_t bytes = count * sizeof(float);
  config.timeout_seconds = 0.3;
  allreduce_t handle = make_handle(t, &config);
  char says[64];
  float *sums = (float *)(void *)t->host, one, want = 0;
  memset(&one, 0x3f, sizeof one);
  for (int p = 0; p < t->me->nranks; p++) want += one;
  CUDACHECK(cudaMemset(t->send, 0x3f, bytes));
  launcher_step(what);
  if (late) launcher_barrier(t->me);
  bool right = true;
  for (size_t i = 0; i < 3; i++) {
    LIBRARYCHECK(allreduce_run(handle, t->send, t->recv + i * bytes, count, ncclFloat, t->stream));
    if (!late || i > 0 || found_error(t, handle) != ncclSuccess) continue;
    CUDACHECK(cudaMemcpy(sums, t->recv, bytes, cudaMemcpyDeviceToHost));
    for (size_t k = 0; k < count; k++) right &= sums[k] == want;
  }
  int code = right && found_error(t, handle) == ncclRemoteError ? EXIT_VERIFIED : EXIT_WRONG_DATA;
  snprintf(says, sizeof says, "timed out waiting for rank %d", t->me->nranks - 1);
  if (!late && !strstr(allreduce_last_error(), says)) code = EXIT_WRONG_DATA;
  if (!late) {
    CUDACHECK(cudaMemset(t->recv, 0x5a, 3 * bytes));
    CUDACHECK(cudaDeviceSynchronize());
    launcher_barrier(t->me);
  }
  launcher_barrier(t->me); /* the late one has ended, too */
  CUDACHECK(cudaMemcpy(t->host, t->recv, 3 * bytes, cudaMemcpyDeviceToHost));
  for (size_t i = bytes; i < 3 * bytes && !late; i++)
    if (t->host[i] != 0x5a) code = EXIT_WRONG_DATA;
  destroy_handle(t, handle);
  result(t, code, what);
}

void test_errors(struct test *t)
{
  static const struct disagreement rows[] = {
      {"counts differ, LL lines", 10, 11, ncclFloat, 0},
      {"counts differ, one hop", 110, 111, ncclFloat, 0},
      {"counts differ, two hops", 500, 501, ncclFloat, 0},
      {"counts differ, pushes", 9000, 9001, ncclFloat, 0},
      {"counts differ, LL lines and pushes", 9000, 10, ncclFloat, 0},
      {"counts differ, LL lines and one hop", 10, 110, ncclFloat, 0},
      {"types differ", 9000, 9000, ncclInt32, 0},
      {"receive offsets differ", 9000, 9000, ncclFloat, 128},
  };
  test_refusals(t);
  if (t->me->nranks == 1) return;
  test_late(t, 10, "a late rank, LL lines");
  test_late(t, 110, "a late rank, one hop");
  test_late(t, 500, "a late rank, two hops");
  test_late(t, 9000, "a late rank, pushes");
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) test_disagreement(t, &rows[i]);
}
