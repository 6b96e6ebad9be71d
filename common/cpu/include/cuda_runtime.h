/* SPDX-License-Identifier: Apache-2.0 */
/* The part of the CUDA runtime interface that the examples use, for `make CPU=1`.
 *
 * Names, values and signatures are CUDA 13's, so that one source compiles against this header and
 * against CUDA's own. Comments at the calls describe differences in behavior. */
#ifndef COMMON_CPU_CUDA_RUNTIME_H
#define COMMON_CPU_CUDA_RUNTIME_H

#include <stddef.h>
#ifdef __cplusplus
#include <cstring> /* like CUDA's header; C++ programs rely on it */
#define CPU_DEFAULT(value) = value
#else
#define CPU_DEFAULT(value)
#endif

#define CUDART_VERSION 13000

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cudaError {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorLaunchFailure = 719,
  cudaErrorNotPermitted = 800,
  cudaErrorStreamCaptureUnsupported = 900 /* not allowed during capture */
} cudaError_t;

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUgraph_st *cudaGraphExec_t;
typedef void (*cudaHostFn_t)(void *userData);

/* ---- errors -------------------------------------------------------------------------------- */

const char *cudaGetErrorString(cudaError_t error);
#define cudaGetErrorName cudaGetErrorString
cudaError_t cudaPeekAtLastError(void);
cudaError_t cudaGetLastError(void); /* of this thread, which forgets it */

/* ---- devices ------------------------------------------------------------------------------- */

typedef struct {
  char bytes[16];
} cudaUUID_t;

struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  size_t totalGlobalMem;
  int major, minor; /* 0.0 */
};

enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrL2CacheSize = 38,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
  cudaDevAttrComputeCapabilityMajor = 75
};

cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device);
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int device);
cudaError_t cudaDeviceSynchronize(void);

/* ---- memory -------------------------------------------------------------------------------- */

enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4
};

#define cudaHostAllocDefault 0x00
#define cudaHostAllocPortable 0x01
#define cudaHostAllocMapped 0x02

cudaError_t cudaMemGetInfo(size_t *free, size_t *total);
cudaError_t cudaMalloc(void **pointer, size_t bytes);
cudaError_t cudaFree(void *pointer);
cudaError_t cudaMallocHost(void **pointer, size_t bytes);
cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned int flags);
cudaError_t cudaFreeHost(void *pointer);

/* Without Async, the call runs on the default stream and returns when it is done. */
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind);
cudaError_t cudaMemset(void *to, int value, size_t bytes);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream CPU_DEFAULT(0));
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream CPU_DEFAULT(0));

/* ---- streams ------------------------------------------------------------------------------- */

#define cudaStreamLegacy ((cudaStream_t)0x1) /* stream 0 */
#define cudaStreamDefault 0x00
#define cudaStreamNonBlocking 0x01

cudaError_t cudaStreamCreate(cudaStream_t *stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
cudaError_t cudaStreamDestroy(cudaStream_t stream); /* waits for the stream's work, unlike CUDA */
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned int flags CPU_DEFAULT(0));
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *userData);

/* ---- events -------------------------------------------------------------------------------- */

#define cudaEventDefault 0x00
#define cudaEventBlockingSync 0x01
#define cudaEventDisableTiming 0x02

cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream CPU_DEFAULT(0));
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end);

/* ---- stream capture and graphs ------------------------------------------------------------- */

enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal = 0,
  cudaStreamCaptureModeThreadLocal = 1,
  cudaStreamCaptureModeRelaxed = 2
};

enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone = 0, cudaStreamCaptureStatusActive = 1 };

/* The mode has no effect: it forbids no call. Operations that another thread queues to a captured
 * stream are not captured. */
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                 unsigned long long flags CPU_DEFAULT(0));
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph,
                                          unsigned long long flags);
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);

#ifdef __cplusplus
}

/* In C++ CUDA also has these. */
template <typename T>
static inline cudaError_t cudaMalloc(T **pointer, size_t bytes)
{
  return cudaMalloc((void **)pointer, bytes);
}
template <typename T>
static inline cudaError_t cudaMallocHost(T **pointer, size_t bytes, unsigned int flags = 0)
{
  return cudaHostAlloc((void **)pointer, bytes, flags);
}
template <typename T>
static inline cudaError_t cudaHostAlloc(T **pointer, size_t bytes, unsigned int flags)
{
  return cudaHostAlloc((void **)pointer, bytes, flags);
}
static inline cudaError_t cudaEventCreate(cudaEvent_t *event, unsigned int flags)
{
  return cudaEventCreateWithFlags(event, flags);
}
static inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, void *,
                                               char *, size_t)
{
  return cudaGraphInstantiateWithFlags(exec, graph, 0);
}
#endif
#endif
