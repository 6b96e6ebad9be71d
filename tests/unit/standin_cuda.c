/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the CPU stand-in: streams, events, memory, devices. */
#include "standin.h"

static void set_flag(void *argument)
{
  atomic_store((atomic_int *)argument, 1);
}

void test_asynchrony(void **state)
{
  (void)state;
  cudaStream_t stream;
  CUDA(cudaSetDevice(0));
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  int host = 5, *device = device_memory(sizeof(int)), *pinned = NULL;
  CUDA(cudaMallocHost((void **)&pinned, sizeof(int)));
  *pinned = 0;
  slow(stream, 300);
  CUDA(cudaMemcpyAsync(device, &host, sizeof(int), cudaMemcpyHostToDevice, stream));
  host = 6; /* allowed: ordinary host memory was read by the call */
  CUDA(cudaMemcpyAsync(pinned, device, sizeof(int), cudaMemcpyDeviceToHost, stream));
  atomic_int flag = 0;
  CUDA(cudaLaunchHostFunc(stream, set_flag, &flag));
  REQUIRE(atomic_load(&flag) == 0); /* the copy before it has not happened either */
  CUDA(cudaStreamSynchronize(stream));
  REQUIRE(*pinned == 5 && atomic_load(&flag) == 1);

  /* The same on the default stream; cudaMemcpy comes after what it holds. */
  *pinned = 0;
  slow(NULL, 100);
  CUDA(cudaMemsetAsync(device, 0, sizeof(int), NULL));
  CUDA(cudaMemcpy(pinned, device, sizeof(int), cudaMemcpyDefault));
  REQUIRE(*pinned == 0);
  /* cudaFree waits for the device. */
  double start = now();
  slow(stream, 100);
  CUDA(cudaFree(device));
  REQUIRE(now() - start > 0.09);
  CUDA(cudaFreeHost(pinned));
  CUDA(cudaStreamDestroy(stream));
}

void test_events(void **state)
{
  (void)state;
  cudaStream_t a, b;
  cudaEvent_t start, end, untimed;
  float milliseconds = 0;
  CUDA(cudaSetDevice(1));
  CUDA(cudaStreamCreate(&a));
  CUDA(cudaStreamCreate(&b));
  CUDA(cudaEventCreate(&start));
  CUDA(cudaEventCreate(&end));
  CUDA(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
  CUDA(cudaEventQuery(start)); /* never recorded: nothing to wait for */
  CUDA(cudaEventSynchronize(start));
  CUDA(cudaStreamWaitEvent(a, start, 0));
  REQUIRE(cudaEventElapsedTime(&milliseconds, start, end) == cudaErrorInvalidResourceHandle);
  CUDA(cudaEventRecord(start, a));
  slow(a, 100);
  CUDA(cudaEventRecord(end, a));
  REQUIRE(cudaEventQuery(end) == cudaErrorNotReady);
  REQUIRE(cudaEventElapsedTime(&milliseconds, start, end) == cudaErrorNotReady);
  CUDA(cudaEventSynchronize(end));
  CUDA(cudaEventElapsedTime(&milliseconds, start, end));
  REQUIRE(milliseconds > 95 && milliseconds < 5000);
  CUDA(cudaEventRecord(untimed, a));
  CUDA(cudaEventSynchronize(untimed));
  REQUIRE(cudaEventElapsedTime(&milliseconds, start, untimed) == cudaErrorInvalidResourceHandle);

  /* b adds after a, however slow a is; the event may be destroyed while it is waited for. */
  int *memory = device_memory(sizeof(int)), value = 0;
  CUDA(cudaMemset(memory, 0, sizeof(int)));
  for (int i = 0; i < 50; i++) {
    cudaEvent_t event;
    CUDA(cudaEventCreate(&event));
    if (i % 10 == 0) slow(i % 2 == 0 ? a : b, 5);
    add_to(i % 2 == 0 ? a : b, memory, 1, 1);
    CUDA(cudaEventRecord(event, i % 2 == 0 ? a : b));
    CUDA(cudaStreamWaitEvent(i % 2 == 0 ? b : a, event, 0));
    CUDA(cudaEventDestroy(event));
  }
  CUDA(cudaStreamSynchronize(b));
  CUDA(cudaMemcpy(&value, memory, sizeof(int), cudaMemcpyDeviceToHost));
  REQUIRE(value == 50);
  CUDA(cudaFree(memory));
  CUDA(cudaEventDestroy(start));
  CUDA(cudaEventDestroy(end));
  CUDA(cudaEventDestroy(untimed));
  CUDA(cudaStreamDestroy(a));
  CUDA(cudaStreamDestroy(b));
}

void test_memory(void **state)
{
  (void)state;
  size_t free_bytes = 0, total = 0, later = 0;
  void *a = NULL, *b = NULL;
  unsigned char bytes[64];
  CUDA(cudaSetDevice(2));
  CUDA(cudaMemGetInfo(&free_bytes, &total));
  REQUIRE(free_bytes == total && total == (size_t)2 << 30);
  CUDA(cudaMalloc(&a, (size_t)1 << 30));
  REQUIRE(cudaMalloc(&b, ((size_t)1 << 30) + 1) == cudaErrorMemoryAllocation && b == NULL);
  REQUIRE(cudaGetLastError() == cudaErrorMemoryAllocation && cudaGetLastError() == cudaSuccess);
  REQUIRE(ncclMemAlloc(&b, (size_t)2 << 30) == ncclUnhandledCudaError);
  REQUIRE(strstr(ncclGetLastError(NULL), "out of memory") != NULL);
  REQUIRE(cudaMalloc(&b, SIZE_MAX) == cudaErrorMemoryAllocation);
  CUDA(cudaMemGetInfo(&later, &total));
  REQUIRE(later == total - ((size_t)1 << 30));
  /* fresh memory is neither zero nor what it was before */
  CUDA(cudaMemcpy(bytes, a, sizeof(bytes), cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < sizeof(bytes); i++) REQUIRE(bytes[i] != 0);
  CUDA(cudaFree(a));
  REQUIRE(cudaFree(a) == cudaErrorInvalidValue);
  REQUIRE(cudaFree(bytes) == cudaErrorInvalidValue);
  CUDA(cudaFree(NULL));
  NCCL(ncclMemFree(NULL));
  CUDA(cudaMemGetInfo(&later, &total));
  REQUIRE(later == free_bytes);
  CUDA(cudaMalloc(&a, 0));
  REQUIRE(a == NULL);

  CUDA(cudaMalloc(&a, 100));
  REQUIRE(cudaMemcpy(a, bytes, 101, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  REQUIRE(cudaMemcpy(bytes, bytes, 1, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
  REQUIRE(cudaMemset(bytes, 0, 1) == cudaErrorInvalidValue);
  REQUIRE(cudaMemcpy(a, bytes, 1, (enum cudaMemcpyKind)9) == cudaErrorInvalidValue);
  CUDA(cudaHostAlloc(&b, 100, cudaHostAllocPortable));
  REQUIRE(cudaFree(b) == cudaErrorInvalidValue);
  CUDA(cudaMemcpy(a, b, 100, cudaMemcpyHostToDevice));
  CUDA(cudaFreeHost(b));
  CUDA(cudaFree(a));
}

void test_devices(void **state)
{
  (void)state;
  int count = 0, device = -1, value = -1;
  char first[32], second[32];
  struct cudaDeviceProp properties;
  CUDA(cudaGetDeviceCount(&count));
  REQUIRE(count == 64);
  CUDA(cudaSetDevice(63));
  CUDA(cudaGetDevice(&device));
  REQUIRE(device == 63);
  REQUIRE(cudaSetDevice(64) == cudaErrorInvalidDevice);
  REQUIRE(cudaSetDevice(-1) == cudaErrorInvalidDevice);
  CUDA(cudaDeviceGetPCIBusId(first, sizeof(first), 0));
  CUDA(cudaDeviceGetPCIBusId(second, sizeof(second), 63));
  REQUIRE(strcmp(first, second) != 0);
  CUDA(cudaGetDeviceProperties(&properties, 5));
  REQUIRE(strcmp(properties.name, "CPU stand-in") == 0);
  REQUIRE(strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory") == 0);
  CUDA(cudaRuntimeGetVersion(&value));
  REQUIRE(value == CUDART_VERSION);
  NCCL(ncclGetVersion(&value));
  REQUIRE(value == NCCL_VERSION_CODE && value == NCCL_VERSION(2, 28, 9));
  cudaGetLastError();
}
