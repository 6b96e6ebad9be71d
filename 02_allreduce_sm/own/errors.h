/* SPDX-License-Identifier: Apache-2.0 */
/* Errors inside of the AllReduce: who finds one sets the sentence of allreduce_last_error, who
 * passes it on leaves it alone. C and CUDA C++. */
#ifndef ALLREDUCE_ERRORS_H
#define ALLREDUCE_ERRORS_H

#include <cuda_runtime.h>
#include <nccl.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Sets the sentence and returns `result`. */
ncclResult_t allreduce_fail(ncclResult_t result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* NCCL's own reason for a failure; else the result in words. */
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

/* For functions that have set the sentence themselves. */
#define ALLREDUCE_TRY(call)                           \
  do {                                                \
    ncclResult_t try_result = (call);                 \
    if (try_result != ncclSuccess) return try_result; \
  } while (0)

#ifdef __cplusplus
}
#endif
#endif
