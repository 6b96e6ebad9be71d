/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences of direct AllReduces, each with data and places of its own, compared bit for bit with
 * the plain C sum. */
#ifndef CALLS_H
#define CALLS_H

#include "check.h"
#include "allreduce_internal.h"
#include "launcher.h"

enum { GUARD = 64, MAX_CALLS = 200 };

#define LIBRARYCHECK(call) CHECK_NCCL_RESULT(call, #call, allreduce_last_error())

/* What all cases share: a window for receive buffers, and memory of the same size for send buffers,
 * inputs and results. */
struct test {
  const struct rank *me;
  ncclComm_t comm;
  cudaStream_t stream;
  ncclWindow_t window;
  char *send, *recv, *inputs, *results; /* on the device */
  char *host;
  size_t bytes;
  int code;
};

/* One call: element `to` of the receive window; element `from` of the send memory, or later ones on
 * other ranks; in place on some ranks if from is IN_PLACE. Its input and its result, with GUARD
 * bytes on both sides, begin at `at`. */
#define IN_PLACE ((size_t)-1)
struct call {
  ncclDataType_t type;
  size_t size, count, from, to, at;
  unsigned seed;
};

/* From this seed on all lines of integers are such that bare lines need their escapes. */
enum { ESCAPES = 1000000 };

/* A sequence. */
struct calls {
  int n;
  size_t bytes; /* of inputs and results */
  struct call call[MAX_CALLS];
};

/* A number that all ranks have alike. */
unsigned long long hash(unsigned long long x);

/* Appends a call with count elements whose places are taken from the seed, to windows of `room`
 * bytes. */
void calls_add(size_t room, struct calls *c, ncclDataType_t type, size_t count, unsigned seed);

/* The input of a rank; and whether the result and the guards around it are right on n ranks. */
void call_fill(const struct call *k, int rank, char *to);
bool call_is_right(const struct call *k, int n, const char *got);

/* Fills the inputs of all calls, and the results with what is wrong everywhere. */
void calls_prepare(struct test *t, const struct calls *c);

/* Enqueues them: input to its place, guards, AllReduce, result away. `late`: microseconds that
 * ranks wait now and then before a call. */
void calls_enqueue(struct test *t, const struct calls *c, allreduce_t handle, unsigned late);

/* Waits, and returns an exit code: all results and guards right, no error. */
int calls_check(struct test *t, const struct calls *c, allreduce_t handle);

/* Prints `ok - what` or `not ok - what`, for all ranks together. */
void result(struct test *t, int code, const char *what);

/* So that vectors of a few kilobytes take all methods, and pushes several rounds. */
allreduce_config_t small_limits(const struct test *t);

/* A handle for the window; to destroy it when all are there. */
allreduce_t make_handle(struct test *t, const allreduce_config_t *config);
void destroy_handle(struct test *t, allreduce_t handle);

/* Waits for the calls; what they have found. */
ncclResult_t found_error(struct test *t, allreduce_t handle);

/* errors.c: what is refused, and ranks that are late, absent or disagree. */
void test_errors(struct test *t);

#endif
