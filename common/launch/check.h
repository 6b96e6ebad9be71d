/* SPDX-License-Identifier: Apache-2.0 */
/* Check macros: a call that fails prints one line and ends the whole job.
 *
 *   NCCLCHECK(ncclAllReduce(...));      // ncclResult_t
 *   CUDACHECK(cudaMalloc(...));         // cudaError_t
 *   MPICHECK(MPI_Barrier(...));         // int, MPI_SUCCESS
 *   PTHREADCHECK(pthread_create(...));  // int, an errno value
 *
 * The line on stderr is `[rank r] file:line: call: reason`, for NCCL followed by the last message
 * that NCCL recorded. The exit code is EXIT_FAILED_CALL (3). launcher_fail() ends all
 * ranks: otherwise they would wait for the failed one in a collective forever.
 */
#ifndef COMMON_CHECK_H
#define COMMON_CHECK_H

#include <string.h>

#include "launcher.h"

/* ncclCommInitRank in a non-blocking communicator returns ncclInProgress; no example uses one, so
 * every result but ncclSuccess is a failure here. */
#define NCCLCHECK(call) CHECK_NCCL_RESULT(call, #call, ncclGetLastError(NULL))

/* For libraries that return ncclResult_t and have their own message for the last error. `text` is
 * #call, made where the call is written. */
#define CHECK_NCCL_RESULT(call, text, sentence)                                            \
  do {                                                                                     \
    ncclResult_t check_result = (call);                                                    \
    if (check_result != ncclSuccess)                                                       \
      launcher_fail(__FILE__, __LINE__, text, ncclGetErrorString(check_result), sentence); \
  } while (0)

#define CUDACHECK(call)                                                                 \
  do {                                                                                  \
    cudaError_t check_result = (call);                                                  \
    if (check_result != cudaSuccess)                                                    \
      launcher_fail(__FILE__, __LINE__, #call, cudaGetErrorString(check_result), NULL); \
  } while (0)

#define PTHREADCHECK(call)                                                                         \
  do {                                                                                             \
    int check_result = (call);                                                                     \
    if (check_result != 0) launcher_fail(__FILE__, __LINE__, #call, strerror(check_result), NULL); \
  } while (0)

#define MPICHECK(call)                                               \
  do {                                                               \
    int check_result = (call);                                       \
    if (check_result != MPI_SUCCESS) {                               \
      char check_reason[MPI_MAX_ERROR_STRING] = "unknown MPI error"; \
      int check_length = 0;                                          \
      MPI_Error_string(check_result, check_reason, &check_length);   \
      launcher_fail(__FILE__, __LINE__, #call, check_reason, NULL);  \
    }                                                                \
  } while (0)

#endif
