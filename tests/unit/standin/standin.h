/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the CPU stand-in share: ../test_standin.c is the program, the files here are
 * its parts. */
#ifndef STANDIN_H
#define STANDIN_H

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <cpu_kernel.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Ends the program at once, so that no other rank waits forever. */
#define REQUIRE(condition)                                                                         \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      fprintf(stderr, "%s:%d: failed: %s (last errors: %s; %s)\n", __FILE__, __LINE__, #condition, \
              ncclGetLastError(NULL), cudaGetErrorString(cudaErrorLaunchFailure));                 \
      fflush(NULL);                                                                                \
      _exit(1);                                                                                    \
    }                                                                                              \
  } while (0)
#define CUDA(call) REQUIRE((call) == cudaSuccess)
#define NCCL(call) REQUIRE((call) == ncclSuccess)

enum { MOST_RANKS = 64 };

/* Ranks are threads of this process, each with a device, a communicator and a stream. */
struct rank {
  int rank, n;
  ncclUniqueId id;
  ncclComm_t comm;
  cudaStream_t stream;
  void (*body)(struct rank *me);
};

/* test_standin.c */
extern pthread_barrier_t barrier; /* of all ranks */
void run_threads(int n, void *(*thread)(void *), void (*body)(struct rank *me));
void run_ranks(int n, void (*body)(struct rank *me));
void *init_rank(void *rank); /* a thread that only makes device, communicator and stream */
void *device_memory(size_t bytes);
void *host_memory(size_t bytes);
double now(void);
void slow(cudaStream_t stream, long milliseconds); /* a kernel that takes its time */
void add_to(cudaStream_t stream, int *to, size_t count, int value);
int sum_over(ncclComm_t comm, cudaStream_t stream, int value); /* an AllReduce of one element */

/* collectives.c */
void test_collectives(void **state);
void test_rounding(void **state);
void test_messages(void **state);
void test_split(void **state);
void test_init_all(void **state);

/* streams.c */
void hold(cudaStream_t stream); /* until let_go is called */
void let_go(void);
void test_order(void **state);
void test_abort(void **state);
void test_groups(void **state);

/* cuda.c */
void test_asynchrony(void **state);
void test_events(void **state);
void test_memory(void **state);
void test_graphs(void **state);
void test_windows(void **state);

/* kernels.cu */
void test_kernels(void **state);
void test_kernel_windows(void **state);
void test_deadlocks(void **state);

/* errors.c */
void test_errors(void **state);
void test_differences(void **state);
void test_registration(void **state);
void test_failures(void **state);

#ifdef __cplusplus
}
#endif
#endif
