/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the CPU stand-in share: test_standin.c is the program, standin_*.c are its
 * parts. */
#ifndef STANDIN_H
#define STANDIN_H

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

#define REQUIRE(condition)                                                                       \
  do {                                                                                           \
    if (!(condition)) {                                                                          \
      fprintf(stderr, "%s:%d: failed: %s (last NCCL error: %s, CUDA: %s)\n", __FILE__, __LINE__, \
              #condition, ncclGetLastError(NULL), cudaGetErrorString(cudaErrorLaunchFailure));   \
      fflush(NULL);                                                                              \
      _exit(1);                                                                                  \
    }                                                                                            \
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

enum { TYPES = 10 };

enum collective { ALLREDUCE, REDUCESCATTER, ALLGATHER, BROADCAST, ALLTOALL, COLLECTIVES };

/* Each rank writes a word into the window of every other and rings; the others wait for all. */
struct push {
  ncclComm_t comm;
  ncclWindow_t window;
  int rank, n;
  uint32_t epoch;
};

/* standin_ranks.c: ranks as threads; device and host memory, time */
extern pthread_barrier_t barrier;
void open_rank(struct rank *me);
void close_rank(struct rank *me);
void *device_memory(size_t bytes);
void run_ranks(int n, void (*body)(struct rank *me));
void *host_memory(size_t bytes);
void nap(long milliseconds);
double now(void);
void slow(cudaStream_t stream, long milliseconds);

/* standin_elements.c: elements of all types */
extern const ncclDataType_t all_types[TYPES];
size_t size_of(ncclDataType_t type);
float float_from(uint32_t bits);
uint32_t bits_from(float value);
double half_value(uint16_t x);
double get(const void *buffer, size_t i, ncclDataType_t type);
void make_patterns(void);
void fill(void *buffer, size_t count, int type, int rank, int block);
double reduced(int n, size_t i, int block, ncclRedOp_t op, bool integer);
bool close_to(double x, double y, ncclDataType_t type, ncclRedOp_t op);
int element(int rank, size_t i, int block);

/* standin_collectives.c: collectives, their results, order of additions, rounding */
void one_collective(struct rank *me, enum collective which, size_t count, int t, ncclRedOp_t op,
                    int root, bool in_place);
void test_collectives(void **state);
void test_many_ranks(void **state);
void test_rank_order(void **state);
void test_rounding(void **state);

/* standin_groups.c: groups, one thread for all ranks, order over streams, split communicators */
int sum_over(ncclComm_t comm, cudaStream_t stream, int value);
void split_body(struct rank *me);
void test_groups(void **state);
void test_one_thread_for_all_ranks(void **state);
void test_two_streams(void **state);
void test_many_calls(void **state);
void test_split(void **state);

/* standin_windows.c: windows and registered memory */
void push_kernel(const void *argument);
void test_windows(void **state);
void test_registration(void **state);

/* standin_graphs.c: capture and replay */
void add_to(cudaStream_t stream, int *to, size_t count, int value);
void test_graphs(void **state);
void test_capture_errors(void **state);

/* standin_cuda.c: streams, events, memory, devices */
void test_asynchrony(void **state);
void test_events(void **state);
void test_memory(void **state);
void test_devices(void **state);

/* standin_errors.c: NCCL's errors */
void test_errors(void **state);
void test_failures(void **state);

/* standin_processes.c: ranks as processes, and settings */
int descriptors(void);
int process_part(struct rank *me);
int hanging_part(struct rank *me);
int no_devices_part(struct rank *me);
int settings_part(struct rank *me);
int init_part(struct rank *me);
void test_processes(void **state);
void test_killed(void **state);
void test_settings(void **state);

#endif
