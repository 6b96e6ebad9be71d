/* SPDX-License-Identifier: Apache-2.0 */
/* The part of CUDA's driver interface that the examples use: flags that a stream sets and awaits.
 */
#ifndef COMMON_CPU_CUDA_H
#define COMMON_CPU_CUDA_H

#include <cuda_runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { CUDA_SUCCESS = 0, CUDA_ERROR_NOT_SUPPORTED = 801 } CUresult;
typedef struct CUstream_st *CUstream;
typedef unsigned long long CUdeviceptr;
typedef enum {
  CU_STREAM_MEM_OP_WAIT_VALUE_32 = 1,
  CU_STREAM_MEM_OP_WRITE_VALUE_32 = 2
} CUstreamBatchMemOpType;
enum { CU_STREAM_WAIT_VALUE_EQ = 1, CU_STREAM_WRITE_VALUE_DEFAULT = 0 };

typedef struct {
  CUstreamBatchMemOpType operation;
  CUdeviceptr address;
  union {
    unsigned value;
    unsigned long long value64;
  };
  unsigned flags;
  CUdeviceptr alias;
} CUstreamMemOpValueParams;

typedef union {
  CUstreamBatchMemOpType operation;
  CUstreamMemOpValueParams waitValue, writeValue;
} CUstreamBatchMemOpParams;

CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned count,
                               CUstreamBatchMemOpParams *operations, unsigned flags);
#define cuStreamBatchMemOp cuStreamBatchMemOp_v2

#ifdef __cplusplus
}
#endif
#endif
