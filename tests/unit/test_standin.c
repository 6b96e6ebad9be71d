/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the CPU stand-in: does it behave as CUDA and NCCL do where the examples rely on it?
 *
 * Ranks are threads of this process; for ranks as processes, and for settings that are read once
 * per process, the program starts itself again with the name of a part as its first argument.
 * A failed check in any thread ends the program at once, so that no other rank waits for ever. */
#include <fcntl.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "cpu.h"

#define REQUIRE(condition)                                                                         \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      fprintf(stderr, "%s:%d: failed: %s (last NCCL error: %s)\n", __FILE__, __LINE__, #condition, \
              ncclGetLastError(NULL));                                                             \
      fflush(NULL);                                                                                \
      _exit(1);                                                                                    \
    }                                                                                              \
  } while (0)
#define CUDA(call) REQUIRE((call) == cudaSuccess)
#define NCCL(call) REQUIRE((call) == ncclSuccess)

/* ThreadSanitizer needs a minute for what takes a second otherwise, and looks for other mistakes.
 */
#ifdef __SANITIZE_THREAD__
enum { MOST_RANKS = 64, BIG = 100003 };
#else
enum { MOST_RANKS = 64, BIG = 1000003 };
#endif

/* ---- ranks as threads ---------------------------------------------------------------------- */

struct rank {
  int rank, n;
  ncclUniqueId id;
  ncclComm_t comm;
  cudaStream_t stream;
  void (*body)(struct rank *me);
  char *send, *receive; /* device memory that one_collective uses again and again */
};

enum { POOL_BYTES = 7 * BIG * 4 };

static pthread_barrier_t barrier;

static void open_rank(struct rank *me)
{
  CUDA(cudaSetDevice(me->rank));
  NCCL(ncclCommInitRank(&me->comm, me->n, me->id, me->rank));
  CUDA(cudaStreamCreate(&me->stream));
}

static void close_rank(struct rank *me)
{
  CUDA(cudaStreamSynchronize(me->stream));
  ncclResult_t error = ncclSuccess;
  NCCL(ncclCommGetAsyncError(me->comm, &error));
  REQUIRE(error == ncclSuccess);
  CUDA(cudaStreamDestroy(me->stream));
  NCCL(ncclCommFinalize(me->comm));
  NCCL(ncclCommDestroy(me->comm));
}

static void *device_memory(size_t bytes)
{
  void *pointer = NULL;
  CUDA(cudaMalloc(&pointer, bytes > 0 ? bytes : 1));
  return pointer;
}

static void *rank_thread(void *argument)
{
  struct rank *me = argument;
  open_rank(me);
  me->body(me);
  if (me->send != NULL) CUDA(cudaFree(me->send));
  if (me->receive != NULL) CUDA(cudaFree(me->receive));
  close_rank(me);
  return NULL;
}

static void run_ranks(int n, void (*body)(struct rank *me))
{
  pthread_t threads[MOST_RANKS];
  struct rank ranks[MOST_RANKS];
  ncclUniqueId id;
  NCCL(ncclGetUniqueId(&id));
  pthread_barrier_init(&barrier, NULL, (unsigned)n);
  for (int r = 0; r < n; r++) {
    ranks[r] = (struct rank){.rank = r, .n = n, .id = id, .body = body};
    REQUIRE(pthread_create(&threads[r], NULL, rank_thread, &ranks[r]) == 0);
  }
  for (int r = 0; r < n; r++) pthread_join(threads[r], NULL);
  pthread_barrier_destroy(&barrier);
}

static void *host_memory(size_t bytes)
{
  void *pointer = malloc(bytes > 0 ? bytes : 1);
  REQUIRE(pointer != NULL);
  return pointer;
}

static void nap(long milliseconds)
{
  struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};
  nanosleep(&time, NULL);
}

static double now(void)
{
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* A kernel that takes its time. */
static void slow_kernel(const void *args)
{
  nap(*(const long *)args);
}

static void slow(cudaStream_t stream, long milliseconds)
{
  CUDA(cpu_launch(stream, slow_kernel, &milliseconds, sizeof(milliseconds)));
}

/* ---- elements of all types ----------------------------------------------------------------- */

static const ncclDataType_t all_types[] = {ncclInt8,    ncclUint8,   ncclInt32,   ncclUint32,
                                           ncclInt64,   ncclUint64,  ncclFloat16, ncclFloat32,
                                           ncclFloat64, ncclBfloat16};
enum { TYPES = sizeof(all_types) / sizeof(all_types[0]) };

static size_t size_of(ncclDataType_t type)
{
  static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return sizes[type];
}

static float float_from(uint32_t bits)
{
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

static uint32_t bits_from(float value)
{
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

/* Written another way than in the stand-in, so that a mistake does not cancel out. */
static double half_value(uint16_t x)
{
  int exponent = x >> 10 & 31;
  double fraction = x & 1023;
  double magnitude = exponent == 0 ? fraction * 0x1p-24 : (1024 + fraction) * 0x1p-25;
  for (int e = 0; e < exponent; e++)
    if (exponent > 0) magnitude *= 2;
  return x >> 15 != 0 ? -magnitude : magnitude;
}

static void put(void *buffer, size_t i, ncclDataType_t type, int value)
{
  char *at = (char *)buffer + i * size_of(type);
  int64_t integer = value;
  float single = (float)value;
  double real = value;
  uint16_t brain = (uint16_t)(bits_from(single) >> 16);
  switch (type) {
  case ncclFloat16:
    for (unsigned x = 0;; x++)
      if (half_value((uint16_t)x) == (value < 0 ? -real : real)) {
        uint16_t half = (uint16_t)(x | (value < 0 ? 0x8000 : 0));
        memcpy(at, &half, 2);
        return;
      }
  case ncclBfloat16:
    memcpy(at, &brain, 2);
    return;
  case ncclFloat32:
    memcpy(at, &single, 4);
    return;
  case ncclFloat64:
    memcpy(at, &real, 8);
    return;
  default:
    memcpy(at, &integer, size_of(type)); /* little-endian */
  }
}

static double get(const void *buffer, size_t i, ncclDataType_t type)
{
  const char *at = (const char *)buffer + i * size_of(type);
  int8_t i8;
  uint8_t u8;
  int32_t i32;
  uint32_t u32;
  int64_t i64;
  uint64_t u64;
  uint16_t u16;
  float f32;
  double f64;
  switch (type) {
  case ncclInt8:
    return memcpy(&i8, at, 1), (double)i8;
  case ncclUint8:
    return memcpy(&u8, at, 1), (double)u8;
  case ncclInt32:
    return memcpy(&i32, at, 4), (double)i32;
  case ncclUint32:
    return memcpy(&u32, at, 4), (double)u32;
  case ncclInt64:
    return memcpy(&i64, at, 8), (double)i64;
  case ncclUint64:
    return memcpy(&u64, at, 8), (double)u64;
  case ncclFloat16:
    return memcpy(&u16, at, 2), half_value(u16);
  case ncclBfloat16:
    return memcpy(&u16, at, 2), (double)float_from((uint32_t)u16 << 16);
  case ncclFloat32:
    return memcpy(&f32, at, 4), (double)f32;
  default:
    return memcpy(&f64, at, 8), f64;
  }
}

/* The element i of rank r's block b: small, so that sums of 7 ranks are exact in all types and
 * products of 7 fit into a byte. */
static int element(int rank, size_t i, int block)
{
  return (int)((i * 7 + i / 251 + (size_t)rank * 3 + (size_t)block * 5) % 8);
}

/* The same for all tests: values 0..7 of every type, ready to be copied. */
static char patterns[TYPES][8][8];

static void make_patterns(void)
{
  for (int t = 0; t < TYPES; t++)
    for (int v = 0; v < 8; v++) put(patterns[t][v], 0, all_types[t], v);
}

static void fill(void *buffer, size_t count, int type, int rank, int block)
{
  size_t size = size_of(all_types[type]);
  for (size_t i = 0; i < count; i++)
    memcpy((char *)buffer + i * size, patterns[type][element(rank, i, block)], size);
}

static double reduced(int n, size_t i, int block, ncclRedOp_t op, bool integer)
{
  double result = element(0, i, block);
  for (int r = 1; r < n; r++) {
    double x = element(r, i, block);
    result = op == ncclProd  ? result * x
             : op == ncclMax ? (x > result ? x : result)
             : op == ncclMin ? (x < result ? x : result)
                             : result + x;
  }
  if (op == ncclAvg) result = integer ? (double)((int)result / n) : result / n;
  return result;
}

static bool close_to(double x, double y, ncclDataType_t type, ncclRedOp_t op)
{
  if (op == ncclProd && size_of(type) == 1) return true; /* wraps; tested on its own */
  double unit = type == ncclFloat16    ? 0x1p-11
                : type == ncclBfloat16 ? 0x1p-8
                : type == ncclFloat32  ? 0x1p-23
                                       : 0;
  if (op == ncclSum || op == ncclMax || op == ncclMin) unit = 0; /* exact */
  double difference = x < y ? y - x : x - y;
  return difference <= unit * (y < 0 ? -y : y) + (op == ncclAvg ? 1e-15 * y : 0);
}

/* ---- collectives --------------------------------------------------------------------------- */

struct buffers {
  char *send, *receive; /* device */
  char *in, *out;       /* host; out is filled with a sentinel before the call */
  size_t bytes;
};

static const struct shape {
  size_t count;
  int types;   /* how many of all_types */
  int all_ops; /* all operations or only the sum */
} shapes[] = {{0, TYPES, 0}, {1, TYPES, 1}, {3, TYPES, 1}, {1021, TYPES, 1}, {BIG, 1, 0}};

enum collective { ALLREDUCE, REDUCE, REDUCESCATTER, ALLGATHER, BROADCAST, ALLTOALL, COLLECTIVES };

static void one_collective(struct rank *me, enum collective which, size_t count, int t,
                           ncclRedOp_t op, int root, bool in_place)
{
  ncclDataType_t type = all_types[t];
  size_t size = size_of(type), n = (size_t)me->n, r = (size_t)me->rank;
  size_t in_blocks = which == REDUCESCATTER || which == ALLTOALL ? n : 1;
  size_t out_blocks = which == ALLGATHER || which == ALLTOALL ? n : 1;
  size_t in_bytes = in_blocks * count * size, out_bytes = out_blocks * count * size;
  char *in = host_memory(in_bytes), *out = host_memory(out_bytes);
  if (me->send == NULL) me->send = device_memory(POOL_BYTES);
  if (me->receive == NULL) me->receive = device_memory(POOL_BYTES);
  REQUIRE(in_bytes <= POOL_BYTES && out_bytes <= POOL_BYTES);
  char *receive = me->receive, *send = in_place ? receive : me->send;
  for (size_t b = 0; b < in_blocks; b++) fill(in + b * count * size, count, t, me->rank, (int)b);
  memset(out, 0x5A, out_bytes);
  CUDA(cudaMemcpyAsync(receive, out, out_bytes, cudaMemcpyHostToDevice, me->stream));
  if (in_place && which == ALLGATHER) send = receive + r * count * size;
  CUDA(cudaMemcpyAsync(send, in, in_bytes, cudaMemcpyHostToDevice, me->stream));
  char *result = receive;
  switch (which) {
  case ALLREDUCE:
    NCCL(ncclAllReduce(send, receive, count, type, op, me->comm, me->stream));
    break;
  case REDUCE:
    NCCL(ncclReduce(send, receive, count, type, op, root, me->comm, me->stream));
    break;
  case REDUCESCATTER:
    if (in_place) result = receive + r * count * size;
    NCCL(ncclReduceScatter(send, result, count, type, op, me->comm, me->stream));
    break;
  case ALLGATHER:
    NCCL(ncclAllGather(send, receive, count, type, me->comm, me->stream));
    break;
  case BROADCAST:
    NCCL(ncclBroadcast(send, receive, count, type, root, me->comm, me->stream));
    break;
  default:
    NCCL(ncclAlltoAll(send, receive, count, type, me->comm, me->stream));
  }
  CUDA(cudaMemcpyAsync(out, result, out_bytes, cudaMemcpyDeviceToHost, me->stream));
  CUDA(cudaStreamSynchronize(me->stream));
  bool integer = type <= ncclUint64;
  bool has_result = which != REDUCE || me->rank == root;
  for (size_t i = 0; i < count && has_result; i++) {
    for (size_t b = 0; b < out_blocks; b++) {
      double got = get(out, b * count + i, type);
      double want = which == ALLREDUCE || which == REDUCE ? reduced(me->n, i, 0, op, integer)
                    : which == REDUCESCATTER              ? reduced(me->n, i, me->rank, op, integer)
                    : which == ALLGATHER                  ? element((int)b, i, 0)
                    : which == BROADCAST                  ? element(root, i, 0)
                                                          : element((int)b, i, me->rank);
      if (!close_to(got, want, type, op)) {
        fprintf(stderr, "collective %d rank %d of %d type %d op %d count %zu [%zu]: %g not %g\n",
                which, me->rank, me->n, type, op, count, i, got, want);
        REQUIRE(!"wrong data");
      }
    }
  }
  free(in);
  free(out);
}

static void collectives_body(struct rank *me)
{
  for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++)
    for (int t = 0; t < shapes[s].types; t++)
      for (int op = ncclSum; op < (shapes[s].all_ops ? ncclNumOps : ncclProd); op++)
        for (int which = 0; which < COLLECTIVES; which++) {
          if (op != ncclSum && which > REDUCESCATTER) continue;
          if (shapes[s].count == BIG && me->n == 7 && which == ALLTOALL) continue;
          int type = shapes[s].count == BIG ? 7 : t;
          one_collective(me, which, shapes[s].count, type, op, (t + op) % me->n, false);
          if (which != ALLTOALL)
            one_collective(me, which, shapes[s].count, type, op, (t + op) % me->n, true);
        }
}

static void test_collectives(void **state)
{
  (void)state;
  static const int ranks[] = {1, 2, 3, 4, 7};
  for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++)
    run_ranks(ranks[i], collectives_body);
}

/* 64 ranks, so that the smallest rings are used too. */
static void many_ranks_body(struct rank *me)
{
  one_collective(me, ALLREDUCE, 5, 7, ncclSum, 0, false);
  one_collective(me, ALLREDUCE, 20011, 2, ncclSum, 0, true);
  one_collective(me, ALLTOALL, 1500, 3, ncclSum, 0, false);
  one_collective(me, BROADCAST, 10007, 4, ncclSum, 33, false);
}

static void test_many_ranks(void **state)
{
  (void)state;
  run_ranks(MOST_RANKS, many_ranks_body);
}

/* Sums whose bits depend on the order are the same on all ranks and equal a sum in rank order. */
static float irregular(int rank, size_t i)
{
  return (float)((double)((i * 2654435761u + (size_t)rank * 40503u) % 1000003u) / 1000.0 - 333.3);
}

static void order_body(struct rank *me)
{
  enum { COUNT = 100003 };
  float *host = host_memory(COUNT * sizeof(float));
  float *device = device_memory(COUNT * sizeof(float));
  for (size_t i = 0; i < COUNT; i++) host[i] = irregular(me->rank, i);
  CUDA(cudaMemcpy(device, host, COUNT * sizeof(float), cudaMemcpyHostToDevice));
  NCCL(ncclAllReduce(device, device, COUNT, ncclFloat, ncclSum, me->comm, me->stream));
  CUDA(cudaStreamSynchronize(me->stream));
  CUDA(cudaMemcpy(host, device, COUNT * sizeof(float), cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < COUNT; i++) {
    float sum = irregular(0, i);
    for (int r = 1; r < me->n; r++) sum += irregular(r, i);
    REQUIRE(bits_from(sum) == bits_from(host[i]));
  }
  CUDA(cudaFree(device));
  free(host);
}

static void test_rank_order(void **state)
{
  (void)state;
  run_ranks(5, order_body);
}

/* Rounding of the 16-bit types: two addends, all bit patterns for one of them. */
static uint16_t nearest(double value, bool half)
{
  uint16_t best = 0;
  double distance = 1e300;
  unsigned last = half ? 0x7bff : 0x7f7f;
  /* binary search for the neighbour below, then compare with the one above */
  unsigned low = 0, high = last;
  double magnitude = value < 0 ? -value : value;
  if (magnitude > 1e39) magnitude = 1e39; /* infinity, too, is beyond all */
  while (low < high) {
    unsigned middle = (low + high + 1) / 2;
    double x = half ? half_value((uint16_t)middle) : (double)float_from(middle << 16);
    if (x <= magnitude)
      low = middle;
    else
      high = middle - 1;
  }
  for (unsigned x = low; x <= low + 1; x++) {
    double candidate = x > last && half ? 65536.0
                       : half           ? half_value((uint16_t)x)
                                        : (double)float_from(x << 16);
    if (!half && x > last) candidate = 0x1p128;
    double d = candidate < magnitude ? magnitude - candidate : candidate - magnitude;
    if (d < distance || (d == distance && (x & 1) == 0)) {
      distance = d;
      best = (uint16_t)x;
    }
  }
  return (uint16_t)(best | (value < 0 ? 0x8000 : 0));
}

static void rounding_body(struct rank *me)
{
  enum { COUNT = 65536 };
  static const uint16_t addends[2][5] = {{0x0000, 0x3c01, 0x0001, 0x7bff, 0xb555},
                                         {0x0000, 0x3f81, 0x0001, 0x7f7f, 0xbf55}};
  uint16_t *host = host_memory(COUNT * 2), *device = device_memory(COUNT * 2);
  for (int half = 0; half < 2; half++)
    for (int k = 0; k < 5; k++) {
      uint16_t addend = addends[1 - half][k];
      unsigned infinity = half ? 0x7c00 : 0x7f80;
      for (unsigned i = 0; i < COUNT; i++) host[i] = me->rank == 0 ? (uint16_t)i : addend;
      CUDA(cudaMemcpy(device, host, COUNT * 2, cudaMemcpyHostToDevice));
      NCCL(ncclAllReduce(device, device, COUNT, half ? ncclHalf : ncclBfloat16, ncclSum, me->comm,
                         me->stream));
      CUDA(cudaStreamSynchronize(me->stream));
      CUDA(cudaMemcpy(host, device, COUNT * 2, cudaMemcpyDeviceToHost));
      for (unsigned i = 0; i < COUNT; i++) {
        if ((i & 0x7fff) > infinity) {
          REQUIRE((host[i] & 0x7fff) > infinity); /* NaN stays NaN */
        } else if ((i & 0x7fff) == infinity) {
          REQUIRE(host[i] == i);
        } else {
          float sum = half ? (float)half_value((uint16_t)i) + (float)half_value(addend)
                           : float_from(i << 16) + float_from((uint32_t)addend << 16);
          uint16_t want = nearest((double)sum, half != 0);
          bool zero = (want & 0x7fff) == 0 && (host[i] & 0x7fff) == 0;
          bool overflow = (want & 0x7fff) == infinity && host[i] == want;
          if (!(host[i] == want || zero || overflow))
            fprintf(stderr, "%s %04x + %04x = %04x, not %04x\n", half ? "half" : "bfloat16", i,
                    addend, host[i], want);
          REQUIRE(host[i] == want || zero || overflow);
        }
      }
    }
  /* Bytes wrap. */
  uint8_t bytes[2] = {200, 16}, *small = device_memory(2);
  CUDA(cudaMemcpy(small, bytes, 2, cudaMemcpyHostToDevice));
  NCCL(ncclAllReduce(small, small, 1, ncclUint8, ncclSum, me->comm, me->stream));
  NCCL(ncclAllReduce(small + 1, small + 1, 1, ncclUint8, ncclProd, me->comm, me->stream));
  CUDA(cudaStreamSynchronize(me->stream));
  CUDA(cudaMemcpy(bytes, small, 2, cudaMemcpyDeviceToHost));
  REQUIRE(bytes[0] == (uint8_t)400 && bytes[1] == 0);
  CUDA(cudaFree(small));
  CUDA(cudaFree(device));
  free(host);
}

static void test_rounding(void **state)
{
  (void)state;
  run_ranks(2, rounding_body);
}

/* ---- groups -------------------------------------------------------------------------------- */

/* Everyone to everyone, oneself included, with sizes that differ per pair and exceed the rings. */
static size_t pair_count(int from, int to)
{
  return (size_t)(from * 31 + to * 17) % 5 * 50000;
}

static void group_body(struct rank *me)
{
  char *send[MOST_RANKS], *receive[MOST_RANKS], *host = host_memory(5 * 50000);
  cudaStream_t second;
  CUDA(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
  for (int p = 0; p < me->n; p++) {
    send[p] = device_memory(pair_count(me->rank, p) + 16);
    receive[p] = device_memory(pair_count(p, me->rank) + 16);
    CUDA(cudaMemset(send[p], me->rank * 8 + p, pair_count(me->rank, p) + 16));
    CUDA(cudaMemset(receive[p], 0xEE, pair_count(p, me->rank) + 16));
  }
  for (int round = 0; round < 3; round++) {
    NCCL(ncclGroupStart());
    NCCL(ncclGroupStart()); /* groups nest */
    for (int p = 0; p < me->n; p++) {
      cudaStream_t stream = round == 2 && p % 2 == 1 ? second : me->stream;
      NCCL(ncclSend(send[p], pair_count(me->rank, p), ncclChar, p, me->comm, stream));
      if (round != 1)
        NCCL(ncclRecv(receive[p], pair_count(p, me->rank), ncclChar, p, me->comm, stream));
    }
    NCCL(ncclGroupEnd());
    for (int p = me->n - 1; p >= 0 && round == 1; p--)
      NCCL(ncclRecv(receive[p], pair_count(p, me->rank), ncclChar, p, me->comm, me->stream));
    NCCL(ncclGroupEnd());
    CUDA(cudaStreamSynchronize(me->stream));
    CUDA(cudaStreamSynchronize(second));
    for (int p = 0; p < me->n; p++) {
      size_t count = pair_count(p, me->rank);
      CUDA(cudaMemcpy(host, receive[p], count + 16, cudaMemcpyDeviceToHost));
      for (size_t i = 0; i < count; i++) REQUIRE(host[i] == (char)(p * 8 + me->rank));
      for (size_t i = count; i < count + 16; i++) REQUIRE(host[i] == (char)0xEE);
      CUDA(cudaMemset(receive[p], 0xEE, count + 16));
    }
  }
  /* Several messages to one peer in a group keep their order. */
  int next = (me->rank + 1) % me->n, previous = (me->rank + me->n - 1) % me->n;
  char *many = device_memory(20), *arrived = device_memory(20);
  for (int i = 0; i < 20; i++) CUDA(cudaMemset(many + i, i * 3, 1));
  NCCL(ncclGroupStart());
  for (int i = 0; i < 20; i++) {
    NCCL(ncclSend(many + i, 1, ncclChar, next, me->comm, me->stream));
    NCCL(ncclRecv(arrived + i, 1, ncclChar, previous, me->comm, me->stream));
  }
  NCCL(ncclGroupEnd());
  CUDA(cudaStreamSynchronize(me->stream));
  CUDA(cudaMemcpy(host, arrived, 20, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 20; i++) REQUIRE(host[i] == i * 3);
  CUDA(cudaFree(many));
  CUDA(cudaFree(arrived));
  for (int p = 0; p < me->n; p++) {
    CUDA(cudaFree(send[p]));
    CUDA(cudaFree(receive[p]));
  }
  CUDA(cudaStreamDestroy(second));
  free(host);
}

static void test_groups(void **state)
{
  (void)state;
  run_ranks(1, group_body);
  run_ranks(4, group_body);
  run_ranks(7, group_body);
}

/* One thread that drives all ranks. */
static void *init_thread(void *argument)
{
  struct rank *me = argument;
  open_rank(me);
  return NULL;
}

static void test_one_thread_for_all_ranks(void **state)
{
  (void)state;
  enum { N = 3, COUNT = 70000 };
  struct rank ranks[N];
  pthread_t threads[N];
  int *buffer[N], *host = host_memory(COUNT * sizeof(int));
  ncclUniqueId id;
  NCCL(ncclGetUniqueId(&id));
  for (int r = 0; r < N; r++) {
    ranks[r] = (struct rank){.rank = r, .n = N, .id = id};
    REQUIRE(pthread_create(&threads[r], NULL, init_thread, &ranks[r]) == 0);
  }
  for (int r = 0; r < N; r++) pthread_join(threads[r], NULL);
  for (int r = 0; r < N; r++) {
    CUDA(cudaSetDevice(r));
    buffer[r] = device_memory(COUNT * sizeof(int));
    for (int i = 0; i < COUNT; i++) host[i] = r + i;
    CUDA(cudaMemcpyAsync(buffer[r], host, COUNT * sizeof(int), cudaMemcpyHostToDevice,
                         ranks[r].stream));
  }
  NCCL(ncclGroupStart());
  for (int r = 0; r < N; r++)
    NCCL(ncclAllReduce(buffer[r], buffer[r], COUNT, ncclInt, ncclSum, ranks[r].comm,
                       ranks[r].stream));
  NCCL(ncclGroupEnd());
  for (int r = 0; r < N; r++) {
    CUDA(cudaSetDevice(r));
    CUDA(cudaMemcpyAsync(host, buffer[r], COUNT * sizeof(int), cudaMemcpyDeviceToHost,
                         ranks[r].stream));
    CUDA(cudaStreamSynchronize(ranks[r].stream));
    for (int i = 0; i < COUNT; i++) REQUIRE(host[i] == 3 * i + 3);
    CUDA(cudaFree(buffer[r]));
    close_rank(&ranks[r]);
  }
  free(host);
}

/* ---- order over streams, many calls -------------------------------------------------------- */

/* Calls in two streams, one of them slow, run in the order of the host on every rank. */
static void two_streams_body(struct rank *me)
{
  enum { COUNT = 40000, ROUNDS = 10 };
  cudaStream_t second;
  CUDA(cudaStreamCreate(&second));
  int *a = device_memory(COUNT * sizeof(int)), *b = device_memory(COUNT * sizeof(int));
  int *host = host_memory(COUNT * sizeof(int));
  for (int i = 0; i < COUNT; i++) host[i] = 1;
  CUDA(cudaMemcpy(a, host, COUNT * sizeof(int), cudaMemcpyHostToDevice));
  CUDA(cudaMemcpy(b, host, COUNT * sizeof(int), cudaMemcpyHostToDevice));
  for (int round = 0; round < ROUNDS; round++) {
    if ((round + me->rank) % 3 == 0) slow(me->stream, 3);
    NCCL(ncclAllReduce(a, a, COUNT, ncclInt, ncclSum, me->comm, me->stream));
    NCCL(ncclAllReduce(b, b, COUNT - round, ncclInt, ncclMax, me->comm, second));
  }
  CUDA(cudaDeviceSynchronize());
  CUDA(cudaMemcpy(host, a, COUNT * sizeof(int), cudaMemcpyDeviceToHost));
  int want = 1;
  for (int round = 0; round < ROUNDS; round++) want *= me->n;
  for (int i = 0; i < COUNT; i++) REQUIRE(host[i] == want);
  CUDA(cudaMemcpy(host, b, COUNT * sizeof(int), cudaMemcpyDeviceToHost));
  for (int i = 0; i < COUNT; i++) REQUIRE(host[i] == 1);
  CUDA(cudaFree(a));
  CUDA(cudaFree(b));
  CUDA(cudaStreamDestroy(second));
  free(host);
}

static void test_two_streams(void **state)
{
  (void)state;
  run_ranks(4, two_streams_body);
}

static void many_calls_body(struct rank *me)
{
  enum { CALLS = 10000 };
  double *sum = device_memory(sizeof(double)), value = 1, zero = 0;
  CUDA(cudaMemcpy(sum, &zero, sizeof(zero), cudaMemcpyHostToDevice));
  for (int i = 0; i < CALLS; i++) switch (i % 4) {
    case 0:
      CUDA(cudaMemcpyAsync(sum, &value, sizeof(value), cudaMemcpyHostToDevice, me->stream));
      break;
    case 1:
    case 2:
      NCCL(ncclAllReduce(sum, sum, 1, ncclDouble, ncclSum, me->comm, me->stream));
      break;
    default:
      NCCL(ncclBroadcast(sum, sum, 1, ncclDouble, i % me->n, me->comm, me->stream));
    }
  CUDA(cudaStreamSynchronize(me->stream));
  CUDA(cudaMemcpy(&value, sum, sizeof(value), cudaMemcpyDeviceToHost));
  REQUIRE(value == (double)(me->n * me->n));
  CUDA(cudaFree(sum));
}

static void test_many_calls(void **state)
{
  (void)state;
  run_ranks(4, many_calls_body);
}

/* ---- split --------------------------------------------------------------------------------- */

static int sum_over(ncclComm_t comm, cudaStream_t stream, int value)
{
  int *device = device_memory(sizeof(int));
  CUDA(cudaMemcpy(device, &value, sizeof(int), cudaMemcpyHostToDevice));
  NCCL(ncclAllReduce(device, device, 1, ncclInt, ncclSum, comm, stream));
  CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaMemcpy(&value, device, sizeof(int), cudaMemcpyDeviceToHost));
  CUDA(cudaFree(device));
  return value;
}

static void split_body(struct rank *me)
{
  ncclComm_t half = NULL, reverse = NULL, some = NULL;
  int count = 0, rank = 0, device = -1;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.splitShare = 1;
  NCCL(ncclCommSplit(me->comm, me->rank % 2, me->rank, &half, &config));
  NCCL(ncclCommCount(half, &count));
  NCCL(ncclCommUserRank(half, &rank));
  NCCL(ncclCommCuDevice(half, &device));
  REQUIRE(count == (me->n + 1 - me->rank % 2) / 2 && rank == me->rank / 2 && device == me->rank);
  int want = 0;
  for (int r = me->rank % 2; r < me->n; r += 2) want += 1 << r;
  REQUIRE(sum_over(half, me->stream, 1 << me->rank) == want);
  NCCL(ncclCommSplit(me->comm, 7, -me->rank, &reverse, NULL));
  NCCL(ncclCommUserRank(reverse, &rank));
  REQUIRE(rank == me->n - 1 - me->rank);
  NCCL(ncclCommSplit(me->comm, me->rank == 0 ? NCCL_SPLIT_NOCOLOR : 0, 0, &some, NULL));
  REQUIRE((some == NULL) == (me->rank == 0));
  if (some != NULL) REQUIRE(sum_over(some, me->stream, 1) == me->n - 1);
  REQUIRE(sum_over(reverse, me->stream, 1) == me->n);
  REQUIRE(sum_over(me->comm, me->stream, 1) == me->n);
  /* Two communicators in one group, and destroyed at different times. */
  int *a = device_memory(4), *b = device_memory(4);
  NCCL(ncclGroupStart());
  NCCL(ncclAllReduce(a, a, 1, ncclInt, ncclMax, me->comm, me->stream));
  NCCL(ncclAllReduce(b, b, 1, ncclInt, ncclMax, half, me->stream));
  NCCL(ncclGroupEnd());
  CUDA(cudaFree(a));
  CUDA(cudaFree(b));
  if (me->rank == 1) nap(5);
  NCCL(ncclCommDestroy(half));
  NCCL(ncclCommDestroy(reverse));
  if (some != NULL) NCCL(ncclCommDestroy(some));
}

static void test_split(void **state)
{
  (void)state;
  run_ranks(1, split_body);
  run_ranks(4, split_body);
  run_ranks(7, split_body);
}

/* ---- windows ------------------------------------------------------------------------------- */

/* Each rank writes a word into the window of every other and rings; the others wait for all. */
struct push {
  ncclComm_t comm;
  ncclWindow_t window;
  int rank, n;
  uint32_t epoch;
};

static bool all_have_come(const void *argument)
{
  const struct push *push = argument;
  _Atomic uint32_t *flags = cpu_window_pointer(push->window, 0, push->rank);
  for (int r = 0; r < push->n; r++)
    if (atomic_load(&flags[r]) < push->epoch) return false;
  return true;
}

static void push_kernel(const void *argument)
{
  const struct push *push = argument;
  for (int p = 0; p < push->n; p++) {
    uint64_t *data = cpu_window_pointer(push->window, 4096, p);
    data[push->rank] = (uint64_t)push->rank * 1000 + push->epoch;
    _Atomic uint32_t *flags = cpu_window_pointer(push->window, 0, p);
    atomic_store(&flags[push->rank], push->epoch);
    cpu_notify(push->comm, p);
  }
  REQUIRE(cpu_wait(push->comm, all_have_come, push, 60));
  const uint64_t *data = cpu_window_pointer(push->window, 4096, push->rank);
  for (int r = 0; r < push->n; r++) REQUIRE(data[r] == (uint64_t)r * 1000 + push->epoch);
}

static bool never(const void *argument)
{
  (void)argument;
  return false;
}

static void window_body(struct rank *me)
{
  char *memory = NULL;
  ncclWindow_t window = NULL;
  size_t bytes = 4096 + 64 * 8;
  NCCL(ncclMemAlloc((void **)&memory, 4096 + bytes));
  CUDA(cudaMemset(memory, 0, 4096 + bytes));
  NCCL(ncclCommWindowRegister(me->comm, memory + 4096, bytes, &window, NCCL_WIN_COLL_SYMMETRIC));
  REQUIRE(window != NULL);
  REQUIRE(cpu_window_pointer(window, 8, me->rank) == memory + 4096 + 8);
  REQUIRE(cpu_window_pointer(window, 0, me->n) == NULL);
  REQUIRE(cpu_window_pointer(window, bytes + 1, 0) == NULL);
  struct push push = {me->comm, window, me->rank, me->n, 0};
  /* Between rounds a collective: nobody may overwrite what another still reads. */
  for (push.epoch = 1; push.epoch <= 20; push.epoch++) {
    CUDA(cpu_launch(me->stream, push_kernel, &push, sizeof(push)));
    NCCL(ncclAllReduce(memory, memory, 1, ncclInt, ncclSum, me->comm, me->stream));
  }
  CUDA(cudaStreamSynchronize(me->stream));
  double start = now();
  REQUIRE(!cpu_wait(me->comm, never, NULL, 0.05));
  REQUIRE(now() - start > 0.04);
  pthread_barrier_wait(&barrier);
  NCCL(ncclCommWindowDeregister(me->comm, window));

  /* What must fail, fails on every rank. */
  window = NULL;
  if (me->n > 1) {
    size_t size = me->rank == me->n - 1 ? 4096 : 8192;
    REQUIRE(ncclCommWindowRegister(me->comm, memory, size, &window, 0) == ncclInvalidUsage);
    REQUIRE(window == NULL);
  }
  char local[64];
  void *wrong = me->rank == 0 ? local : memory;
  REQUIRE(ncclCommWindowRegister(me->comm, wrong, 64, &window, 0) == ncclInvalidUsage);
  REQUIRE(ncclCommWindowRegister(me->comm, memory, 1 << 20, &window, 0) == ncclInvalidArgument);
  REQUIRE(ncclCommWindowRegister(me->comm, memory + 64, 64, &window, 0) == ncclInvalidArgument);
  REQUIRE(strstr(ncclGetLastError(NULL), "multiple of 4096") != NULL);
  void *handle = NULL;
  NCCL(ncclCommRegister(me->comm, memory, 4096, &handle));
  REQUIRE(handle != NULL);
  NCCL(ncclCommDeregister(me->comm, handle));
  REQUIRE(ncclCommRegister(me->comm, local, 64, &handle) == ncclInvalidArgument);
  NCCL(ncclMemFree(memory));
}

static void test_windows(void **state)
{
  (void)state;
  run_ranks(1, window_body);
  run_ranks(4, window_body);
}

static bool last_error_says(const char *text)
{
  bool says = strstr(ncclGetLastError(NULL), text) != NULL;
  if (!says) fprintf(stderr, "'%s' lacks '%s'\n", ncclGetLastError(NULL), text);
  return says;
}

/* Memory may go when it is no longer registered, and a registration when nothing uses it. */
static void registration_body(struct rank *me)
{
  char *memory = NULL;
  void *handle = NULL, *again = NULL;
  ncclWindow_t window = NULL;
  NCCL(ncclMemAlloc((void **)&memory, 8192));
  CUDA(cudaMemset(memory, 0, 8192));
  NCCL(ncclCommRegister(me->comm, memory, 8192, &handle));
  NCCL(ncclCommRegister(me->comm, memory + 64, 64, &again));
  REQUIRE(ncclMemFree(memory) == ncclInvalidUsage && last_error_says("still registered"));
  REQUIRE(cudaFree(memory) == cudaErrorNotPermitted);
  REQUIRE(strstr(cudaGetErrorString(cudaErrorNotPermitted), "ncclCommDeregister") != NULL);
  NCCL(ncclCommDeregister(me->comm, again));
  REQUIRE(ncclMemFree(memory) == ncclInvalidUsage);

  /* queued, and in a graph that is launched; kept, it is not in use */
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CUDA(cudaStreamBeginCapture(me->stream, cudaStreamCaptureModeThreadLocal));
  NCCL(ncclAllReduce(memory, memory, 16, ncclInt, ncclSum, me->comm, me->stream));
  CUDA(cudaStreamEndCapture(me->stream, &graph));
  CUDA(cudaGraphInstantiate(&exec, graph, 0));
  CUDA(cudaGraphDestroy(graph));
  for (int launched = 0; launched < 2; launched++) {
    slow(me->stream, 50);
    if (launched)
      CUDA(cudaGraphLaunch(exec, me->stream));
    else
      NCCL(ncclAllReduce(memory, memory, 16, ncclInt, ncclSum, me->comm, me->stream));
    REQUIRE(ncclCommDeregister(me->comm, handle) == ncclInvalidUsage);
    REQUIRE(last_error_says("ncclCommDeregister: a call that uses the memory is queued"));
    CUDA(cudaStreamSynchronize(me->stream));
  }
  NCCL(ncclCommDeregister(me->comm, handle));
  CUDA(cudaGraphExecDestroy(exec));
  REQUIRE(ncclCommDeregister(me->comm, handle) == ncclInvalidUsage && last_error_says("no such"));

  /* the same for a window; and a collective elsewhere in the same memory is no use of it */
  NCCL(ncclCommWindowRegister(me->comm, memory, 4096, &window, 0));
  REQUIRE(ncclMemFree(memory) == ncclInvalidUsage && last_error_says("still a window"));
  slow(me->stream, 50);
  NCCL(ncclAllReduce(memory, memory, 16, ncclInt, ncclSum, me->comm, me->stream));
  REQUIRE(ncclCommWindowDeregister(me->comm, window) == ncclInvalidUsage);
  REQUIRE(last_error_says("ncclCommWindowDeregister: a call that uses the memory is queued"));
  CUDA(cudaStreamSynchronize(me->stream));
  slow(me->stream, 50);
  NCCL(ncclAllReduce(memory + 4096, memory + 4096, 16, ncclInt, ncclSum, me->comm, me->stream));
  NCCL(ncclCommWindowDeregister(me->comm, window));
  CUDA(cudaStreamSynchronize(me->stream));

  /* cudaMalloc's memory cannot be a window; the last rank is named everywhere */
  char *plain = device_memory(8192), text[64];
  snprintf(text, sizeof(text), "the memory of rank %d is not from ncclMemAlloc", me->n - 1);
  REQUIRE(ncclCommWindowRegister(me->comm, me->rank == me->n - 1 ? plain : memory, 4096, &window,
                                 0) == ncclInvalidUsage);
  REQUIRE(last_error_says(text));
  CUDA(cudaFree(plain));

  /* what is left when the communicator goes */
  ncclComm_t other = NULL;
  void *left = NULL;
  NCCL(ncclCommSplit(me->comm, 0, 0, &other, NULL));
  NCCL(ncclCommRegister(other, memory, 64, &left));
  NCCL(ncclCommDestroy(other));
  REQUIRE(ncclCommDeregister(other, left) == ncclInvalidUsage);
  REQUIRE(last_error_says("ncclCommDeregister: the communicator is gone"));
  NCCL(ncclMemFree(memory));
  cudaGetLastError();
}

static void test_registration(void **state)
{
  (void)state;
  run_ranks(1, registration_body);
  run_ranks(3, registration_body);
}

/* ---- capture and replay -------------------------------------------------------------------- */

struct add {
  int *to;
  size_t count;
  int value;
};

static void add_kernel(const void *argument)
{
  const struct add *add = argument;
  for (size_t i = 0; i < add->count; i++) add->to[i] += add->value;
}

static void add_to(cudaStream_t stream, int *to, size_t count, int value)
{
  struct add add = {to, count, value};
  CUDA(cpu_launch(stream, add_kernel, &add, sizeof(add)));
}

static void graph_body(struct rank *me)
{
  enum { COUNT = 3000, REPLAYS = 20 };
  size_t bytes = COUNT * sizeof(int);
  int *in = device_memory(bytes), *out = device_memory(bytes), *side = device_memory(bytes);
  int *host = host_memory(bytes);
  cudaStream_t second;
  cudaEvent_t fork_event, join_event;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  enum cudaStreamCaptureStatus status;
  CUDA(cudaStreamCreate(&second));
  CUDA(cudaEventCreateWithFlags(&fork_event, cudaEventDisableTiming));
  CUDA(cudaEventCreate(&join_event));
  CUDA(cudaMemset(in, 0, bytes));

  CUDA(cudaStreamBeginCapture(me->stream, cudaStreamCaptureModeThreadLocal));
  CUDA(cudaStreamIsCapturing(me->stream, &status));
  REQUIRE(status == cudaStreamCaptureStatusActive);
  REQUIRE(cudaStreamSynchronize(me->stream) == cudaErrorStreamCaptureUnsupported);
  REQUIRE(cudaStreamQuery(me->stream) == cudaErrorStreamCaptureUnsupported);
  REQUIRE(cudaDeviceSynchronize() == cudaErrorStreamCaptureUnsupported);
  add_to(me->stream, in, COUNT, 1);
  CUDA(cudaEventRecord(fork_event, me->stream));
  REQUIRE(cudaEventQuery(fork_event) == cudaErrorCapturedEvent);
  CUDA(cudaStreamWaitEvent(second, fork_event, 0));
  CUDA(cudaStreamIsCapturing(second, &status));
  REQUIRE(status == cudaStreamCaptureStatusActive);
  CUDA(cudaMemsetAsync(side, 0, bytes, second));
  add_to(second, side, COUNT, 1000000);
  NCCL(ncclGroupStart());
  NCCL(ncclAllReduce(in, out, COUNT, ncclInt, ncclSum, me->comm, me->stream));
  NCCL(ncclGroupEnd());
  CUDA(cudaEventRecord(join_event, second));
  CUDA(cudaStreamWaitEvent(me->stream, join_event, 0));
  CUDA(cudaMemcpyAsync(host, out, bytes, cudaMemcpyDeviceToHost, me->stream));
  CUDA(cudaStreamEndCapture(me->stream, &graph));
  CUDA(cudaStreamIsCapturing(second, &status));
  REQUIRE(status == cudaStreamCaptureStatusNone);
  CUDA(cudaGraphInstantiate(&exec, graph, 0));
  CUDA(cudaGraphDestroy(graph)); /* the executable does not need it any more */
  CUDA(cudaGraphUpload(exec, me->stream));
  CUDA(cudaMemcpy(host, in, bytes, cudaMemcpyDeviceToHost));
  REQUIRE(host[0] == 0); /* capturing runs nothing */

  for (int replay = 1; replay <= REPLAYS; replay++) {
    CUDA(cudaGraphLaunch(exec, replay % 2 == 0 ? me->stream : second));
    /* an eager call on the same communicator, queued after the launch, must come after it */
    NCCL(ncclAllReduce(side, side, COUNT, ncclInt, ncclMax, me->comm, second));
    CUDA(cudaDeviceSynchronize());
    for (int i = 0; i < COUNT; i++) REQUIRE(host[i] == me->n * replay);
  }
  for (int i = 0; i < 50; i++) CUDA(cudaGraphLaunch(exec, me->stream));
  CUDA(cudaGraphExecDestroy(exec)); /* while launches are queued */
  CUDA(cudaStreamSynchronize(me->stream));
  for (int i = 0; i < COUNT; i++) REQUIRE(host[i] == me->n * (REPLAYS + 50));
  CUDA(cudaMemcpy(host, side, bytes, cudaMemcpyDeviceToHost));
  for (int i = 0; i < COUNT; i++) REQUIRE(host[i] == 1000000);
  CUDA(cudaEventDestroy(fork_event));
  CUDA(cudaEventDestroy(join_event));
  CUDA(cudaStreamDestroy(second));
  CUDA(cudaFree(in));
  CUDA(cudaFree(out));
  CUDA(cudaFree(side));
  free(host);
}

static void test_graphs(void **state)
{
  (void)state;
  run_ranks(1, graph_body);
  run_ranks(4, graph_body);
}

static void test_capture_errors(void **state)
{
  (void)state;
  cudaStream_t a, b, c;
  cudaEvent_t event, other;
  cudaGraph_t graph = NULL;
  CUDA(cudaSetDevice(0));
  CUDA(cudaStreamCreate(&a));
  CUDA(cudaStreamCreate(&b));
  CUDA(cudaStreamCreate(&c));
  CUDA(cudaEventCreate(&event));
  CUDA(cudaEventCreate(&other));
  int *memory = device_memory(sizeof(int));

  REQUIRE(cudaStreamEndCapture(a, &graph) == cudaErrorInvalidValue);
  REQUIRE(cudaStreamBeginCapture(NULL, cudaStreamCaptureModeGlobal) ==
          cudaErrorStreamCaptureUnsupported);
  /* forked work that does not come back */
  CUDA(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
  CUDA(cudaEventRecord(event, a));
  CUDA(cudaStreamWaitEvent(b, event, 0));
  add_to(b, memory, 1, 1);
  REQUIRE(cudaStreamEndCapture(b, &graph) == cudaErrorStreamCaptureUnmatched);
  CUDA(cudaEventRecord(other, b));
  add_to(b, memory, 1, 1); /* after the event, so waiting for the event is not enough */
  CUDA(cudaStreamWaitEvent(a, other, 0));
  REQUIRE(cudaStreamEndCapture(a, &graph) == cudaErrorStreamCaptureUnjoined && graph == NULL);
  /* an event from a capture is of no use outside */
  REQUIRE(cudaStreamWaitEvent(a, event, 0) == cudaErrorCapturedEvent);
  float milliseconds;
  REQUIRE(cudaEventElapsedTime(&milliseconds, event, event) == cudaErrorCapturedEvent);
  /* an event from outside is of no use in a capture, and captures do not mix */
  CUDA(cudaEventRecord(event, c));
  CUDA(cudaStreamBeginCapture(a, cudaStreamCaptureModeRelaxed));
  REQUIRE(cudaStreamBeginCapture(a, cudaStreamCaptureModeRelaxed) ==
          cudaErrorStreamCaptureUnsupported);
  REQUIRE(cudaStreamWaitEvent(a, event, 0) == cudaErrorStreamCaptureIsolation);
  CUDA(cudaStreamBeginCapture(b, cudaStreamCaptureModeRelaxed));
  CUDA(cudaEventRecord(other, b));
  REQUIRE(cudaStreamWaitEvent(a, other, 0) == cudaErrorStreamCaptureMerge);
  REQUIRE(cudaStreamDestroy(a) == cudaErrorStreamCaptureUnsupported);
  CUDA(cudaStreamEndCapture(b, &graph));
  CUDA(cudaGraphDestroy(graph));
  CUDA(cudaStreamEndCapture(a, &graph));
  CUDA(cudaGraphDestroy(graph));
  enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
  REQUIRE(mode == cudaStreamCaptureModeGlobal);
  CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
  REQUIRE(mode == cudaStreamCaptureModeRelaxed);
  CUDA(cudaFree(memory));
  CUDA(cudaEventDestroy(event));
  CUDA(cudaEventDestroy(other));
  CUDA(cudaStreamDestroy(a));
  CUDA(cudaStreamDestroy(b));
  CUDA(cudaStreamDestroy(c));
}

/* ---- streams, events, memory --------------------------------------------------------------- */

static void set_flag(void *argument)
{
  atomic_store((atomic_int *)argument, 1);
}

static void test_asynchrony(void **state)
{
  (void)state;
  cudaStream_t stream;
  CUDA(cudaSetDevice(0));
  CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -1));
  int host = 5, *device = device_memory(sizeof(int)), *pinned = NULL;
  CUDA(cudaMallocHost((void **)&pinned, sizeof(int)));
  *pinned = 0;
  slow(stream, 300);
  CUDA(cudaMemcpyAsync(device, &host, sizeof(int), cudaMemcpyHostToDevice, stream));
  host = 6; /* allowed: ordinary host memory was read by the call */
  CUDA(cudaMemcpyAsync(pinned, device, sizeof(int), cudaMemcpyDeviceToHost, stream));
  atomic_int flag = 0;
  CUDA(cudaLaunchHostFunc(stream, set_flag, &flag));
  REQUIRE(cudaStreamQuery(stream) == cudaErrorNotReady);
  REQUIRE(cudaGetLastError() != cudaErrorNotReady);
  REQUIRE(atomic_load(&flag) == 0); /* the copy before it has not happened either */
  CUDA(cudaStreamSynchronize(stream));
  REQUIRE(*pinned == 5 && atomic_load(&flag) == 1);
  CUDA(cudaStreamQuery(stream));

  /* The same on the default stream; cudaMemcpy comes after what it holds. */
  *pinned = 0;
  slow(NULL, 100);
  CUDA(cudaMemsetAsync(device, 0, sizeof(int), NULL));
  REQUIRE(cudaStreamQuery(NULL) == cudaErrorNotReady);
  CUDA(cudaMemcpy(pinned, device, sizeof(int), cudaMemcpyDefault));
  REQUIRE(*pinned == 0);
  /* cudaFree waits for the device. */
  double start = now();
  slow(stream, 100);
  CUDA(cudaFree(device));
  REQUIRE(now() - start > 0.09);
  CUDA(cudaFreeHost(pinned));
  CUDA(cudaStreamDestroy(stream));
}

static void spin_then_set_flag(void *argument)
{
  for (double end = now() + 0.1; now() < end;) continue;
  set_flag(argument);
}

static void spin_until_flag(void *argument)
{
  while (atomic_load((atomic_int *)argument) == 0) continue;
}

static void test_waiting_for_threads(void **state)
{
  (void)state;
  cudaStream_t stream;
  atomic_int flag = 0;
  CUDA(cudaSetDevice(0));
  CUDA(cudaStreamCreate(&stream));
  CUDA(cudaLaunchHostFunc(stream, spin_then_set_flag, &flag));
  REQUIRE(cpu_wait_for_threads(60));
  REQUIRE(atomic_load(&flag) == 1);

  atomic_store(&flag, 0);
  CUDA(cudaLaunchHostFunc(stream, spin_until_flag, &flag));
  REQUIRE(!cpu_wait_for_threads(0.01));
  atomic_store(&flag, 1);
  CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaStreamDestroy(stream));
}

static void test_events(void **state)
{
  (void)state;
  cudaStream_t a, b;
  cudaEvent_t start, end, untimed;
  float milliseconds = 0;
  CUDA(cudaSetDevice(1));
  CUDA(cudaStreamCreate(&a));
  CUDA(cudaStreamCreate(&b));
  CUDA(cudaEventCreate(&start));
  CUDA(cudaEventCreate(&end));
  CUDA(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
  CUDA(cudaEventQuery(start)); /* never recorded: nothing to wait for */
  CUDA(cudaEventSynchronize(start));
  CUDA(cudaStreamWaitEvent(a, start, 0));
  REQUIRE(cudaEventElapsedTime(&milliseconds, start, end) == cudaErrorInvalidResourceHandle);
  CUDA(cudaEventRecord(start, a));
  slow(a, 100);
  CUDA(cudaEventRecord(end, a));
  REQUIRE(cudaEventQuery(end) == cudaErrorNotReady);
  REQUIRE(cudaEventElapsedTime(&milliseconds, start, end) == cudaErrorNotReady);
  CUDA(cudaEventSynchronize(end));
  CUDA(cudaEventElapsedTime(&milliseconds, start, end));
  REQUIRE(milliseconds > 95 && milliseconds < 5000);
  CUDA(cudaEventRecord(untimed, a));
  CUDA(cudaEventSynchronize(untimed));
  REQUIRE(cudaEventElapsedTime(&milliseconds, start, untimed) == cudaErrorInvalidResourceHandle);

  /* b adds after a, however slow a is; the event may be destroyed while it is waited for. */
  int *memory = device_memory(sizeof(int)), value = 0;
  CUDA(cudaMemset(memory, 0, sizeof(int)));
  for (int i = 0; i < 50; i++) {
    cudaEvent_t event;
    CUDA(cudaEventCreate(&event));
    if (i % 10 == 0) slow(i % 2 == 0 ? a : b, 5);
    add_to(i % 2 == 0 ? a : b, memory, 1, 1);
    CUDA(cudaEventRecord(event, i % 2 == 0 ? a : b));
    CUDA(cudaStreamWaitEvent(i % 2 == 0 ? b : a, event, 0));
    CUDA(cudaEventDestroy(event));
  }
  CUDA(cudaStreamSynchronize(b));
  CUDA(cudaMemcpy(&value, memory, sizeof(int), cudaMemcpyDeviceToHost));
  REQUIRE(value == 50);
  CUDA(cudaFree(memory));
  CUDA(cudaEventDestroy(start));
  CUDA(cudaEventDestroy(end));
  CUDA(cudaEventDestroy(untimed));
  CUDA(cudaStreamDestroy(a));
  CUDA(cudaStreamDestroy(b));
}

static void test_memory(void **state)
{
  (void)state;
  size_t free_bytes = 0, total = 0, later = 0;
  void *a = NULL, *b = NULL;
  unsigned char bytes[64];
  CUDA(cudaSetDevice(2));
  CUDA(cudaMemGetInfo(&free_bytes, &total));
  REQUIRE(free_bytes == total && total == (size_t)2 << 30);
  CUDA(cudaMalloc(&a, (size_t)1 << 30));
  REQUIRE(cudaMalloc(&b, ((size_t)1 << 30) + 1) == cudaErrorMemoryAllocation && b == NULL);
  REQUIRE(cudaPeekAtLastError() == cudaErrorMemoryAllocation);
  REQUIRE(cudaGetLastError() == cudaErrorMemoryAllocation && cudaGetLastError() == cudaSuccess);
  REQUIRE(ncclMemAlloc(&b, (size_t)2 << 30) == ncclUnhandledCudaError);
  REQUIRE(strstr(ncclGetLastError(NULL), "out of memory") != NULL);
  REQUIRE(cudaMalloc(&b, SIZE_MAX) == cudaErrorMemoryAllocation);
  CUDA(cudaMemGetInfo(&later, &total));
  REQUIRE(later == total - ((size_t)1 << 30));
  /* fresh memory is neither zero nor what it was before */
  CUDA(cudaMemcpy(bytes, a, sizeof(bytes), cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < sizeof(bytes); i++) REQUIRE(bytes[i] != 0);
  CUDA(cudaFree(a));
  REQUIRE(cudaFree(a) == cudaErrorInvalidValue);
  REQUIRE(cudaFree(bytes) == cudaErrorInvalidValue);
  CUDA(cudaFree(NULL));
  NCCL(ncclMemFree(NULL));
  CUDA(cudaMemGetInfo(&later, &total));
  REQUIRE(later == free_bytes);
  CUDA(cudaMalloc(&a, 0));
  REQUIRE(a == NULL);

  CUDA(cudaMalloc(&a, 100));
  REQUIRE(cudaMemcpy(a, bytes, 101, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  REQUIRE(cudaMemcpy(bytes, bytes, 1, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
  REQUIRE(cudaMemset(bytes, 0, 1) == cudaErrorInvalidValue);
  REQUIRE(cudaMemcpy(a, bytes, 1, (enum cudaMemcpyKind)9) == cudaErrorInvalidValue);
  struct cudaPointerAttributes attributes;
  CUDA(cudaPointerGetAttributes(&attributes, (char *)a + 99));
  REQUIRE(attributes.type == cudaMemoryTypeDevice && attributes.device == 2);
  CUDA(cudaPointerGetAttributes(&attributes, bytes));
  REQUIRE(attributes.type == cudaMemoryTypeUnregistered);
  CUDA(cudaHostAlloc(&b, 100, cudaHostAllocPortable));
  CUDA(cudaPointerGetAttributes(&attributes, b));
  REQUIRE(attributes.type == cudaMemoryTypeHost);
  REQUIRE(cudaFree(b) == cudaErrorInvalidValue);
  CUDA(cudaMemcpy(a, b, 100, cudaMemcpyHostToDevice));
  CUDA(cudaFreeHost(b));
  CUDA(cudaFree(a));
}

static void test_devices(void **state)
{
  (void)state;
  int count = 0, device = -1, value = -1;
  char first[32], second[32];
  struct cudaDeviceProp properties;
  CUDA(cudaGetDeviceCount(&count));
  REQUIRE(count == 64);
  CUDA(cudaSetDevice(63));
  CUDA(cudaGetDevice(&device));
  REQUIRE(device == 63);
  REQUIRE(cudaSetDevice(64) == cudaErrorInvalidDevice);
  REQUIRE(cudaSetDevice(-1) == cudaErrorInvalidDevice);
  CUDA(cudaDeviceGetPCIBusId(first, sizeof(first), 0));
  CUDA(cudaDeviceGetPCIBusId(second, sizeof(second), 63));
  REQUIRE(strcmp(first, second) != 0);
  CUDA(cudaGetDeviceProperties(&properties, 5));
  REQUIRE(strcmp(properties.name, "CPU stand-in") == 0);
  CUDA(cudaDeviceGetAttribute(&value, cudaDevAttrPciBusId, 5));
  REQUIRE(value == properties.pciBusID);
  CUDA(cudaDeviceCanAccessPeer(&value, 0, 1));
  REQUIRE(value == 1);
  CUDA(cudaDeviceEnablePeerAccess(0, 0));
  REQUIRE(cudaDeviceEnablePeerAccess(0, 0) == cudaErrorPeerAccessAlreadyEnabled);
  REQUIRE(strcmp(cudaGetErrorName(cudaErrorNotReady), "cudaErrorNotReady") == 0);
  REQUIRE(strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory") == 0);
  CUDA(cudaRuntimeGetVersion(&value));
  REQUIRE(value == CUDART_VERSION);
  NCCL(ncclGetVersion(&value));
  REQUIRE(value == NCCL_VERSION_CODE && value == NCCL_VERSION(2, 28, 9));
  cudaGetLastError();
}

/* ---- NCCL's errors ------------------------------------------------------------------------- */

static void errors_body(struct rank *me)
{
  float *buffer = device_memory(64), local[16] = {0};
  cudaStream_t foreign, s = me->stream;
  ncclComm_t c = me->comm;
  ncclUniqueId id;
  NCCL(ncclGetUniqueId(&id));
  REQUIRE(ncclAllReduce(buffer, buffer, 16, ncclFloat, ncclSum, NULL, s) == ncclInvalidArgument);
  REQUIRE(ncclAllReduce(buffer, buffer, 16, (ncclDataType_t)99, ncclSum, c, s) ==
          ncclInvalidArgument);
  REQUIRE(ncclAllReduce(buffer, buffer, 16, (ncclDataType_t)-1, ncclSum, c, s) ==
          ncclInvalidArgument);
  REQUIRE(ncclAllReduce(buffer, buffer, 16, ncclFloat, (ncclRedOp_t)99, c, s) ==
          ncclInvalidArgument);
  REQUIRE(ncclAllReduce(buffer, buffer, 17, ncclFloat, ncclSum, c, s) == ncclInvalidArgument);
  REQUIRE(strstr(ncclGetLastError(c), "68 bytes") != NULL);
  REQUIRE(ncclAllReduce(buffer, buffer, SIZE_MAX / 2, ncclFloat, ncclSum, c, s) ==
          ncclInvalidArgument);
  REQUIRE(ncclAllReduce(local, buffer, 16, ncclFloat, ncclSum, c, s) == ncclInvalidArgument);
  REQUIRE(ncclAllReduce(NULL, buffer, 16, ncclFloat, ncclSum, c, s) == ncclInvalidArgument);
  REQUIRE(ncclBroadcast(buffer, buffer, 1, ncclFloat, me->n, c, s) == ncclInvalidArgument);
  REQUIRE(ncclSend(buffer, 1, ncclFloat, -1, c, s) == ncclInvalidArgument);
  REQUIRE(ncclRecv(buffer, 1, ncclFloat, me->n, c, s) == ncclInvalidArgument);
  REQUIRE(ncclGroupEnd() == ncclInvalidUsage);
  REQUIRE(ncclCommCount(NULL, NULL) == ncclInvalidArgument);
  /* A wrong call in a group spoils the group, and nothing of it runs. */
  NCCL(ncclGroupStart());
  NCCL(ncclSend(buffer, 1, ncclFloat, me->rank, c, s));
  REQUIRE(ncclRecv(buffer, 1, ncclFloat, 1000, c, s) == ncclInvalidArgument);
  REQUIRE(ncclGroupEnd() == ncclInvalidArgument);
  CUDA(cudaSetDevice(me->rank + 10));
  CUDA(cudaStreamCreate(&foreign));
  REQUIRE(ncclAllReduce(buffer, buffer, 1, ncclFloat, ncclSum, c, foreign) ==
          ncclUnhandledCudaError);
  CUDA(cudaStreamDestroy(foreign));
  CUDA(cudaSetDevice(me->rank));
  ncclComm_t none = NULL;
  REQUIRE(ncclCommInitRank(&none, 2, id, 2) == ncclInvalidArgument && none == NULL);
  REQUIRE(ncclCommInitRank(&none, 65, id, 0) == ncclInvalidArgument);
  memset(&id, 7, sizeof(id));
  REQUIRE(ncclCommInitRank(&none, 1, id, 0) == ncclInvalidArgument);
  REQUIRE(strcmp(ncclGetErrorString(ncclInvalidUsage), "invalid usage") == 0);
  /* None of this has hurt the communicator. */
  REQUIRE(sum_over(c, s, 1) == me->n);
  CUDA(cudaFree(buffer));
}

static void test_errors(void **state)
{
  (void)state;
  run_ranks(2, errors_body);
}

/* Whoever waits for what has failed hears of it: through the stream, an event in it, or a stream
 * that waits for that event. */
static void must_fail(struct rank *me, const char *sentence)
{
  cudaEvent_t event;
  cudaStream_t other;
  CUDA(cudaEventCreate(&event));
  CUDA(cudaStreamCreate(&other));
  CUDA(cudaEventRecord(event, me->stream));
  CUDA(cudaStreamWaitEvent(other, event, 0));
  REQUIRE(cudaStreamSynchronize(me->stream) == cudaErrorLaunchFailure);
  REQUIRE(strcmp(cudaGetErrorString(cudaErrorLaunchFailure), sentence) == 0);
  REQUIRE(cudaStreamQuery(me->stream) == cudaErrorLaunchFailure);
  REQUIRE(cudaEventSynchronize(event) == cudaErrorLaunchFailure);
  REQUIRE(cudaStreamSynchronize(other) == cudaErrorLaunchFailure);
  REQUIRE(cudaGetLastError() == cudaErrorLaunchFailure);
  CUDA(cudaStreamDestroy(other));
  CUDA(cudaEventDestroy(event));
}

/* Collectives in which one rank, the last, does not do what the others do: one sentence. */
enum difference { COUNT, NOTHING, TYPE, OPERATION, ROOT, CALL, PLAIN_SEND, PLAIN_RECV, OFFSET };

static void differ(struct rank *me, enum difference what, const char *sentence)
{
  const bool odd = me->rank == me->n - 1;
  char *memory = NULL;
  ncclWindow_t window = NULL;
  void *handles[2] = {NULL, NULL};
  const size_t half = 8192;
  NCCL(ncclMemAlloc((void **)&memory, 2 * half));
  CUDA(cudaMemset(memory, 0, 2 * half));
  char *from = memory, *to = memory + half;
  if (what == OFFSET)
    NCCL(ncclCommWindowRegister(me->comm, memory, 2 * half, &window, NCCL_WIN_COLL_SYMMETRIC));
  else if (what == PLAIN_SEND || what == PLAIN_RECV) {
    if (!odd || what != PLAIN_SEND) NCCL(ncclCommRegister(me->comm, from, half, &handles[0]));
    if (!odd || what != PLAIN_RECV) NCCL(ncclCommRegister(me->comm, to, half, &handles[1]));
  }
  const size_t count = !odd ? 1000 : what == COUNT ? 999 : what == NOTHING ? 0 : 1000;
  const ncclDataType_t type = odd && what == TYPE ? ncclInt32 : ncclFloat;
  const ncclRedOp_t op = odd && what == OPERATION ? ncclMax : ncclSum;
  if (odd && what == OFFSET) to += 8;
  ncclResult_t result = what == ROOT || (odd && what == CALL)
                            ? ncclBroadcast(from, to, count, type, odd, me->comm, me->stream)
                            : ncclAllReduce(from, to, count, type, op, me->comm, me->stream);
  REQUIRE(result == ncclSuccess || (what == CALL && result == ncclInvalidUsage)); /* a late rank */
  if (sentence != NULL) {
    must_fail(me, sentence);
    REQUIRE(ncclAllReduce(from, to, 1, type, op, me->comm, me->stream) == ncclInvalidUsage);
    REQUIRE(strcmp(ncclGetLastError(me->comm), sentence) == 0);
  } else { /* which of the two speaks is chance */
    cudaError_t error = cudaStreamSynchronize(me->stream);
    REQUIRE(error == (result == ncclSuccess ? cudaErrorLaunchFailure : cudaSuccess));
    REQUIRE(ncclAllReduce(from, to, 1, type, op, me->comm, me->stream) == ncclInvalidUsage);
    const char *text = ncclGetLastError(me->comm);
    REQUIRE(strstr(text, "ncclAllReduce") != NULL && strstr(text, "ncclBroadcast") != NULL);
  }
  NCCL(ncclCommDeregister(me->comm, handles[0]));
  NCCL(ncclCommDeregister(me->comm, handles[1]));
  NCCL(ncclCommWindowDeregister(me->comm, window));
  NCCL(ncclMemFree(memory));
}

static enum difference difference;
static const char *difference_sentence;

static void *differ_thread(void *argument)
{
  struct rank *me = argument;
  open_rank(me);
  differ(me, difference, difference_sentence);
  CUDA(cudaStreamDestroy(me->stream));
  NCCL(ncclCommAbort(me->comm));
  return NULL;
}

/* Sizes that differ: all ranks get the same sentence, nothing is written, no rank hangs. */
static void *mismatch_thread(void *argument)
{
  static const char sentence[] =
      "ncclRecv: rank 1 receives 100 elements of ncclInt8 from rank 0, whose ncclSend has 4096 of "
      "ncclInt8; allowed: the same on both sides";
  struct rank *me = argument;
  open_rank(me);
  char *buffer = device_memory(4096), host[4096];
  CUDA(cudaMemset(buffer, me->rank, 4096));
  if (me->rank == 0)
    NCCL(ncclSend(buffer, 4096, ncclChar, 1, me->comm, me->stream));
  else if (me->rank == 1)
    NCCL(ncclRecv(buffer, 100, ncclChar, 0, me->comm, me->stream));
  else /* waits for what never comes, unless the others were faster */
    (void)ncclRecv(buffer, 100, ncclChar, 1, me->comm, me->stream);
  if (me->rank == 1) must_fail(me, sentence);
  pthread_barrier_wait(&barrier);
  ncclResult_t error = ncclSuccess;
  NCCL(ncclCommGetAsyncError(me->comm, &error));
  REQUIRE(error == ncclInvalidUsage && strcmp(ncclGetLastError(me->comm), sentence) == 0);
  REQUIRE(ncclSend(buffer, 1, ncclChar, 0, me->comm, me->stream) == error);
  pthread_barrier_wait(&barrier);
  cudaStreamSynchronize(me->stream);
  CUDA(cudaMemcpy(host, buffer, 4096, cudaMemcpyDeviceToHost)); /* by another stream */
  for (int i = 0; i < 4096; i++) REQUIRE(host[i] == me->rank);
  CUDA(cudaFree(buffer));
  CUDA(cudaStreamDestroy(me->stream));
  NCCL(ncclCommAbort(me->comm));
  return NULL;
}

/* Two ranks on one device; a rank that comes twice. */
static void *duplicate_thread(void *argument)
{
  struct rank *me = argument;
  CUDA(cudaSetDevice(me->rank == 2 ? 1 : 0));
  REQUIRE(ncclCommInitRank(&me->comm, 3, me->id, me->rank) == ncclInvalidUsage);
  REQUIRE(strstr(ncclGetLastError(NULL), "Duplicate GPU") != NULL && me->comm == NULL);
  return NULL;
}

/* Two that say they are rank 0: whoever comes second sees it, the other hears of it. */
static atomic_int refused;

static void *twice_thread(void *argument)
{
  struct rank *me = argument;
  CUDA(cudaSetDevice(me->rank));
  ncclResult_t result = ncclCommInitRank(&me->comm, 2, me->id, 0);
  REQUIRE(me->comm == NULL && (result == ncclInvalidUsage || result == ncclRemoteError));
  if (result == ncclInvalidUsage) atomic_fetch_add(&refused, 1);
  return NULL;
}

/* One rank waits for a message that never comes and gives up. */
static void *abort_thread(void *argument)
{
  struct rank *me = argument;
  open_rank(me);
  char *buffer = device_memory(16);
  if (me->rank == 0) {
    NCCL(ncclRecv(buffer, 16, ncclChar, 1, me->comm, me->stream));
    nap(20);
    REQUIRE(cudaStreamQuery(me->stream) == cudaErrorNotReady);
    NCCL(ncclCommAbort(me->comm));
    CUDA(cudaStreamSynchronize(me->stream));
  } else {
    NCCL(ncclCommDestroy(me->comm));
  }
  CUDA(cudaFree(buffer));
  CUDA(cudaStreamDestroy(me->stream));
  return NULL;
}

static void run_threads(int n, void *(*body)(void *))
{
  pthread_t threads[MOST_RANKS];
  struct rank ranks[MOST_RANKS];
  ncclUniqueId id;
  NCCL(ncclGetUniqueId(&id));
  pthread_barrier_init(&barrier, NULL, (unsigned)n);
  for (int r = 0; r < n; r++) {
    ranks[r] = (struct rank){.rank = r, .n = n, .id = id};
    REQUIRE(pthread_create(&threads[r], NULL, body, &ranks[r]) == 0);
  }
  for (int r = 0; r < n; r++) pthread_join(threads[r], NULL);
  pthread_barrier_destroy(&barrier);
}

static void test_failures(void **state)
{
  (void)state;
  run_threads(3, mismatch_thread);
  static const char *const sentences[] = {
      [COUNT] = "ncclAllReduce: the count is 999 elements on rank 2 and 1000 elements on rank 0; "
                "allowed: the same on all ranks",
      [NOTHING] = "ncclAllReduce: the count is 0 elements on rank 2 and 1000 elements on rank 0; "
                  "allowed: the same on all ranks",
      [TYPE] = "ncclAllReduce: the type is ncclInt32 on rank 2 and ncclFloat on rank 0; allowed: "
               "the same on all ranks",
      [OPERATION] = "ncclAllReduce: the operation is ncclMax on rank 2 and ncclSum on rank 0; "
                    "allowed: the same on all ranks",
      [ROOT] = "ncclBroadcast: the root is 1 on rank 2 and 0 on rank 0; allowed: the same on all "
               "ranks",
      [CALL] = NULL,
      [PLAIN_SEND] = "ncclAllReduce: sendbuff is not registered on rank 2 and registered on rank "
                     "0; allowed: the same on all ranks",
      [PLAIN_RECV] = "ncclAllReduce: recvbuff is not registered on rank 2 and registered on rank "
                     "0; allowed: the same on all ranks",
      [OFFSET] = "ncclAllReduce: recvbuff's window offset is 8200 on rank 2 and 8192 on rank 0; "
                 "allowed: the same on all ranks",
  };
  for (difference = COUNT; difference <= OFFSET; difference++) {
    difference_sentence = sentences[difference];
    run_threads(3, differ_thread);
  }
  run_threads(3, duplicate_thread);
  run_threads(2, twice_thread);
  REQUIRE(atomic_load(&refused) == 1);
  run_threads(2, abort_thread);
}

/* ---- ranks as processes -------------------------------------------------------------------- */

static int descriptors(void)
{
  int n = 0;
  DIR *directory = opendir("/proc/self/fd");
  REQUIRE(directory != NULL);
  while (readdir(directory) != NULL) n++;
  closedir(directory);
  return n;
}

/* Does a mapping of the process have `text` in its name? */
static bool has_mapped(pid_t process, const char *text)
{
  char path[64], line[1024];
  bool found = false;
  snprintf(path, sizeof(path), "/proc/%d/maps", (int)process);
  FILE *maps = fopen(path, "r");
  REQUIRE(maps != NULL);
  while (fgets(line, sizeof(line), maps) != NULL) found = found || strstr(line, text) != NULL;
  fclose(maps);
  return found;
}

/* Starts this program again: argv[1] is the part, then its arguments. `setting` is NAME=value or
 * NULL; `output` gets stderr if it is not NULL. */
static pid_t start(const char *part, int rank, int n, const ncclUniqueId *id, const char *setting,
                   int output)
{
  char rank_text[16], n_text[16], id_text[2 * NCCL_UNIQUE_ID_BYTES + 1] = "";
  snprintf(rank_text, sizeof(rank_text), "%d", rank);
  snprintf(n_text, sizeof(n_text), "%d", n);
  for (int i = 0; id != NULL && i < NCCL_UNIQUE_ID_BYTES; i++)
    snprintf(id_text + 2 * i, 3, "%02x", (unsigned char)id->internal[i]);
  fflush(NULL);
  pid_t child = fork();
  REQUIRE(child >= 0);
  if (child > 0) return child;
  if (setting != NULL) putenv((char *)(uintptr_t)setting);
  if (output >= 0) dup2(output, 2);
  execl("/proc/self/exe", "test_standin", part, rank_text, n_text, id_text, (char *)NULL);
  _exit(99);
}

static int finish(pid_t child)
{
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int process_part(struct rank *me)
{
  int before = descriptors();
  open_rank(me);
  one_collective(me, ALLREDUCE, 100003, 7, ncclSum, 0, false);
  one_collective(me, ALLTOALL, 20011, 3, ncclSum, 0, false);
  char *memory = NULL;
  ncclWindow_t window = NULL;
  NCCL(ncclMemAlloc((void **)&memory, 8192));
  CUDA(cudaMemset(memory, 0, 8192));
  NCCL(ncclCommWindowRegister(me->comm, memory, 8192, &window, NCCL_WIN_COLL_SYMMETRIC));
  REQUIRE(cpu_window_pointer(window, 0, me->rank) == memory);
  struct push push = {me->comm, window, me->rank, me->n, 0};
  for (push.epoch = 1; push.epoch <= 100; push.epoch++) {
    CUDA(cpu_launch(me->stream, push_kernel, &push, sizeof(push)));
    REQUIRE(sum_over(me->comm, me->stream, 1) == me->n);
  }
  /* The memory of a peer is device memory: copies may go there. */
  char *peer = cpu_window_pointer(window, 8000, (me->rank + 1) % me->n), got = 0;
  CUDA(cudaMemsetAsync(peer, me->rank + 1, 1, me->stream));
  REQUIRE(sum_over(me->comm, me->stream, 1) == me->n);
  CUDA(cudaMemcpy(&got, memory + 8000, 1, cudaMemcpyDeviceToHost));
  REQUIRE(got == (me->rank + me->n - 1) % me->n + 1);
  REQUIRE(sum_over(me->comm, me->stream, 1) == me->n);
  split_body(me);
  NCCL(ncclCommWindowDeregister(me->comm, window));
  NCCL(ncclMemFree(memory));
  CUDA(cudaFree(me->send));
  CUDA(cudaFree(me->receive));
  close_rank(me);
  REQUIRE(descriptors() == before);
  return 0;
}

/* Waits for a rank that never takes part, until it is killed. */
static int hanging_part(struct rank *me)
{
  open_rank(me);
  void *memory = device_memory(1 << 20);
  CUDA(cudaMemset(memory, 0, 1 << 20));
  if (me->rank == 0) nap(100000);
  NCCL(ncclAllReduce(memory, memory, 1 << 18, ncclFloat, ncclSum, me->comm, me->stream));
  CUDA(cudaStreamSynchronize(me->stream));
  return 0;
}

static void test_processes(void **state)
{
  (void)state;
  int before = descriptors();
  for (int n = 1; n <= 7; n += 3) {
    ncclUniqueId id;
    pid_t children[8];
    NCCL(ncclGetUniqueId(&id));
    for (int r = 0; r < n; r++) children[r] = start("process", r, n, &id, NULL, -1);
    for (int r = 0; r < n; r++) REQUIRE(finish(children[r]) == 0);
  }
  /* The ids of ranks that never joined here are all that is left. */
  REQUIRE(descriptors() - before <= 3);
}

/* Killed processes leave nothing behind: all they share are files without a name. (To compare the
 * contents of folders would not do: others use them at the same time.) */
static void test_killed(void **state)
{
  (void)state;
  ncclUniqueId id;
  pid_t children[3];
  NCCL(ncclGetUniqueId(&id));
  for (int r = 0; r < 3; r++) children[r] = start("hanging", r, 3, &id, NULL, -1);
  for (int r = 0; r < 3; r++) {
    double begin = now();
    while (!has_mapped(children[r], "memfd:cpu_standin") && now() - begin < 30) nap(10);
    nap(100);
    REQUIRE(has_mapped(children[r], "memfd:cpu_standin"));
    REQUIRE(!has_mapped(children[r], "/dev/shm/"));
  }
  for (int r = 0; r < 3; r++) kill(children[r], SIGKILL);
  for (int r = 0; r < 3; r++) REQUIRE(finish(children[r]) == 128 + SIGKILL);
}

/* ---- settings ------------------------------------------------------------------------------ */

static int no_devices_part(struct rank *me)
{
  (void)me;
  int count = -1;
  void *pointer;
  cudaStream_t stream;
  ncclUniqueId id;
  ncclComm_t comm;
  REQUIRE(cudaGetDeviceCount(&count) == cudaErrorNoDevice && count == 0);
  REQUIRE(cudaSetDevice(0) == cudaErrorNoDevice);
  REQUIRE(cudaMalloc(&pointer, 1) == cudaErrorNoDevice);
  REQUIRE(cudaStreamCreate(&stream) == cudaErrorNoDevice);
  REQUIRE(cudaDeviceSynchronize() == cudaErrorNoDevice);
  NCCL(ncclGetUniqueId(&id));
  REQUIRE(ncclCommInitRank(&comm, 1, id, 0) == ncclUnhandledCudaError);
  return 0;
}

static int settings_part(struct rank *me)
{
  int count = 0, version = 0;
  size_t free_bytes = 0, total = 0;
  char bus[32];
  CUDA(cudaGetDeviceCount(&count));
  CUDA(cudaMemGetInfo(&free_bytes, &total));
  NCCL(ncclGetVersion(&version));
  CUDA(cudaDeviceGetPCIBusId(bus, sizeof(bus), 0));
  switch (me->rank) {
  case 0:
    return count == 3 && cudaSetDevice(3) == cudaErrorInvalidDevice ? 0 : 1;
  case 1:
    return total == 12345678 ? 0 : 1;
  case 2:
    return version == 22703 ? 0 : 1;
  default:
    return strcmp(bus, "0000:1F:00.0") == 0 ? 0 : 1;
  }
}

static int init_part(struct rank *me)
{
  open_rank(me);
  close_rank(me);
  return 0;
}

/* The stderr of a part. */
static int output_of(const char *part, int rank, const char *setting, char *text, size_t size)
{
  int pipes[2];
  REQUIRE(pipe2(pipes, O_CLOEXEC) == 0);
  ncclUniqueId id;
  NCCL(ncclGetUniqueId(&id));
  pid_t child = start(part, rank, 1, &id, setting, pipes[1]);
  close(pipes[1]);
  size_t n = 0;
  for (ssize_t got; n + 1 < size && (got = read(pipes[0], text + n, size - 1 - n)) > 0;)
    n += (size_t)got;
  text[n] = '\0';
  close(pipes[0]);
  return finish(child);
}

static void test_settings(void **state)
{
  (void)state;
  char text[4096];
  static const char *const wrong[] = {
      "CPU_STANDIN_DEVICES=x", "CPU_STANDIN_DEVICES=65", "CPU_STANDIN_DEVICES=-1",
      "CPU_STANDIN_DEVICES=",  "CPU_STANDIN_MEMORY=1G",  "CPU_STANDIN_MEMORY=99999999999999999999",
      "CPU_STANDIN_QUIET=yes", "CPU_STANDIN_DELAY=-1",   "CPU_STANDIN_NCCL_VERSION=2.27"};
  for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
    REQUIRE(output_of("settings", 0, wrong[i], text, sizeof(text)) == 2);
    REQUIRE(strstr(text, wrong[i]) != NULL && strchr(text, '\n') == text + strlen(text) - 1);
  }
  REQUIRE(finish(start("no-devices", 0, 1, NULL, "CPU_STANDIN_DEVICES=0", -1)) == 0);
  REQUIRE(finish(start("settings", 0, 1, NULL, "CPU_STANDIN_DEVICES=3", -1)) == 0);
  REQUIRE(finish(start("settings", 1, 1, NULL, "CPU_STANDIN_MEMORY=12345678", -1)) == 0);
  REQUIRE(finish(start("settings", 2, 1, NULL, "CPU_STANDIN_NCCL_VERSION=22703", -1)) == 0);
  REQUIRE(finish(start("settings", 3, 1, NULL, "CPU_STANDIN_PCI_BUS=31", -1)) == 0);
  REQUIRE(output_of("init", 0, "CPU_STANDIN_QUIET=0", text, sizeof(text)) == 0);
  REQUIRE(strcmp(text, "note: CPU stand-in: no GPU is used; for reading, learning and CI; timings "
                       "mean nothing\n") == 0);
  REQUIRE(output_of("init", 0, "CPU_STANDIN_QUIET=1", text, sizeof(text)) == 0);
  REQUIRE(text[0] == '\0');
}

/* Everything is given back: file descriptors here, memory with LeakSanitizer. */
static void nothing_body(struct rank *me)
{
  REQUIRE(sum_over(me->comm, me->stream, 1) == me->n);
}

static void test_no_leaks(void **state)
{
  (void)state;
  int before = descriptors();
  for (int i = 0; i < 20; i++) run_ranks(3, nothing_body);
  REQUIRE(descriptors() == before);
}

int main(int argc, char **argv)
{
  make_patterns();
  if (argc == 5) {
    static const struct {
      const char *name;
      int (*run)(struct rank *me);
    } parts[] = {{"process", process_part},
                 {"hanging", hanging_part},
                 {"no-devices", no_devices_part},
                 {"settings", settings_part},
                 {"init", init_part}};
    struct rank me = {.rank = atoi(argv[2]), .n = atoi(argv[3])};
    for (int i = 0; i < NCCL_UNIQUE_ID_BYTES && argv[4][0] != '\0'; i++) {
      unsigned byte = 0;
      REQUIRE(sscanf(argv[4] + 2 * i, "%2x", &byte) == 1);
      me.id.internal[i] = (char)byte;
    }
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
      if (strcmp(parts[i].name, argv[1]) == 0) return parts[i].run(&me);
    return 98;
  }
  setenv("CPU_STANDIN_QUIET", "1", 0);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_processes), /* these three first: they start children */
      cmocka_unit_test(test_killed),
      cmocka_unit_test(test_settings),
      cmocka_unit_test(test_devices),
      cmocka_unit_test(test_memory),
      cmocka_unit_test(test_asynchrony),
      cmocka_unit_test(test_events),
      cmocka_unit_test(test_capture_errors),
      cmocka_unit_test(test_collectives),
      cmocka_unit_test(test_rank_order),
      cmocka_unit_test(test_rounding),
      cmocka_unit_test(test_groups),
      cmocka_unit_test(test_one_thread_for_all_ranks),
      cmocka_unit_test(test_two_streams),
      cmocka_unit_test(test_split),
      cmocka_unit_test(test_windows),
      cmocka_unit_test(test_registration),
      cmocka_unit_test(test_graphs),
      cmocka_unit_test(test_errors),
      cmocka_unit_test(test_failures),
      cmocka_unit_test(test_many_calls),
      cmocka_unit_test(test_many_ranks),
      cmocka_unit_test(test_no_leaks),
      cmocka_unit_test(test_waiting_for_threads),
  };
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  return cmocka_run_group_tests_name("standin", tests, NULL, NULL);
}
