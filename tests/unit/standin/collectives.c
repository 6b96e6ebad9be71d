/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the CPU stand-in: random calls against plain loops; rounding; messages; communicators.
 */
#include "standin.h"

/* The same sequence on all ranks. */
static unsigned draw(unsigned *seed, unsigned below)
{
  *seed = *seed * 1664525u + 1013904223u;
  return (*seed >> 8) % below;
}

static uint32_t bits_of(float value)
{
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

/* Writes a value that the type can hold exactly; integers wrap. */
static size_t put(void *at, ncclDataType_t type, float value)
{
  int64_t integer = (int64_t)value;
  uint32_t bits = bits_of(value);
  double wide = (double)value;
  uint16_t brain = (uint16_t)(bits >> 16);
  uint16_t half =
      value == 0 ? 0 : (uint16_t)((bits >> 13) - ((127 - 15) << 10)); /* positive ones */
  static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  const void *from = type == ncclHalf       ? (const void *)&half
                     : type == ncclBfloat16 ? (const void *)&brain
                     : type == ncclFloat    ? (const void *)&value
                     : type == ncclDouble   ? (const void *)&wide
                                            : (const void *)&integer; /* little-endian */
  return memcpy(at, from, sizes[type]), sizes[type];
}

enum collective {
  ALLREDUCE,
  REDUCESCATTER,
  REDUCE,
  ALLGATHER,
  BROADCAST,
  ALLTOALL,
  GATHER,
  SCATTER,
  COLLECTIVES
};

struct job {
  enum collective call;
  ncclDataType_t type;
  ncclRedOp_t op;
  size_t count, size;
  int root, n;
  bool in_place;
};

/* Element i of block b of a rank. Of floats sums depend on the order; what comes of the others is
 * exact in all types: sums of small numbers, products of 1 and 2, averages that are whole. */
static float element(const struct job *job, int rank, size_t b, size_t i)
{
  unsigned x = (unsigned)(i * 2654435761u + b * 40503u);
  if (job->op == ncclAvg && job->type != ncclFloat) return (float)(x / 8 % 8 + 2 * (unsigned)rank);
  x += (unsigned)rank * 977u + x / 251u;
  if (job->type == ncclFloat) return (float)(x % 1000003u) / 1000.0f - 333.3f;
  return (float)(job->op == ncclProd ? 1 + x / 8 % 2 : x / 8 % 4);
}

static float reduced(const struct job *job, size_t b, size_t i)
{
  float result = element(job, 0, b, i);
  for (int r = 1; r < job->n; r++) {
    float x = element(job, r, b, i);
    result = job->op == ncclProd  ? result * x
             : job->op == ncclMax ? (x > result ? x : result)
             : job->op == ncclMin ? (x < result ? x : result)
                                  : result + x;
  }
  return job->op == ncclAvg ? result / (float)job->n : result;
}

static float expected(const struct job *job, int rank, size_t b, size_t i)
{
  switch (job->call) {
  case ALLREDUCE:
    return reduced(job, 0, i);
  case REDUCESCATTER:
    return reduced(job, (size_t)rank, i);
  case REDUCE:
    return reduced(job, 0, i);
  case BROADCAST:
    return element(job, job->root, 0, i);
  case ALLTOALL:
    return element(job, (int)b, (size_t)rank, i);
  case SCATTER:
    return element(job, job->root, (size_t)rank, i);
  default: /* ALLGATHER, GATHER */
    return element(job, (int)b, 0, i);
  }
}

static void call(const struct job *job, const void *send, void *receive, ncclComm_t comm,
                 cudaStream_t stream)
{
  size_t count = job->count;
  switch (job->call) {
  case ALLREDUCE:
    NCCL(ncclAllReduce(send, receive, count, job->type, job->op, comm, stream));
    break;
  case REDUCESCATTER:
    NCCL(ncclReduceScatter(send, receive, count, job->type, job->op, comm, stream));
    break;
  case ALLGATHER:
    NCCL(ncclAllGather(send, receive, count, job->type, comm, stream));
    break;
  case REDUCE:
    NCCL(ncclReduce(send, receive, count, job->type, job->op, job->root, comm, stream));
    break;
  case ALLTOALL:
    NCCL(ncclAlltoAll(send, receive, count, job->type, comm, stream));
    break;
  case GATHER:
    NCCL(ncclGather(send, receive, count, job->type, job->root, comm, stream));
    break;
  case SCATTER:
    NCCL(ncclScatter(send, receive, count, job->type, job->root, comm, stream));
    break;
  default:
    if (job->in_place)
      NCCL(ncclBcast(receive, count, job->type, job->root, comm, stream));
    else
      NCCL(ncclBroadcast(send, receive, count, job->type, job->root, comm, stream));
  }
}

/* All calls x types x operations at random, in place and not, at any place in the memory, in two
 * streams in turn. Memory that is not the result's stays as it is. */
static void collectives_body(struct rank *me)
{
  enum { MOST = 2500, ROOM = MOST * 8 };
  unsigned seed = (unsigned)me->n;
  size_t n = (size_t)me->n, r = (size_t)me->rank, pool = (n + 1) * ROOM + 64;
  char *send = device_memory(pool), *receive = device_memory(pool), *host = host_memory(pool);
  cudaStream_t streams[2] = {me->stream, NULL};
  CUDA(cudaStreamCreate(&streams[1]));
  for (int i = 0; i < (me->n > 7 ? 12 : 400); i++) {
    char value[8];
    struct job job = {.call = draw(&seed, COLLECTIVES), .type = draw(&seed, 10), .n = me->n};
    bool reduces = job.call <= REDUCE;
    job.op = reduces ? draw(&seed, ncclNumOps) : ncclSum;
    if (job.op == ncclProd && n > 7) job.op = ncclMax;
    job.size = put(value, job.type, 0);
    job.count = draw(&seed, 4) == 0 ? draw(&seed, 4) : draw(&seed, MOST);
    job.root = (int)draw(&seed, (unsigned)n);
    job.in_place = draw(&seed, 2) == 0 && job.call != ALLTOALL; /* as in NCCL */
    bool root = job.root == me->rank, receives = root || (job.call != REDUCE && job.call != GATHER);
    size_t block = job.count * job.size, at = draw(&seed, 8) * job.size;
    bool splits = job.call == REDUCESCATTER || job.call == SCATTER,
         joins = job.call == ALLGATHER || job.call == GATHER;
    size_t in_blocks = splits || job.call == ALLTOALL ? n : 1;
    size_t out_blocks = !receives ? 0 : joins || job.call == ALLTOALL ? n : 1;
    char *to = receive + at, *from = job.in_place ? to : send + at;
    if (job.in_place && joins) from += r * block;
    if (job.in_place && splits) to += r * block;
    CUDA(cudaMemset(receive, 0x5A, pool));
    for (size_t b = 0; b < in_blocks; b++)
      for (size_t e = 0; e < job.count; e++)
        put(host + b * block + e * job.size, job.type, element(&job, me->rank, b, e));
    cudaStream_t stream = streams[draw(&seed, 2)];
    CUDA(cudaMemcpyAsync(from, host, in_blocks * block, cudaMemcpyHostToDevice, stream));
    call(&job, job.call == SCATTER && !root ? NULL : from, receives ? to : NULL, me->comm, stream);
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaMemcpy(host, to, out_blocks * block + 16, cudaMemcpyDeviceToHost));
    for (size_t b = 0; b < out_blocks; b++)
      for (size_t e = 0; e < job.count; e++) {
        put(value, job.type, expected(&job, me->rank, b, e));
        if (memcmp(host + b * block + e * job.size, value, job.size) == 0) continue;
        fprintf(stderr, "rank %d of %d: call %d type %d op %d count %zu, block %zu element %zu\n",
                me->rank, me->n, job.call, job.type, job.op, job.count, b, e);
        REQUIRE(!"wrong data");
      }
    bool next_is_input = job.in_place && (splits ? r + 1 < n : !receives);
    for (size_t e = 0; e < 16 && !next_is_input; e++) REQUIRE(host[out_blocks * block + e] == 0x5A);
  }
  /* The order over streams is that of the host, however slow one of them is. */
  int *word = (int *)receive, one = 1, product = 1;
  CUDA(cudaMemcpy(word, &one, sizeof(one), cudaMemcpyHostToDevice));
  for (int i = 0; i < 4; i++, product *= 2 * me->n) {
    if (i == me->rank) slow(streams[0], 5);
    NCCL(ncclAllReduce(word, word, 1, ncclInt, ncclSum, me->comm, streams[0]));
    NCCL(ncclAllReduce(word, word, 1, ncclInt, ncclMax, me->comm, streams[1]));
    add_to(streams[1], word, 1, product * me->n); /* doubles it */
    NCCL(ncclBroadcast(word, word, 1, ncclInt, 0, me->comm, streams[1]));
  }
  CUDA(cudaStreamSynchronize(streams[1]));
  CUDA(cudaMemcpy(&one, word, sizeof(one), cudaMemcpyDeviceToHost));
  REQUIRE(one == product);
  CUDA(cudaStreamDestroy(streams[1]));
  CUDA(cudaFree(send));
  CUDA(cudaFree(receive));
  free(host);
}

void test_collectives(void **state)
{
  (void)state;
  static const int ranks[] = {1, 2, 3, 4, 7, MOST_RANKS};
  for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++)
    run_ranks(ranks[i], collectives_body);
}

/* ---- rounding ------------------------------------------------------------------------------ */

/* Written another way than in the stand-in, so that a mistake does not cancel out; infinity is the
 * number that would come next. */
static double value_of(uint16_t x, int fraction_bits)
{
  int exponent = (x & 0x7fff) >> fraction_bits, bias = fraction_bits == 10 ? 15 : 127;
  double magnitude = (x & ((1 << fraction_bits) - 1)) + (exponent > 0 ? 1 << fraction_bits : 0);
  for (int e = exponent > 0 ? exponent : 1; e < bias + fraction_bits; e++) magnitude /= 2;
  for (int e = bias + fraction_bits; e < exponent; e++) magnitude *= 2;
  return x >> 15 != 0 ? -magnitude : magnitude;
}

static double distance(double x, double y)
{
  return x < y ? y - x : x - y;
}

/* All bit patterns, and five addends: the sum is the nearest value, of two the even one. */
static void rounding_body(struct rank *me)
{
  enum { COUNT = 65536 };
  static const uint16_t addends[2][5] = {{0x0000, 0x3c01, 0x0001, 0x7bff, 0xb555},
                                         {0x0000, 0x3f81, 0x0001, 0x7f7f, 0xbf55}};
  uint16_t *host = host_memory(COUNT * 2), *device = device_memory(COUNT * 2);
  for (int k = 0; k < 10; k++) {
    uint16_t addend = addends[k % 2][k / 2];
    int bits = k % 2 == 0 ? 10 : 7;
    unsigned infinity = k % 2 == 0 ? 0x7c00 : 0x7f80;
    for (unsigned i = 0; i < COUNT; i++) host[i] = me->rank == 0 ? (uint16_t)i : addend;
    CUDA(cudaMemcpy(device, host, COUNT * 2, cudaMemcpyHostToDevice));
    NCCL(ncclAllReduce(device, device, COUNT, k % 2 == 0 ? ncclHalf : ncclBfloat16, ncclSum,
                       me->comm, me->stream));
    CUDA(cudaStreamSynchronize(me->stream));
    CUDA(cudaMemcpy(host, device, COUNT * 2, cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < COUNT; i++) {
      uint16_t got = host[i];
      double sum = (double)(float)(value_of((uint16_t)i, bits) + value_of(addend, bits));
      double error = distance(value_of(got, bits), sum);
      if ((i & 0x7fff) > infinity) {
        REQUIRE((got & 0x7fff) > infinity); /* NaN stays NaN */
      } else if ((i & 0x7fff) == infinity) {
        REQUIRE(got == i);
      } else {
        REQUIRE((got & 0x7fff) <= infinity);
        for (int step = (got & 0x7fff) == 0 ? 1 : -1; step <= 1; step += 2) {
          if ((got & 0x7fff) == infinity && step == 1) continue;
          double other = distance(value_of((uint16_t)(got + step), bits), sum);
          REQUIRE(error < other || (error == other && (got & 1) == 0));
        }
      }
    }
  }
  CUDA(cudaFree(device));
  free(host);
}

void test_rounding(void **state)
{
  (void)state;
  run_ranks(2, rounding_body);
}

/* ---- messages ------------------------------------------------------------------------------ */

/* Everyone to everyone, oneself included, up to three messages per pair, whose order counts. */
static size_t bytes_of(int from, int to, int k)
{
  return (size_t)(from * 31 + to * 17 + k * 7) % 5 * 9001; /* at times 0 */
}

static void messages_body(struct rank *me)
{
  enum { EACH = 3, ROOM = 5 * 9001 };
  size_t pool = (size_t)me->n * EACH * ROOM;
  char *send = device_memory(pool), *receive = device_memory(pool), *host = host_memory(pool);
  for (int p = 0; p < me->n * EACH; p++) CUDA(cudaMemset(send + p * ROOM, me->rank * 50 + p, ROOM));
  CUDA(cudaMemset(receive, 0xEE, pool));
  NCCL(ncclGroupStart());
  NCCL(ncclGroupStart()); /* groups nest */
  for (int p = 0; p < me->n; p++)
    for (int k = 0; k < EACH; k++)
      NCCL(ncclSend(send + (p * EACH + k) * ROOM, bytes_of(me->rank, p, k), ncclChar, p, me->comm,
                    me->stream));
  NCCL(ncclGroupEnd());
  for (int p = me->n - 1; p >= 0; p--)
    for (int k = 0; k < EACH; k++)
      NCCL(ncclRecv(receive + (p * EACH + k) * ROOM, bytes_of(p, me->rank, k), ncclChar, p,
                    me->comm, me->stream));
  NCCL(ncclGroupEnd());
  CUDA(cudaStreamSynchronize(me->stream));
  CUDA(cudaMemcpy(host, receive, pool, cudaMemcpyDeviceToHost));
  for (int p = 0; p < me->n; p++)
    for (int k = 0; k < EACH; k++)
      for (size_t i = 0; i < ROOM; i++) {
        bool sent = i < bytes_of(p, me->rank, k);
        char want = sent ? (char)(p * 50 + me->rank * EACH + k) : (char)0xEE;
        REQUIRE(host[(size_t)(p * EACH + k) * ROOM + i] == want);
      }
  CUDA(cudaFree(send));
  CUDA(cudaFree(receive));
  free(host);
}

void test_messages(void **state)
{
  (void)state;
  for (int n = 1; n <= 7; n += 2) run_ranks(n, messages_body);
}

/* ---- communicators ------------------------------------------------------------------------- */

static void split_body(struct rank *me)
{
  ncclComm_t half = NULL, reverse = NULL, some = NULL;
  int count = 0, rank = 0, device = -1, want = 0;
  NCCL(ncclCommSplit(me->comm, me->rank % 2, me->rank, &half, NULL));
  NCCL(ncclCommCount(half, &count));
  NCCL(ncclCommUserRank(half, &rank));
  NCCL(ncclCommCuDevice(half, &device));
  REQUIRE(count == (me->n + 1 - me->rank % 2) / 2 && rank == me->rank / 2 && device == me->rank);
  for (int r = me->rank % 2; r < me->n; r += 2) want += 1 << r;
  REQUIRE(sum_over(half, me->stream, 1 << me->rank) == want);
  NCCL(ncclCommSplit(me->comm, 7, -me->rank, &reverse, NULL));
  NCCL(ncclCommUserRank(reverse, &rank));
  REQUIRE(rank == me->n - 1 - me->rank);
  NCCL(ncclCommSplit(me->comm, me->rank == 0 ? NCCL_SPLIT_NOCOLOR : 0, 0, &some, NULL));
  REQUIRE((some == NULL) == (me->rank == 0));
  if (some != NULL) REQUIRE(sum_over(some, me->stream, 1) == me->n - 1);
  /* Two communicators in one group, and destroyed at different times. */
  int *words = device_memory(8);
  NCCL(ncclGroupStart());
  NCCL(ncclAllReduce(words, words, 1, ncclInt, ncclMax, me->comm, me->stream));
  NCCL(ncclAllReduce(words + 1, words + 1, 1, ncclInt, ncclMax, half, me->stream));
  NCCL(ncclGroupEnd());
  CUDA(cudaFree(words));
  NCCL(ncclCommDestroy(half));
  NCCL(ncclCommDestroy(reverse));
  NCCL(ncclCommDestroy(some));
}

void test_split(void **state)
{
  (void)state;
  for (int n = 1; n <= 7; n += 3) run_ranks(n, split_body);
}

/* One thread that is all ranks, on devices in any order. */
void test_init_all(void **state)
{
  (void)state;
  enum { N = 3 };
  const int devices[N] = {5, 2, 9}, wrong[N] = {1, 2, 64};
  ncclComm_t comms[N];
  int device;
  REQUIRE(ncclCommInitAll(comms, N, wrong) == ncclUnhandledCudaError && comms[0] == NULL);
  NCCL(ncclCommInitAll(comms, N, devices));
  for (int r = 0; r < N; r++) {
    NCCL(ncclCommCuDevice(comms[r], &device));
    REQUIRE(device == devices[r]);
    NCCL(ncclCommDestroy(comms[r]));
  }
}
