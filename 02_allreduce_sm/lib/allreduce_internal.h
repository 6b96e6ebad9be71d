/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of the direct AllReduce: types, errors, methods, handles, and the functions
 * of device.cu. C and CUDA C++. */
#ifndef ALLREDUCE_INTERNAL_H
#define ALLREDUCE_INTERNAL_H

#include <stdbool.h>

#include "allreduce.h"
#include "allreduce_protocol.h"

#ifdef __cplusplus
extern "C" {
#endif

/* NCCL's device interface came with 2.28, loads and stores of 128 bits with CUDA 12.3. */
#define ALLREDUCE_HAS_DEVICE_CODE \
  (NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0) && CUDART_VERSION >= 12030)

/* ---- types ----------------------------------------------------------------------------------- */

/* The types whose elements can be added: X(NCCL's type, the sum, the bits of an element). The sum
 * is a type in allreduce_sum.cuh and a function in cpu/plain.c. Host code and kernels use this
 * list: a line without its sum does not compile. */
#define ALLREDUCE_TYPES(X)                \
  X(ncclHalf, sum_half, uint16_t)         \
  X(ncclBfloat16, sum_bfloat16, uint16_t) \
  X(ncclFloat, sum_float, float)          \
  X(ncclDouble, sum_double, double)       \
  X(ncclInt64, sum_int64, uint64_t)       \
  X(ncclUint64, sum_int64, uint64_t)      \
  X(ncclInt32, sum_int32, uint32_t)       \
  X(ncclUint32, sum_int32, uint32_t)

/* Bytes of an element; 0: no sums of this type. */
size_t allreduce_size_of(ncclDataType_t type);

/* cpu/plain.c: the sum in plain C, with which tests compare the kernels bit for bit. Adds `count`
 * elements of from[0] ... from[n - 1] in this order and stores the sums to `to`, which may be one
 * of them. Addresses need not be aligned. */
void allreduce_plain_sum(ncclDataType_t type, const void *const *from, int n, size_t count,
                         void *to);

static inline size_t allreduce_least(size_t a, size_t b)
{
  return a < b ? a : b;
}

/* ---- errors ---------------------------------------------------------------------------------- */

/* Sets the message of allreduce_last_error and returns `result`. The function that finds an error
 * does this; its callers only pass the result on. */
ncclResult_t allreduce_fail(ncclResult_t result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* NCCL's own reason for a failure, or the result in words. */
const char *allreduce_nccl_reason(ncclResult_t result);

#define ALLREDUCE_NCCLTRY(call)                                                              \
  do {                                                                                       \
    ncclResult_t try_result = (call);                                                        \
    if (try_result != ncclSuccess)                                                           \
      return allreduce_fail(try_result, "%s: %s", #call, allreduce_nccl_reason(try_result)); \
  } while (0)

#define ALLREDUCE_CUDATRY(call)                                      \
  do {                                                               \
    cudaError_t try_error = (call);                                  \
    if (try_error != cudaSuccess)                                    \
      return allreduce_fail(ncclUnhandledCudaError, "%s: %s", #call, \
                            cudaGetErrorString(try_error));          \
  } while (0)

/* For functions that set the message themselves. */
#define ALLREDUCE_TRY(call)                           \
  do {                                                \
    ncclResult_t try_result = (call);                 \
    if (try_result != ncclSuccess) return try_result; \
  } while (0)

/* ---- the method of a call, and its blocks ---------------------------------------------------- */

struct allreduce_launch {
  enum allreduce_method method;
  int blocks, threads; /* threads of a block */
  size_t slot;         /* of pushes: the most bytes of a chunk */
};

/* Equal on all ranks, so that all choose the same method: of each number the lowest that a rank
 * has. */
struct allreduce_limits {
  size_t blocks[ALLREDUCE_METHODS]; /* most blocks of a launch: all GPUs run that many at once */
  size_t ll;                        /* the most bytes of a vector that goes as LL lines */
  size_t onehop; /* the most bytes of a vector that goes in one hop between two ranks */
  size_t twohop; /* the most bytes of a vector that takes two hops */
  size_t slots;  /* bytes of scratch memory for chunks: of all slots of a rank */
};

/* `bytes` is not 0, n at least 2. */
struct allreduce_launch allreduce_choose(size_t bytes, int n, struct allreduce_limits limits);

/* ---- data of the device code ----------------------------------------------------------------- */

/* Kept by a rank from call to call, in device memory. Each block has its own copy. */
struct allreduce_state {
  struct allreduce_memory { /* read by one load */
    uint64_t epoch;         /* of the last call */
    uint64_t broken;        /* a wait was given up: this rank sends nothing more */
  } block[ALLREDUCE_MAX_BLOCKS];
  uint32_t reported; /* an error is stored; the first one stays */
};

enum allreduce_error_kind {
  ALLREDUCE_ERROR_NONE,
  ALLREDUCE_ERROR_TIMEOUT, /* `peer` did not come */
  ALLREDUCE_ERROR_COUNT,   /* `peer` has called with another count, type or place of the result */
};

/* In host memory that the device can write; `kind` is written last. */
struct allreduce_error {
  int kind, peer;
};

/* One AllReduce. Addresses are valid on this rank. */
struct allreduce_call {
  struct allreduce_launch launch;
  ncclDataType_t type;
  size_t count;
  uint32_t check;
  bool whole;                   /* all is in whole and aligned words of 16 bytes */
  struct allreduce_chunks push; /* for pushes, which also use the other ranks' `recv` */
  const char *send;
  char *recv[ALLREDUCE_MAX_RANKS];
};

/* ---- handles --------------------------------------------------------------------------------- */

enum { ALLREDUCE_TIMEOUT = 30 }; /* seconds, if the configuration says nothing */

/* What the ranks tell each other. */
struct allreduce_offer {
  char gpu[32];                                                   /* cudaDeviceGetPCIBusId */
  enum { ALLREDUCE_FAILED, ALLREDUCE_CANNOT, ALLREDUCE_CAN } can; /* FAILED: a call failed */
  struct allreduce_limits limits;
};

struct allreduce_handle {
  ncclComm_t comm;
  int rank, n;
  int device;
  double timeout; /* seconds, 0: forever */
  struct allreduce_limits limits;
  bool overlaps;   /* short calls are launched early: allreduce_wait.cuh */
  bool next_waits; /* all kernels of this NCCL that are launched early wait for the previous one */
  /* With one rank these are not used. */
  char *scratch;
  ncclWindow_t window;              /* of the scratch memory */
  char *peers[ALLREDUCE_MAX_RANKS]; /* address here of the scratch memory of each rank */
  char **table;                     /* device memory, for n addresses */
  /* device.cu: enqueues a call, with the kernels for this number of ranks */
  ncclResult_t (*launch)(const struct allreduce_handle *h, const struct allreduce_call *call,
                         cudaStream_t stream);
  struct allreduce_state *state;
  struct allreduce_error *error;
  /* Of all ranks, in pinned host memory, which NCCL's kernels can access: so even a rank whose GPU
   * memory is full can send its result. */
  struct allreduce_offer *offers;
  int windows;
  struct allreduce_window {
    ncclWindow_t window;
    char *base; /* the user's address */
    size_t bytes;
    char *peers[ALLREDUCE_MAX_RANKS];
  } window_of[ALLREDUCE_MAX_WINDOWS];
};

/* ---- functions of the device: they return NCCL's codes and set the message ------------------- */

/* Sets `why` to "", or to the reason why this rank cannot. Loads all kernels, and lowers the blocks
 * of each method to how many this GPU runs at once. Local. */
ncclResult_t allreduce_device_ask(struct allreduce_handle *h, struct allreduce_limits *limits,
                                  const char **why);

/* ncclInvalidUsage if the communicator has no symmetric memory. Collective. */
ncclResult_t allreduce_device_probe(ncclComm_t comm);

/* The address here of the beginning of every rank's window. */
ncclResult_t allreduce_device_peers(const struct allreduce_handle *h, ncclWindow_t window,
                                    char **peers);

#ifdef __cplusplus
}
#endif
#endif
