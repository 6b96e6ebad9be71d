/* SPDX-License-Identifier: Apache-2.0 */
/* The AlltoAllV on any number of ranks, in one process per (launcher, number of ranks). Exchanges
 * are drawn at random, each from a seed of its own. What cannot be drawn, misuse above all, comes
 * after that. Prints one line `ok - ...` or `not ok - ...` per case. Data and comparison are
 * those of the example: an element says where it comes from, and everything outside the segments is
 * guarded. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/alltoallv_internal.h"
#include "alltoallv_program.h"

#ifdef CPU_STANDIN /* the same cases, fewer and smaller */
enum { REPLAYS = 10, LL_LIMIT = 6 * ALLTOALLV_GROUP_BYTES, BUFFER = 512 << 10 };
#else
enum { REPLAYS = 300, LL_LIMIT = 84 * ALLTOALLV_GROUP_BYTES, BUFFER = 8 << 20 };
#endif
enum { MAX_RANKS = 64 };

cudaError_t copy_at_once(char *to, const char *from, size_t bytes, cudaStream_t stream);

static long cases = 250; /* --cases: drawn exchanges */
static long first_seed = 1;
static int method; /* --method */

struct test {
  const struct rank *me;
  ncclComm_t comm;
  cudaStream_t stream;
  alltoallv_t handle;
  struct exchange x; /* buffers; counts in numbers of x.type */
  size_t *device;    /* 5 arrays of counts */
  char *seen;        /* BUFFER bytes */
  uint64_t random;   /* the same on all ranks */
  bool kernel;       /* not send/recv */
  int code;
};

static void result(struct test *t, bool good, const char *what)
{
  int code = launcher_agree(t->me, good ? EXIT_VERIFIED : EXIT_WRONG_DATA);
  launcher_print(t->me, "%s - %s\n", code == EXIT_VERIFIED ? "ok" : "not ok", what);
  if (code != EXIT_VERIFIED) t->code = code;
}

/* Does the last error begin so? The number of the exchange may follow. */
static bool says(const char *format, ...)
{
  char sentence[256];
  va_list args;
  va_start(args, format);
  vsnprintf(sentence, sizeof sentence, format, args);
  va_end(args);
  const bool good = strncmp(alltoallv_last_error(), sentence, strlen(sentence)) == 0;
  if (!good) launcher_error("said '%s', not '%s'", alltoallv_last_error(), sentence);
  return good;
}

static size_t below(struct test *t, size_t bound)
{
  return hash_next(&t->random) % bound;
}

static ncclResult_t async_error(struct test *t)
{
  ncclResult_t async;
  CUDACHECK(cudaStreamSynchronize(t->stream));
  ALLTOALLVCHECK(alltoallv_get_async_error(t->handle, &async, NULL, NULL));
  return async;
}

static void open_handle(struct test *t, double timeout)
{
  const alltoallv_config_t config = {.method = (alltoallv_method_t)method,
                                     .timeout_seconds = timeout,
                                     .no_early_launch = timeout < 0};
  int reach;
  t->x = (struct exchange){.me = t->me, .type = datatype_find("int8"), .comm = t->comm};
  t->x.bytes = BUFFER;
  program_allocate(&t->x);
  ALLTOALLVCHECK(alltoallv_create(t->comm, &config, &t->handle));
  if (LL_LIMIT < t->handle->ll_bytes) t->handle->ll_bytes = LL_LIMIT; /* on all ranks */
  t->x.handle = t->handle;
  ALLTOALLVCHECK(alltoallv_register(t->handle, t->x.guarded, t->x.guarded_bytes));
  ALLTOALLVCHECK(alltoallv_info(t->handle, &reach, NULL));
  t->kernel = reach > 0;
}

/* The next exchanges are 2^32 - 2, 2^32 - 1, 4, 5 and 6, and all lines with epochs look as if they
 * had come in the last three of these. */
static void wrap_epochs(struct test *t)
{
  const size_t n = (size_t)t->me->nranks, bytes = alltoallv_mailbox_bytes(t->handle->ll_bytes);
  struct alltoallv_state state = {0};
  char *scratch = launcher_allocate(3 * n * bytes);
  memset(scratch, 0, 3 * n * bytes);
  for (size_t m = 0; m < 3 * n; m++)
    for (size_t at = 12; at < ALLTOALLV_LL_AT; at += 16)
      *(uint32_t *)(scratch + m * bytes + at) = (uint32_t[]){6, 4, 5}[m / n];
  for (int b = 0; b < ALLTOALLV_MAX_BLOCKS; b++) state.block[b].epoch = 0xFFFFFFFDu;
  if (t->kernel) {
    CUDACHECK(cudaMemcpy(t->handle->scratch.base, scratch, 3 * n * bytes, cudaMemcpyHostToDevice));
    CUDACHECK(cudaMemcpy(t->handle->state, &state, sizeof state, cudaMemcpyHostToDevice));
  }
  CUDACHECK(cudaDeviceSynchronize());
  launcher_barrier(t->me); /* before a peer writes there */
  free(scratch);
}

/* Without a barrier before, as the header promises. Ranks that are threads need one after. */
static void close_handle(struct test *t)
{
  ALLTOALLVCHECK(alltoallv_unregister(t->handle, t->x.guarded));
  ALLTOALLVCHECK(alltoallv_destroy(t->handle));
  program_free(&t->x);
  launcher_barrier(t->me);
}

/* ---- exchanges at random ----------------------------------------------------------------------
 */

enum {
  DEVICE = 1,    /* counts on the device */
  SLOTS = 2,     /* ... and parts in slots */
  TOO_MUCH = 4,  /* ... of which one is too small, or all together are */
  GATHER = 8,    /* everybody is sent the same segment */
  MISMATCH = 16, /* a rank sends one more than another one expects */
  GAPS = 32,     /* between segments */
  ORDER = 64,    /* segments in another order than that of ranks */
  OFFSET = 128,  /* buffers that begin anywhere */
  ROWS = 256,    /* elements of several numbers */
  LARGE = 512,   /* pairs beyond the low-latency limit, or around it */
  LATE = 1024,   /* a rank is late */
  PACKED = 2048, /* no displacements are given */
  LABELS = 4096, /* DEVICE: a second payload, a byte for each element */
  FEATURES = 8192,
};
enum { LABELS_AT = BUFFER / 2 - 16 }; /* in both buffers */

struct drawn {
  unsigned has;
  size_t size, row; /* an element is so many numbers of so many bytes */
  size_t matrix[MAX_RANKS * MAX_RANKS];
  size_t sendcounts[MAX_RANKS], sdispls[MAX_RANKS], recvcounts[MAX_RANKS], rdispls[MAX_RANKS];
  size_t send_at, recv_at; /* bytes */
  size_t room;
  int from, to; /* whose counts disagree, or (source -1) who has no room */
};

static void draw(struct test *t, unsigned long long seed, struct drawn *d)
{
  const int n = t->me->nranks, me = t->me->rank;
  t->random = seed;
  d->has = 0;
  for (unsigned feature = 1; feature < FEATURES; feature *= 2)
    if (below(t, 3) == 0) d->has |= feature;
  if (d->has & DEVICE) d->has &= ~(unsigned)MISMATCH;
  if (!(d->has & DEVICE)) d->has &= ~(unsigned)(SLOTS | TOO_MUCH | GATHER | LABELS);
  if (!t->kernel || n == 1) d->has &= ~(unsigned)MISMATCH; /* found by the kernel */
  if (d->has & (GATHER | MISMATCH)) d->has &= ~(unsigned)PACKED;
  d->size = (size_t)1 << below(t, 4);
  d->row = d->has & ROWS ? 1 + below(t, 300) : 1;
  const size_t element = d->size * d->row, fits = BUFFER / 4 / (size_t)n / element;
  const size_t most = d->has & LARGE ? fits : fits < 700 / element ? fits : 700 / element + 1;
  for (int i = 0; i < n * n; i++) {
    size_t *count = &d->matrix[i];
    *count = below(t, 4) == 0 ? 0 : below(t, most + 1);
    if (d->has & LARGE && below(t, 4) == 0) *count = (LL_LIMIT - 17 + below(t, 35)) / element;
    if (d->has & GATHER && i % n > 0) *count = d->matrix[i / n * n];
    if (*count > fits) *count = fits;
  }
  d->from = (int)below(t, t->kernel ? (size_t)n : 1);
  d->to = (int)below(t, t->kernel ? (size_t)n : 1);

  int order[MAX_RANKS];
  for (int i = 0; i < n; i++) order[i] = i;
  for (int i = n - 1; i > 0 && d->has & ORDER && !(d->has & PACKED); i--) {
    const int j = (int)below(t, (size_t)i + 1), swap = order[i];
    order[i] = order[j];
    order[j] = swap;
  }
  const size_t gap = d->has & GAPS && !(d->has & PACKED) ? below(t, 5) : 0;
  size_t sends = gap, receives = d->has & DEVICE ? 0 : gap, widest = 0;
  for (int i = 0; i < n * n; i++)
    if (d->matrix[i] > widest) widest = d->matrix[i];
  const size_t slot = widest + below(t, 3);
  for (int i = 0; i < n; i++) {
    const int p = order[i], q = d->has & DEVICE ? i : p; /* received in rank order then */
    d->sendcounts[p] = d->matrix[me * n + p];
    d->recvcounts[q] = d->matrix[q * n + me];
    d->sdispls[p] = d->has & GATHER ? gap : sends;
    d->rdispls[q] = d->has & SLOTS ? slot * (size_t)q : receives;
    sends += gap + d->sendcounts[p];
    receives += (d->has & DEVICE ? 0 : gap) + d->recvcounts[q];
  }
  const size_t at = below(t, 256);
  d->send_at = d->has & OFFSET ? at / 16 / d->size * d->size : 0;
  d->recv_at = d->has & OFFSET ? at % 16 / d->size * d->size : 0;
  d->room = d->has & SLOTS ? slot : (d->has & LABELS ? BUFFER / 2 : BUFFER - 16) / element;
  /* what is largest does not fit, or just does: the largest part, or the most that a rank gets */
  size_t largest = 0;
  for (int to = 0; to < n; to++) {
    size_t sum = 0;
    for (int from = 0; from < n; from++) {
      const size_t count = d->matrix[from * n + to];
      sum += count;
      if (d->has & SLOTS && count > largest) largest = count;
    }
    if (!(d->has & SLOTS) && sum > largest) largest = sum;
  }
  if (largest == 0) d->has &= ~(unsigned)TOO_MUCH; /* nothing always fits */
  if (d->has & TOO_MUCH)
    d->room = largest - 1;
  else if (below(t, 3) == 0)
    d->room = d->has & SLOTS ? slot : largest;
}

/* Sends what was drawn. back: recvcounts, rdispls, needed, where counts are on the device. */
static void exchange(struct test *t, const struct drawn *d, size_t *back)
{
  const size_t n = (size_t)t->me->nranks, array = n * sizeof(size_t), element = d->size * d->row;
  const bool packed = d->has & PACKED;
  const char *send = t->x.send + d->send_at;
  char *recv = t->x.guarded + PROGRAM_GUARD + d->recv_at;
  size_t sendcounts[MAX_RANKS], *device = t->device;
  memcpy(sendcounts, d->sendcounts, array);
  const alltoallv_counts_t counts = {.sendcounts = device,
                                     .sdispls = packed ? NULL : device + n,
                                     .recvcounts = device + 2 * n,
                                     .rdispls = device + 3 * n,
                                     .needed = device + 4 * n,
                                     .room = d->room,
                                     .layout = d->has & SLOTS ? ALLTOALLV_SLOTS : ALLTOALLV_PACKED};
  const alltoallv_buffers_t buffers[] = {{send, recv, element},
                                         {send + LABELS_AT, recv + LABELS_AT, 1}};
  if (d->has & MISMATCH && t->me->rank == d->from) sendcounts[d->to]++;
  CUDACHECK(cudaMemcpyAsync(device, sendcounts, array, cudaMemcpyHostToDevice, t->stream));
  CUDACHECK(cudaMemcpyAsync(device + n, d->sdispls, array, cudaMemcpyHostToDevice, t->stream));
  if (d->has & DEVICE)
    ALLTOALLVCHECK(
        alltoallv_device_counts(t->handle, &counts, buffers, d->has & LABELS ? 2 : 1, t->stream));
  else
    ALLTOALLVCHECK(alltoallv(t->handle, send, sendcounts, packed ? NULL : d->sdispls, recv,
                             d->recvcounts, packed ? NULL : d->rdispls, element, t->stream));
  /* The next kernel may be one that does not wait. What it finds is what is verified. */
  if (!t->handle->next_waits) {
    CUDACHECK(copy_at_once(t->seen, recv, BUFFER, t->stream));
    CUDACHECK(cudaMemcpyAsync(recv, t->seen, BUFFER, cudaMemcpyDeviceToDevice, t->stream));
  }
  CUDACHECK(cudaMemcpyAsync(back, device + 2 * n, 3 * array, cudaMemcpyDeviceToHost, t->stream));
}

/* Draws an exchange, makes it, and checks all that it leaves. */
static bool try_case(struct test *t, unsigned long long seed)
{
  static const char *const types[] = {"int8", "half", "float", "double"};
  const int n = t->me->nranks, me = t->me->rank;
  const size_t array = (size_t)n * sizeof(size_t);
  struct drawn *d = calloc(1, sizeof *d);
  struct segment expected[2 * MAX_RANKS];
  size_t back[3 * MAX_RANKS], nothing[MAX_RANKS] = {0};
  ncclResult_t async;
  int source, destination;
  draw(t, seed, d);
  struct exchange *x = &t->x;
  x->type = datatype_find(types[d->size == 1 ? 0 : d->size == 2 ? 1 : d->size == 4 ? 2 : 3]);
  for (int p = 0; p < n; p++) {
    x->sendcounts[p] = d->sendcounts[p] * d->row, x->sdispls[p] = d->sdispls[p] * d->row;
    x->recvcounts[p] = d->recvcounts[p] * d->row, x->rdispls[p] = d->rdispls[p] * d->row;
  }
  char *send = x->send + d->send_at, *recv = x->guarded + PROGRAM_GUARD + d->recv_at;
  program_prepare(x, send, recv, (uint32_t)seed, expected, t->stream);
  if (d->has & GATHER) /* the segments are one: as for rank 0 */
    CUDACHECK(elements_launch((struct segment){send + x->sdispls[0] * d->size, x->sendcounts[0],
                                               d->size, me, 0, (uint32_t)seed},
                              NULL, t->stream));
  for (int p = 0; p < n && d->has & LABELS; p++) {
    char *from = send + LABELS_AT + d->sdispls[p], *to = recv + LABELS_AT + d->rdispls[p];
    const int whom = d->has & GATHER ? 0 : p;
    struct segment label = {from, d->sendcounts[whom], 1, me, whom, (uint32_t)seed + 1};
    CUDACHECK(elements_launch(label, NULL, t->stream));
    expected[n + p] = (struct segment){to, d->recvcounts[p], 1, p, me, (uint32_t)seed + 1};
  }
  program_guard(x, x->guarded, t->stream);
  if (d->has & LATE && (int)(seed % (unsigned)n) == me) usleep(1000);
  exchange(t, d, back);
  const int segments = d->has & LABELS ? 2 * n : n;
  for (int i = 0; i < segments && d->has & GATHER; i++) expected[i].destination = 0;
  CUDACHECK(cudaStreamSynchronize(t->stream));
  const bool wrong = d->has & MISMATCH, refused = d->has & TOO_MUCH;
  if (wrong && me == d->to) { /* what the segment of that pair holds is undefined */
    struct segment *s = &expected[d->from];
    CUDACHECK(cudaMemset(s->start, ELEMENTS_GUARD_BYTE, s->count * s->size));
    s->count = 0;
  }
  bool good =
      program_verify("exchange", expected, refused ? 0 : segments, x, x->guarded, t->stream) == 0;
  ALLTOALLVCHECK(alltoallv_get_async_error(t->handle, &async, &source, &destination));
  if (wrong && (me == d->from || me == d->to)) {
    const size_t count = d->matrix[d->from * n + d->to];
    good &= async == ncclInvalidArgument && source == d->from && destination == d->to;
    good &= says("rank %d sends %zu elements to rank %d, which expects %zu", source, count + 1,
                 destination, count);
  } else if (refused) {
    good &= async == ncclInvalidArgument && (source < 0) == !(d->has & SLOTS);
    good &= strstr(alltoallv_last_error(), " fit") != NULL;
  } else {
    good &= async == ncclSuccess;
  }
  if (d->has & DEVICE) {
    good &= memcmp(back, refused ? nothing : d->recvcounts, array) == 0;
    good &= memcmp(back + n, refused ? nothing : d->rdispls, array) == 0;
    good &= memcmp(back + 2 * n, d->recvcounts, array) == 0;
  }
  free(d);
  return launcher_agree(t->me, good ? EXIT_VERIFIED : EXIT_WRONG_DATA) == EXIT_VERIFIED;
}

static void test_random(struct test *t, long from, long count, const char *what)
{
  bool good = true;
  for (long i = 0; i < count && good; i++) {
    launcher_step("random exchanges");
    good = try_case(t, (unsigned long long)(from + i));
    if (!good) launcher_print(t->me, "# seed %ld fails\n", from + i);
  }
  result(t, good, what);
}

static uint64_t rare_word(size_t i)
{
  return (uint64_t)(ALLTOALLV_KEY ^ (uint32_t)(i % 7)) << 32 | i % 3;
}

/* Words that no bare line holds as they are, and words that one does, as many as go in lines. Four
 * exchanges follow each other at once. In every second first one counts disagree: all ranks send
 * but expect nothing, so nobody reads the lines, or rank 0 sends a large pair; or the opposite. */
static void test_bare_lines(struct test *t)
{
  enum { FOUR = 4 };
  const size_t n = (size_t)t->me->nranks, fits = BUFFER / n - 16;
  const size_t count = (LL_LIMIT < fits ? LL_LIMIT : fits) / sizeof(uint64_t);
  const size_t sent = count + 2 * FOUR, words = n * sent;
  uint64_t *data = launcher_allocate(words * sizeof *data);
  size_t all[MAX_RANKS], more[MAX_RANKS] = {0}, none[MAX_RANKS] = {0}, sdispls[MAX_RANKS];
  char *recv = t->x.guarded + PROGRAM_GUARD;
  bool good = true;
  launcher_step("bare lines");
  for (size_t p = 0; p < n; p++) all[p] = count, more[p] = t->me->rank == 0 ? count + 1 : 0;
  for (size_t i = 0; i < sent; i++) data[i] = rare_word((size_t)t->me->rank + i);
  CUDACHECK(cudaMemcpy(t->x.send, data, sent * sizeof *data, cudaMemcpyHostToDevice));
  for (int turn = 0; turn < 20; turn++) {
    const bool unread = t->kernel && turn % 2 == 0;
    for (size_t i = 0; i < FOUR; i++) {
      const size_t *some = turn & 4 ? more : all, *sends = all, *gets = all;
      if (unread && i == 0) sends = turn & 2 ? none : some, gets = turn & 2 ? some : none;
      for (size_t p = 0; p < n; p++) sdispls[p] = 2 * i;
      ALLTOALLVCHECK(
          alltoallv(t->handle, t->x.send, sends, sdispls, recv, gets, NULL, 8, t->stream));
    }
    good &= async_error(t) == (unread ? ncclInvalidArgument : ncclSuccess);
    CUDACHECK(cudaMemcpy(data, recv, n * count * sizeof *data, cudaMemcpyDeviceToHost));
    for (size_t p = 0; p < n; p++)
      for (size_t i = 0; i < count; i++)
        good &= data[p * count + i] == rare_word(p + 2 * FOUR - 2 + i);
  }
  result(t, good, "words that need escapes, and lines that nobody reads");
  free(data);
}

/* ---- one behind the other ---------------------------------------------------------------------
 */

/* Counts, displacements and places of a random exchange of floats, each at most `most`. Quiet:
 * nobody has anything for others, so only headers hold the ranks together. */
static void random_counts(struct test *t, struct exchange *x, size_t most, bool quiet)
{
  const size_t n = (size_t)t->me->nranks, fits = BUFFER / sizeof(float) / n;
  for (size_t i = 0; i < n * n; i++) {
    const bool none = below(t, 4) == 0 || (quiet && i / n != i % n);
    const size_t count = none ? 0 : below(t, most < fits ? most : fits);
    if (i / n == (size_t)t->me->rank) x->sendcounts[i % n] = count;
    if (i % n == (size_t)t->me->rank) x->recvcounts[i / n] = count;
  }
  x->type = datatype_find("float");
  program_layout(x);
}

static void pause_stream(void *milliseconds)
{
  usleep(1000 * *(const unsigned *)milliseconds);
}

/* Enqueues an exchange and the comparison of what it leaves, which begins late or not. */
static void enqueue(struct test *t, const struct method *method, const struct exchange *x,
                    uint32_t round, struct element_errors *errors, bool late)
{
  static const unsigned two = 2;
  struct segment expected[MAX_RANKS];
  char *recv = x->guarded + PROGRAM_GUARD;
  program_prepare(x, x->send, recv, round, expected, t->stream);
  method->call(x, x->send, recv, t->stream);
  if (late) CUDACHECK(cudaLaunchHostFunc(t->stream, pause_stream, (void *)&two));
  for (int from = 0; from < t->me->nranks; from++)
    CUDACHECK(elements_launch(expected[from], errors, t->stream));
}

/* Exchanges with changing counts, nothing waited for in between, while one rank after the other is
 * late: before its exchange, which the others have to wait for, or after it, when it has not looked
 * at what it received. Then four in a graph, replayed. */
static void test_back_to_back(struct test *t, int kind, const char *name, bool graphs)
{
  enum { CALLS = 60 };
  const int n = t->me->nranks;
  const struct method *method = &methods[kind];
  const bool runs = t->kernel || method->library;
  struct element_errors errors, *device;
  struct exchange x[5]; /* the last one eager */
  launcher_step(name);
  x[4] = t->x;
  if (method->simple && runs) {
    simple_open(&x[4]);
    x[4].guarded = x[4].simple.guarded;
  }
  CUDACHECK(cudaMalloc((void **)&device, sizeof *device));
  CUDACHECK(cudaMemsetAsync(device, 0, sizeof *device, t->stream));
  for (int call = 0; runs && call < CALLS; call++) {
    const bool late = call / 2 % n == t->me->rank;
    random_counts(t, &x[4], call % 3 ? 3000 : LL_LIMIT, call / 8 % 3 == 2);
    if (late && call % 2 == 0) usleep(2000);
    enqueue(t, method, &x[4], (uint32_t)call, device, late && call % 2 == 1);
  }
  if (runs && graphs && !launcher_graphs_can_deadlock) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    for (int i = 0; i < 4; i++) {
      x[i] = x[4];
      random_counts(t, &x[i], i % 2 ? 3000 : LL_LIMIT, false);
    }
    CUDACHECK(cudaStreamBeginCapture(t->stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < 4; i++) enqueue(t, method, &x[i], (uint32_t)i, device, false);
    CUDACHECK(cudaStreamEndCapture(t->stream, &graph));
    CUDACHECK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < REPLAYS; i++) {
      CUDACHECK(cudaGraphLaunch(exec, t->stream));
      if (i % 20 == t->me->rank) usleep(1000);
    }
    CUDACHECK(cudaStreamSynchronize(t->stream));
    CUDACHECK(cudaGraphExecDestroy(exec));
    CUDACHECK(cudaGraphDestroy(graph));
  }
  CUDACHECK(cudaMemcpyAsync(&errors, device, sizeof errors, cudaMemcpyDeviceToHost, t->stream));
  CUDACHECK(cudaStreamSynchronize(t->stream));
  CUDACHECK(cudaFree(device));
  launcher_barrier(t->me);
  if (method->simple && runs) simple_close(&x[4]);
  if (runs) result(t, errors.wrong == 0, name);
}

static ncclResult_t some_exchange(struct test *t, cudaStream_t stream)
{
  const struct exchange *x = &t->x;
  return alltoallv(t->handle, x->send, x->sendcounts, x->sdispls, x->guarded, x->recvcounts,
                   x->rdispls, 4, stream);
}

/* An exchange waits for the one before on another stream, also when one was captured in between;
 * unregister waits for all. */
static void test_streams(struct test *t)
{
  static const unsigned milliseconds = 50;
  cudaStream_t other;
  cudaEvent_t first; /* that exchange is over, if there is a time from it to itself */
  float time;
  cudaGraph_t graph;
  launcher_step("two streams");
  random_counts(t, &t->x, 1000, false);
  CUDACHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  CUDACHECK(cudaEventCreate(&first));
  CUDACHECK(cudaLaunchHostFunc(t->stream, pause_stream, (void *)&milliseconds));
  ALLTOALLVCHECK(some_exchange(t, t->stream));
  CUDACHECK(cudaEventRecord(first, t->stream));
  CUDACHECK(cudaStreamBeginCapture(other, cudaStreamCaptureModeThreadLocal));
  ALLTOALLVCHECK(some_exchange(t, other));
  CUDACHECK(cudaStreamEndCapture(other, &graph));
  CUDACHECK(cudaGraphDestroy(graph));
  ALLTOALLVCHECK(some_exchange(t, other));
  CUDACHECK(cudaStreamSynchronize(other));
  result(t, cudaEventElapsedTime(&time, first, first) == cudaSuccess,
         "an exchange waits for the one before");

  ALLTOALLVCHECK(some_exchange(t, other));
  CUDACHECK(cudaStreamSynchronize(other));
  ALLTOALLVCHECK(some_exchange(t, t->stream));
  CUDACHECK(cudaLaunchHostFunc(t->stream, pause_stream, (void *)&milliseconds));
  CUDACHECK(cudaEventRecord(first, t->stream));
  ALLTOALLVCHECK(alltoallv_unregister(t->handle, t->x.guarded));
  bool good = cudaEventElapsedTime(&time, first, first) == cudaSuccess;
  good &= alltoallv_unregister(t->handle, t->x.guarded) == ncclInvalidArgument; /* it is, by now */
  launcher_barrier(t->me);
  void *none;
  (void)cudaMalloc(&none, (size_t)1 << 50); /* fails, and no later call */
  ALLTOALLVCHECK(alltoallv_register(t->handle, t->x.guarded, t->x.guarded_bytes));
  (void)cudaGetLastError();
  result(t, good, "unregister waits for what is running");
  CUDACHECK(cudaStreamDestroy(other));
  CUDACHECK(cudaEventDestroy(first));
}

/* ---- misuse -----------------------------------------------------------------------------------
 */

/* Is that result right, and does the sentence begin so? */
static int refused(ncclResult_t result, ncclResult_t right, const char *begins)
{
  return (result == right) & says("%s", begins);
}

/* Wrong arguments, which every rank passes, unless it is about counts: then others hear of it. */
static void test_arguments(struct test *t)
{
  const int n = t->me->nranks;
  const size_t huge = (size_t)1 << 60, room = (t->x.bytes + PROGRAM_GUARD) / 4;
  const ncclResult_t argument = ncclInvalidArgument, usage = ncclInvalidUsage;
  size_t ten[MAX_RANKS], zero[MAX_RANKS] = {0}, many[MAX_RANKS] = {huge}, packed[MAX_RANKS] = {0};
  size_t overlap[MAX_RANKS], beyond[MAX_RANKS], received[MAX_RANKS], after[MAX_RANKS];
  size_t *d = t->device;
  char *send = t->x.send, *recv = t->x.guarded + PROGRAM_GUARD;
  cudaStream_t stream = t->stream;
  alltoallv_t h = t->handle;
  void *address;
  char sentence[128];
  launcher_step("arguments");
  for (int p = 0; p < n; p++) ten[p] = 10, packed[p] = 10 * (size_t)p, after[p] = 10 * (size_t)n;
  memcpy(overlap, packed, sizeof packed);
  memcpy(beyond, packed, sizeof packed);
  if (n > 1) overlap[1] = 9;
  beyond[0] = room - 5;
#define A2A(s, sc, sd, r, rc, rd, bytes) alltoallv(h, s, sc, sd, r, rc, rd, bytes, stream)
#define DEV(s, sc, r, fits, how, rc)                                                              \
  alltoallv_device_counts(                                                                        \
      h,                                                                                          \
      &(alltoallv_counts_t){                                                                      \
          .sendcounts = sc, .recvcounts = rc, .room = fits, .layout = (alltoallv_layout_t)(how)}, \
      &(alltoallv_buffers_t){s, r, 4}, 1, stream)
  bool good =
      refused(A2A(NULL, ten, NULL, recv, ten, NULL, 4), argument, "NULL buffer") &
      refused(A2A(send, NULL, NULL, recv, ten, NULL, 4), argument, "NULL array of counts") &
      refused(A2A(send, ten, NULL, recv, ten, NULL, 0), argument, "element_bytes is 0; allowed") &
      refused(A2A(send, ten, NULL, recv, ten, NULL, (size_t)4 << 30), argument,
              "element_bytes is 4") &
      refused(A2A(send, many, NULL, recv, zero, NULL, 64), argument,
              "what rank 0 gets or sends overf") &
      refused(A2A(send, zero, NULL, recv, many, NULL, 64), argument,
              "what rank 0 gets or sends overf") &
      refused(A2A(send, ten, many, recv, ten, NULL, 64), argument,
              "what rank 0 gets or sends overf") &
      refused(A2A(recv, ten, NULL, recv, ten, NULL, 4), usage, "send and receive ranges overlap") &
      refused(DEV(NULL, d, recv, 10, 0, d + n), argument, "NULL buffer") &
      refused(DEV(send, d, recv, 10, 2, d + n), argument, "unknown layout") &
      refused(DEV(send, d, recv, huge * 8, 0, d + n), argument, "room overflows") &
      refused(DEV(recv, d, recv, 10, 0, d + n), usage, "send and receive ranges overlap") &
      refused(alltoallv_device_counts(h, &(alltoallv_counts_t){.sendcounts = d, .recvcounts = d},
                                      &(alltoallv_buffers_t){send, recv, 4}, 5, stream),
              argument, "NULL argument, or 5 buffers; allowed: 1 to 4") &
      refused(alltoallv_register(h, t->x.guarded, 4096), usage, "rank ") &
      refused(alltoallv_peer(h, send, 0, &address), argument, "the buffer is not registered") &
      refused(alltoallv_peer(h, t->x.guarded, n, &address), argument, "NULL address, or rank ") &
      refused(alltoallv_unregister(h, send), argument, "the buffer is not registered") &
      refused(alltoallv_register(h, recv + 1, 10), argument, "rank ") &
      refused(alltoallv_register(h, NULL, 10), argument, "rank ") &
      (n == 1 || refused(alltoallv_register(h, send, t->me->rank == 1 ? 20 : 10), argument,
                         "ranks 0 and 1 cannot register the buffer: 10 bytes as number 1, but 20"));
  if (n > 1)
    good &= refused(A2A(send, ten, NULL, recv, ten, overlap, 4), usage,
                    "what comes from ranks 0 and 1 overlaps in recvbuff");
  if (t->kernel) {
    good &= refused(A2A(send, ten, NULL, send + 4096, ten, NULL, 4), usage, "recvbuff is not reg");
    snprintf(sentence, sizeof sentence, "recvbuff has to hold %zu elements, but", room + 5);
    good &= refused(A2A(send, ten, NULL, recv, ten, beyond, 4), argument, sentence);
    snprintf(sentence, sizeof sentence, "recvbuff has to hold %zu elements, but", room + 1);
    good &= refused(DEV(send, d, recv, room + 1, 0, d + n), argument, sentence);
  }
  const bool wrong = t->me->rank == n - 1;
  good &= refused(alltoallv_counts(h, ten, NULL), argument, "NULL argument");
  good &= A2A(recv, ten, after, recv, ten, NULL, 4) == ncclSuccess; /* other parts of a buffer */
  result(t, good, "wrong arguments are refused");

  /* counts that cannot be meant fit nowhere; from the fourth on the last rank makes another call:
   * other units, another layout, counts from the host, a large pair among them */
  good = true;
  for (int i = 0; i < 7; i++) {
    const bool differ = i >= 3 && n > 1 && t->kernel, other = differ && wrong; /* see send/recv */
    size_t counts[MAX_RANKS] = {(size_t)1 << (33 + 15 * (i % 3))}, large[MAX_RANKS] = {LL_LIMIT};
    if (i % 3 == 2 && n > 1) counts[1] = 5; /* not to be read so far away */
    CUDACHECK(cudaMemcpy(d, counts, (size_t)n * sizeof *d, cudaMemcpyHostToDevice));
    CUDACHECK(cudaMemset(d + n, other && i >= 5 ? 0 : 1, (size_t)n * sizeof *d));
    const alltoallv_counts_t device = {.sendcounts = d,
                                       .recvcounts = d + n,
                                       .layout =
                                           other && i == 4 ? ALLTOALLV_SLOTS : ALLTOALLV_PACKED};
    const alltoallv_buffers_t buffers = {send, recv, other && i == 3 ? 12 : 8};
    const size_t *host = i == 5 ? ten : large;
    if (other && i >= 5)
      ALLTOALLVCHECK(A2A(send, host, NULL, recv, host, NULL, 8));
    else
      ALLTOALLVCHECK(alltoallv_device_counts(h, &device, &buffers, 1, stream));
    good &= async_error(t) == (differ ? usage : argument);
    good &= strstr(alltoallv_last_error(), differ ? " made different calls" : ", 0 fit") != NULL;
    CUDACHECK(cudaMemcpy(received, d + n, (size_t)n * sizeof *d, cudaMemcpyDeviceToHost));
    good &= memcmp(received, zero, (size_t)n * sizeof *d) == 0; /* nothing came */
  }
  result(t, good, "different calls, and counts that cannot be meant");
}

static void test_config(struct test *t)
{
  const int last = t->me->nranks - 1;
  const bool differs = t->me->rank == last;
  alltoallv_t none;
  bool good = true;
  launcher_step("configurations");
  for (int i = 0; i < 6; i++) { /* wrong on all ranks; the last two on the last rank */
    alltoallv_config_t config = {0};
    if (i == 0) config.method = (alltoallv_method_t)3;
    if (i == 1) config.timeout_seconds = 2e9;
    if (i == 2) config.timeout_seconds = (double)NAN;
    if (i == 3) config.max_blocks = -2;
    if (i == 4 && differs) config.max_blocks = 1;
    if (i == 5 && last > 0) config.method = differs ? ALLTOALLV_LSA : ALLTOALLV_SENDRECV;
    if (i == 5 && last == 0) continue;
    good &= alltoallv_create(t->comm, &config, &none) == ncclInvalidArgument && none == NULL;
    if (i < 4) good &= strstr(alltoallv_last_error(), "config.") != NULL;
    if (i == 4) good &= says("rank %d cannot make a handle: config.method 0, ", last);
    if (i == 5) good &= says("ranks 0 and %d pass different values of config.method", last);
  }
  result(t, good, "configurations that are wrong, or differ between ranks, are refused");

  good = true; /* what the header says of memory */
  for (int n = 1; n <= ALLTOALLV_MAX_LSA_RANKS; n++)
    good &= 3 * (size_t)n * alltoallv_mailbox_bytes(alltoallv_lsa_lines(n)) +
                sizeof(struct alltoallv_state) <=
            (size_t)14 << 20;
  result(t, good, "a handle allocates at most 14 MiB");
}

#ifdef CPU_STANDIN /* whose sentences are known, and which fails without harm */
/* A failure of NCCL comes with NCCL's own reason; a receive buffer of the wrong memory on one rank:
 * all hear of it. */
static void test_reasons(struct test *t)
{
  size_t one[MAX_RANKS], received[MAX_RANKS];
  const bool wrong = t->me->rank == t->me->nranks - 1;
  ncclComm_t comm, parent = t->comm;
  void *buffer;
  bool good = true;
  launcher_step("reasons");
  if (wrong)
    CUDACHECK(cudaMalloc(&buffer, 8192));
  else
    NCCLCHECK(ncclMemAlloc(&buffer, 8192));
  NCCLCHECK(ncclCommSplit(parent, 0, t->me->rank, &comm, NULL));
  t->comm = comm;
  open_handle(t, 60);
  if (t->kernel) {
    good &= alltoallv_register(t->handle, buffer, 8192) != ncclSuccess;
    good &= strstr(alltoallv_last_error(), " cannot register the buffer: ") != NULL;
    good &= alltoallv_unregister(t->handle, buffer) == ncclInvalidArgument; /* it is not */
  }
  for (int p = 0; p < t->me->nranks; p++) one[p] = 1;
  NCCLCHECK(ncclCommFinalize(comm));
  good &= alltoallv_counts(t->handle, one, received) != ncclSuccess;
  good &= strstr(alltoallv_last_error(), ": comm is finalized") != NULL;
  result(t, good, "failures of NCCL come with its reason, on all ranks");
  close_handle(t);
  NCCLCHECK(ncclCommDestroy(comm));
  t->comm = parent;
  if (wrong)
    CUDACHECK(cudaFree(buffer));
  else
    NCCLCHECK(ncclMemFree(buffer));
}
#endif

/* A rank that comes when the others have given up after the timeout and destroyed their handles.
 * They say who it is. With small pairs it has the data of the first exchange, which were on their
 * way, and must hear of the second one, in which nobody sends any more, not even a header where
 * that is all. With large pairs it must hear of the first one. */
enum second { COUNTS_ON_DEVICE, NOTHING, OWN_PART, NONE };

static void test_timeout(struct test *t, enum second second, const char *what)
{
  const bool large = second == NONE;
  const int n = t->me->nranks, late = n - 1;
  struct segment expected[MAX_RANKS];
  size_t received[MAX_RANKS], own[MAX_RANKS] = {0}, other[MAX_RANKS];
  ncclResult_t async;
  int source = -1, destination;
  bool good = true;
  if (n == 1 || !t->kernel) return; /* other hosts would be waited for without end */
  launcher_step("a late rank");
  if (second == OWN_PART) own[t->me->rank] = LL_LIMIT + 1;
  open_handle(t, 1);
  random_counts(t, &t->x, 100, false);
  struct exchange *x = &t->x;
  if (large) {
    for (int p = 0; p < n; p++)
      x->sendcounts[p] = x->recvcounts[p] = BUFFER / sizeof(float) / (size_t)n;
    program_layout(x);
  }
  CUDACHECK(
      cudaMemcpy(t->device, x->sendcounts, (size_t)n * sizeof(size_t), cudaMemcpyHostToDevice));
  char *recv = x->guarded + PROGRAM_GUARD;
  program_guard(x, x->guarded, t->stream);
  program_prepare(x, x->send, recv, 1, expected, t->stream);
  for (int turn = 0; turn < 2; turn++) {
    if ((t->me->rank == late) == (turn == 1)) {
      const alltoallv_counts_t counts = {.sendcounts = t->device, .recvcounts = t->device + n};
      const alltoallv_buffers_t buffers = {x->send, x->guarded, 4};
      ALLTOALLVCHECK(alltoallv(t->handle, x->send, x->sendcounts, x->sdispls, recv, x->recvcounts,
                               x->rdispls, 4, t->stream));
      if (second == NOTHING || second == OWN_PART)
        ALLTOALLVCHECK(alltoallv(t->handle, x->send, own, NULL, recv, own, NULL, 1, t->stream));
      if (second == COUNTS_ON_DEVICE) {
        ALLTOALLVCHECK(alltoallv_device_counts(t->handle, &counts, &buffers, 1, t->stream));
        /* lines of the second of these would replace the first exchange's */
        for (int p = 0; p < n; p++) other[p] = x->sdispls[p] + (p != t->me->rank);
        for (int i = 0; i < 2; i++)
          ALLTOALLVCHECK(alltoallv(t->handle, x->send, x->sendcounts, other, recv, x->recvcounts,
                                   x->rdispls, 4, t->stream));
      }
      CUDACHECK(cudaStreamSynchronize(t->stream));
      ALLTOALLVCHECK(alltoallv_get_async_error(t->handle, &async, &source, &destination));
      good &= async == ncclRemoteError && (turn == 0 ? source == late : source != late);
      /* who has given up sends no rows either: from those it would seem that nothing fits */
      good &= t->handle->errors->counts.kind == ALLTOALLV_ERROR_NONE;
      if (turn == 1 && !large && second != OWN_PART)
        good &= program_verify("late", expected, n, x, x->guarded, t->stream) == 0;
      CUDACHECK(cudaMemcpy(received, t->device + n, sizeof *received * (size_t)n,
                           cudaMemcpyDeviceToHost));
      for (int p = 0; p < n && !large; p++) good &= received[p] == 0; /* no counts without data */
      good &= some_exchange(t, t->stream) == ncclRemoteError;         /* final */
      good &= alltoallv_counts(t->handle, x->sendcounts, x->recvcounts) == ncclRemoteError;
      good &= alltoallv_unregister(t->handle, x->guarded) == ncclRemoteError;
      ALLTOALLVCHECK(alltoallv_destroy(t->handle)); /* the buffer stays allocated */
    }
    launcher_barrier(t->me);
  }
  result(t, good, what);
  NCCLCHECK(ncclMemFree(x->send));
}

static int run(const struct rank *me, const struct options *opt)
{
  struct test t = {.me = me, .random = 1, .code = EXIT_VERIFIED};
  ncclUniqueId id;
  (void)opt;
  launcher_step("communicator");
  CUDACHECK(cudaSetDevice(me->device));
  if (me->rank == 0) NCCLCHECK(ncclGetUniqueId(&id));
  launcher_broadcast(me, &id, sizeof id, 0);
  NCCLCHECK(ncclCommInitRank(&t.comm, me->nranks, id, me->rank));
  CUDACHECK(cudaStreamCreate(&t.stream));
  CUDACHECK(cudaMalloc((void **)&t.device, 5 * (size_t)me->nranks * sizeof(size_t)));
  CUDACHECK(cudaMalloc((void **)&t.seen, BUFFER));
  open_handle(&t, 60);

  test_random(&t, first_seed, cases, "exchanges at random");
  test_bare_lines(&t);
  test_back_to_back(&t, METHOD_AUTO, "the library back to back", true);
  test_back_to_back(&t, METHOD_BARRIER, "barrier back to back", true);
  test_back_to_back(&t, METHOD_LINES, "lines back to back", true);
  test_back_to_back(&t, METHOD_COPY_ENGINE, "copy engines back to back", false);
  if (!launcher_graphs_can_deadlock) test_streams(&t);
  test_arguments(&t);
  test_config(&t);
  test_random(&t, first_seed, cases / 10, "the handle goes on after all that");
  close_handle(&t);
  open_handle(&t, -1);
  wrap_epochs(&t);
  /* large pairs in the last epoch and the three after it; in the second one counts disagree */
  test_random(&t, first_seed + 29, 30, "the epoch wraps around");
  close_handle(&t);
#ifdef CPU_STANDIN
  test_reasons(&t);
#endif
  test_timeout(&t, COUNTS_ON_DEVICE, "a late rank is named after the timeout, and hears of it");
  test_timeout(&t, NOTHING, "... also where nothing is to be sent");
  test_timeout(&t, OWN_PART, "... or only to itself");
  test_timeout(&t, NONE, "... and at once with large pairs");

  CUDACHECK(cudaFree(t.device));
  CUDACHECK(cudaFree(t.seen));
  CUDACHECK(cudaStreamDestroy(t.stream));
  NCCLCHECK(ncclCommDestroy(t.comm));
  return t.code;
}

int main(int argc, char **argv)
{
  static const struct option_spec options[] = {
      {"method", 0, OPTION_CHOICE, &method, "auto|sendrecv|lsa", "as alltoallv_sm", 0, 0},
      {"cases", 0, OPTION_LONG, &cases, "N", "exchanges at random (250)", 1, 1 << 20},
      {"seed", 0, OPTION_LONG, &first_seed, "N", "of the first of them (1)", 0, 1LL << 40},
      {0},
  };
  static const struct program program = {
      .name = "alltoallv_cases",
      .summary = "test cases of the AlltoAllV",
      .options = options,
      .types = "float",
      .run = run,
  };
  return launcher_main(argc, argv, &program);
}
