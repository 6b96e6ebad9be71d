/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "calls.h"

/* What is refused before anything is enqueued, on one rank as on all. */
static void test_refusals(struct test *t)
{
  allreduce_t handle = make_handle(t, NULL);
  float *send = (float *)(void *)t->send, *recv = (float *)(void *)t->recv;
  const size_t all = t->bytes / 4;
  const struct {
    const void *from;
    void *to;
    size_t count;
    ncclDataType_t type;
    const char *says;
  } cases[] = {
      {send, recv, 1, ncclNumTypes, "no sums of type"},
      {send, recv, (size_t)-1, ncclFloat, "too many"},
      {t->inputs, recv, 1, ncclFloat, "the send buffer is in no window"},
      {send, t->results, 1, ncclFloat, "the receive buffer is in no window"},
      {send + 1, recv, all, ncclFloat, "the send buffer is in no window"},
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
  LIBRARYCHECK(allreduce_forget_window(handle, t->windows[0]));
  if (allreduce_run(handle, send, recv, 1, ncclFloat, t->stream) != ncclInvalidArgument)
    code = EXIT_WRONG_DATA;
  LIBRARYCHECK(allreduce_destroy(handle));
  result(t, code, "refusals");
}

/* Rank 0 calls with other counts (0: not at all, `type`s may differ too): the others find out. A
 * receive buffer that someone has not agreed to is not written. */
static void test_disagreement(struct test *t, size_t mine, size_t theirs, ncclDataType_t type,
                              ncclResult_t wanted, const char *what)
{
  const long others = t->me->nranks - 1;
  const allreduce_config_t config = {.timeout_seconds = wanted == ncclRemoteError ? 0.5 : 20,
                                     .ll_bytes = 700 * others,
                                     .ll128_bytes = 3000 * others};
  const bool odd = t->me->rank == 0;
  allreduce_t handle = make_handle(t, &config);
  ncclResult_t found = ncclSuccess;
  int code = EXIT_VERIFIED;
  launcher_step(what);
  CUDACHECK(cudaMemset(t->recv, 0xa5, 1 << 20));
  launcher_barrier(t->me);
  LIBRARYCHECK(allreduce_run(handle, t->send, t->recv, odd ? mine : theirs, odd ? type : ncclFloat,
                             t->stream));
  CUDACHECK(cudaStreamSynchronize(t->stream));
  LIBRARYCHECK(allreduce_get_async_error(handle, &found));
  if (odd && mine == 0) wanted = ncclSuccess;
  if (found != wanted) {
    launcher_error("%s: %s, '%s'", what, ncclGetErrorString(found), allreduce_last_error());
    code = EXIT_WRONG_DATA;
  }
  if (!odd && wanted == ncclRemoteError && !strstr(allreduce_last_error(), "in vain for rank 0"))
    code = EXIT_WRONG_DATA;
  launcher_barrier(t->me);
  CUDACHECK(cudaMemcpy(t->host, t->recv, 1 << 20, cudaMemcpyDeviceToHost));
  const size_t least = mine < theirs ? mine : theirs;
  for (size_t i = least * 4; i < (1 << 20); i++)
    if ((unsigned char)t->host[i] != 0xa5) code = EXIT_WRONG_DATA;
  launcher_barrier(t->me);
  LIBRARYCHECK(allreduce_destroy(handle));
  result(t, code, what);
}

/* Rank 0 has its vectors elsewhere in the windows, or in place: two-shot would read and write at
 * places that are not those of the others. */
static void test_places(struct test *t)
{
  static const size_t count = 5000, rows[][3] = {{64, 0, 0}, {0, 128, 0}, {0, 0, 1}};
  static const char *const names[] = {"send offsets differ", "receive offsets differ",
                                      "in place on one rank"};
  for (int i = 0; i < 3; i++) {
    const size_t odd = t->me->rank == 0;
    const allreduce_config_t config = {.timeout_seconds = 20, .ll_bytes = -1, .ll128_bytes = -1};
    allreduce_t handle = make_handle(t, &config);
    ncclResult_t found = ncclSuccess;
    float *recv = (float *)(void *)t->recv + odd * rows[i][1];
    float *send = odd && rows[i][2] ? recv : (float *)(void *)t->send + odd * rows[i][0];
    launcher_step(names[i]);
    LIBRARYCHECK(allreduce_run(handle, send, recv, count, ncclFloat, t->stream));
    CUDACHECK(cudaStreamSynchronize(t->stream));
    LIBRARYCHECK(allreduce_get_async_error(handle, &found));
    result(t, found == ncclInvalidArgument ? EXIT_VERIFIED : EXIT_WRONG_DATA, names[i]);
    launcher_barrier(t->me);
    LIBRARYCHECK(allreduce_destroy(handle));
  }
}

/* The last rank makes its three calls when the others have given up theirs and have filled their
 * receive buffers anew. It writes into those of the call that has failed, at most; and has an error
 * as well. */
static void test_late(struct test *t, size_t count, const char *what)
{
  const long others = t->me->nranks - 1;
  const allreduce_config_t config = {
      .timeout_seconds = 0.3, .ll_bytes = 700 * others, .ll128_bytes = 3000 * others};
  const bool late = t->me->rank == t->me->nranks - 1;
  const size_t bytes = count * sizeof(float);
  allreduce_t handle = make_handle(t, &config);
  ncclResult_t found = ncclSuccess;
  int code = EXIT_VERIFIED;
  launcher_step(what);
  if (late) launcher_barrier(t->me);
  for (size_t i = 0; i < 3; i++)
    LIBRARYCHECK(allreduce_run(handle, t->send, t->recv + i * bytes, count, ncclFloat, t->stream));
  CUDACHECK(cudaStreamSynchronize(t->stream));
  LIBRARYCHECK(allreduce_get_async_error(handle, &found));
  if (found != ncclRemoteError) code = EXIT_WRONG_DATA;
  if (!late) {
    CUDACHECK(cudaMemset(t->recv, 0x5a, 3 * bytes));
    CUDACHECK(cudaDeviceSynchronize());
    launcher_barrier(t->me);
  }
  launcher_barrier(t->me); /* the late one has ended, too */
  CUDACHECK(cudaMemcpy(t->host, t->recv, 3 * bytes, cudaMemcpyDeviceToHost));
  for (size_t i = bytes; i < 3 * bytes && !late; i++)
    if (t->host[i] != 0x5a) code = EXIT_WRONG_DATA;
  LIBRARYCHECK(allreduce_destroy(handle));
  result(t, code, what);
}

void test_errors(struct test *t)
{
  test_refusals(t);
  if (t->me->nranks == 1) return;
  test_places(t);
  test_late(t, 10, "a late rank, lines");
  test_late(t, 500, "a late rank, LL128 lines");
  test_late(t, 5000, "a late rank, two-shot");
  test_disagreement(t, 0, 10, ncclFloat, ncclRemoteError, "an absent rank, lines");
  test_disagreement(t, 0, 500, ncclFloat, ncclRemoteError, "an absent rank, LL128 lines");
  test_disagreement(t, 0, 5000, ncclFloat, ncclRemoteError, "an absent rank, two-shot");
  test_disagreement(t, 10, 11, ncclFloat, ncclInvalidArgument, "counts differ, lines");
  test_disagreement(t, 500, 501, ncclFloat, ncclInvalidArgument, "counts differ, LL128 lines");
  test_disagreement(t, 5000, 5001, ncclFloat, ncclInvalidArgument, "counts differ, two-shot");
  test_disagreement(t, 5000, 10, ncclFloat, ncclInvalidArgument, "counts differ, two methods");
  test_disagreement(t, 10, 500, ncclFloat, ncclInvalidArgument,
                    "counts differ, two kinds of lines");
  test_disagreement(t, 5000, 5000, ncclInt32, ncclInvalidArgument, "types differ");
}
