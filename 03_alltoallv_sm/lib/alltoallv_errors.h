/* SPDX-License-Identifier: Apache-2.0 */
/* Errors inside of the AlltoAllV: a result of NCCL's kind and the sentence that
 * alltoallv_last_error() shows. Who finds an error sets the sentence; who passes the result on
 * leaves it alone, or puts something in front of it. C and CUDA C++. */
#ifndef ALLTOALLV_ERRORS_H
#define ALLTOALLV_ERRORS_H

#include <cuda_runtime.h>
#include <nccl.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The longest sentence. */
enum { ALLTOALLV_SENTENCE = 512 };

/* Sets the sentence and returns `result`. The old sentence may be among the arguments. */
ncclResult_t alltoallv_fail(ncclResult_t result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* NCCL's own reason for a failure, which says more than the result; else the result in words. */
const char *alltoallv_nccl_reason(ncclResult_t result);

#define ALLTOALLV_NCCLTRY(call)                                                              \
  do {                                                                                       \
    ncclResult_t try_result = (call);                                                        \
    if (try_result != ncclSuccess)                                                           \
      return alltoallv_fail(try_result, "%s: %s", #call, alltoallv_nccl_reason(try_result)); \
  } while (0)

/* Between ncclGroupStart and ncclGroupEnd: a group that has begun must end, whatever fails in it,
 * or all that the thread asks of NCCL later would only be queued. */
#define ALLTOALLV_P2PTRY(call)                                                            \
  do {                                                                                    \
    ncclResult_t try_result = (call);                                                     \
    if (try_result == ncclSuccess) break;                                                 \
    (void)alltoallv_fail(try_result, "%s: %s", #call, alltoallv_nccl_reason(try_result)); \
    ncclGroupEnd();                                                                       \
    return try_result;                                                                    \
  } while (0)

#define ALLTOALLV_CUDATRY(call)                                      \
  do {                                                               \
    cudaError_t try_error = (call);                                  \
    if (try_error != cudaSuccess)                                    \
      return alltoallv_fail(ncclUnhandledCudaError, "%s: %s", #call, \
                            cudaGetErrorString(try_error));          \
  } while (0)

/* For functions that have set the sentence themselves. */
#define ALLTOALLV_TRY(call)                           \
  do {                                                \
    ncclResult_t try_result = (call);                 \
    if (try_result != ncclSuccess) return try_result; \
  } while (0)

#ifdef __cplusplus
}
#endif
#endif
