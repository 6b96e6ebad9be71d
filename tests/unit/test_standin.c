/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the CPU stand-in: does it behave as CUDA and NCCL do where the examples rely on it? What
 * ranks as processes add is covered by the examples themselves, which run under both launchers. */
#include "standin/standin.h"

#include <dirent.h>
#include <time.h>

pthread_barrier_t barrier;

void *init_rank(void *argument)
{
  struct rank *me = argument;
  CUDA(cudaSetDevice(me->rank));
  NCCL(ncclCommInitRank(&me->comm, me->n, me->id, me->rank));
  CUDA(cudaStreamCreate(&me->stream));
  return NULL;
}

static void *rank_thread(void *argument)
{
  struct rank *me = init_rank(argument) == NULL ? argument : NULL;
  me->body(me);
  CUDA(cudaStreamSynchronize(me->stream));
  ncclResult_t error = ncclSuccess;
  NCCL(ncclCommGetAsyncError(me->comm, &error));
  REQUIRE(error == ncclSuccess);
  CUDA(cudaStreamDestroy(me->stream));
  NCCL(ncclCommFinalize(me->comm));
  NCCL(ncclCommDestroy(me->comm));
  return NULL;
}

void run_threads(int n, void *(*thread)(void *), void (*body)(struct rank *me))
{
  pthread_t threads[MOST_RANKS];
  struct rank ranks[MOST_RANKS];
  ncclUniqueId id;
  NCCL(ncclGetUniqueId(&id));
  pthread_barrier_init(&barrier, NULL, (unsigned)n);
  for (int r = 0; r < n; r++) {
    ranks[r] = (struct rank){.rank = r, .n = n, .id = id, .body = body};
    REQUIRE(pthread_create(&threads[r], NULL, thread, &ranks[r]) == 0);
  }
  for (int r = 0; r < n; r++) pthread_join(threads[r], NULL);
  pthread_barrier_destroy(&barrier);
}

void run_ranks(int n, void (*body)(struct rank *me))
{
  run_threads(n, rank_thread, body);
}

void *device_memory(size_t bytes)
{
  void *pointer = NULL;
  CUDA(cudaMalloc(&pointer, bytes));
  return pointer;
}

void *host_memory(size_t bytes)
{
  void *pointer = malloc(bytes > 0 ? bytes : 1);
  REQUIRE(pointer != NULL);
  return pointer;
}

double now(void)
{
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void slow_kernel(const void *args)
{
  long milliseconds = *(const long *)args;
  nanosleep(&(struct timespec){milliseconds / 1000, milliseconds % 1000 * 1000000}, NULL);
}

void slow(cudaStream_t stream, long milliseconds)
{
  CUDA(cpu_launch(stream, slow_kernel, &milliseconds, sizeof(milliseconds)));
}

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

void add_to(cudaStream_t stream, int *to, size_t count, int value)
{
  struct add add = {to, count, value};
  CUDA(cpu_launch(stream, add_kernel, &add, sizeof(add)));
}

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

static int descriptors(void)
{
  int n = 0;
  DIR *directory = opendir("/proc/self/fd");
  REQUIRE(directory != NULL);
  while (readdir(directory) != NULL) n++;
  closedir(directory);
  return n;
}

static void sum_body(struct rank *me)
{
  REQUIRE(sum_over(me->comm, me->stream, 1) == me->n);
}

/* Everything is given back: file descriptors here, memory with LeakSanitizer. */
static void test_no_leaks(void **state)
{
  (void)state;
  int before = descriptors();
  for (int i = 0; i < 20; i++) run_ranks(3, sum_body);
  REQUIRE(descriptors() == before);
}

int main(int argc, char **argv)
{
  setenv("CPU_STANDIN_QUIET", "1", 0);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_memory),    cmocka_unit_test(test_asynchrony),
      cmocka_unit_test(test_events),    cmocka_unit_test(test_collectives),
      cmocka_unit_test(test_rounding),  cmocka_unit_test(test_messages),
      cmocka_unit_test(test_split),     cmocka_unit_test(test_init_all),
      cmocka_unit_test(test_graphs),    cmocka_unit_test(test_windows),
      cmocka_unit_test(test_kernels),   cmocka_unit_test(test_kernel_windows),
      cmocka_unit_test(test_deadlocks), cmocka_unit_test(test_registration),
      cmocka_unit_test(test_errors),    cmocka_unit_test(test_differences),
      cmocka_unit_test(test_failures),  cmocka_unit_test(test_order),
      cmocka_unit_test(test_abort),     cmocka_unit_test(test_groups),
      cmocka_unit_test(test_no_leaks),
  };
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  return cmocka_run_group_tests_name("standin", tests, NULL, NULL);
}
