/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the CPU stand-in: groups, one thread for all ranks, order over streams, split
 * communicators. */
#include "standin.h"

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
      cudaStream_t stream = round == 2 ? second : me->stream;
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

void test_groups(void **state)
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

void test_one_thread_for_all_ranks(void **state)
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

void test_two_streams(void **state)
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

void test_many_calls(void **state)
{
  (void)state;
  run_ranks(4, many_calls_body);
}

/* ---- split --------------------------------------------------------------------------------- */

int sum_over(ncclComm_t comm, cudaStream_t stream, int value)
{
  int *device = device_memory(sizeof(int));
  CUDA(cudaMemcpy(device, &value, sizeof(int), cudaMemcpyHostToDevice));
  NCCL(ncclAllReduce(device, device, 1, ncclInt, ncclSum, comm, stream));
  CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaMemcpy(&value, device, sizeof(int), cudaMemcpyDeviceToHost));
  CUDA(cudaFree(device));
  return value;
}

void split_body(struct rank *me)
{
  ncclComm_t half = NULL, reverse = NULL, some = NULL;
  int count = 0, rank = 0, device = -1;
  NCCL(ncclCommSplit(me->comm, me->rank % 2, me->rank, &half, NULL));
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

void test_split(void **state)
{
  (void)state;
  run_ranks(1, split_body);
  run_ranks(4, split_body);
  run_ranks(7, split_body);
}
