/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA C++ as far as the examples use it: included before each .cu file, which common/cpu/cuda.pl
 * then rewrites. Here are keywords, types and launches; functions are in cuda_functions.h, PTX is
 * in cuda_ptx.h. How all of it works is in common/cpu/kernel.c. */
#ifndef COMMON_CPU_CUDA_KERNELS_H
#define COMMON_CPU_CUDA_KERNELS_H

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include <cpu_kernel.h>
#include <cuda_runtime.h>

#define __CUDACC__ 1
#define __CUDACC_VER_MAJOR__ (CUDART_VERSION / 1000)
#define __CUDACC_VER_MINOR__ (CUDART_VERSION % 1000 / 10)
#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

static const int warpSize = 32;

/* ---- vectors --------------------------------------------------------------------------------- */

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) double2 {
  double x, y;
};
struct alignas(16) ulonglong2 {
  unsigned long long x, y;
};
static inline uint2 make_uint2(unsigned x, unsigned y)
{
  return {x, y};
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
  return {x, y, z, w};
}
static inline float2 make_float2(float x, float y)
{
  return {x, y};
}
static inline float4 make_float4(float x, float y, float z, float w)
{
  return {x, y, z, w};
}
static inline double2 make_double2(double x, double y)
{
  return {x, y};
}
static inline ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y)
{
  return {x, y};
}

/* ---- launches -------------------------------------------------------------------------------- */

/* A kernel and its arguments, which cpu_launch copies into the queue of the stream. */
template <typename K, typename... A>
struct cpu_call {
  struct cpu_grid grid;
  K kernel;
  std::tuple<A...> arguments;
  static void one_thread(const void *args)
  {
    const cpu_call *c = (const cpu_call *)args;
    std::apply(c->kernel, c->arguments);
  }
  static void all_threads(const void *args)
  {
    alignas(cpu_call) char copy[sizeof(cpu_call)];
    memcpy(copy, args, sizeof copy);
    struct cpu_grid grid = ((const cpu_call *)copy)->grid;
    grid.args = copy;
    cpu_run_grid(&grid);
  }
};

/* cuda.pl makes cpu_kernel(kernel, blocks, threads, ...)(arguments) of a launch. */
template <typename K>
struct cpu_kernel {
  K kernel;
  dim3 blocks, threads;
  size_t shared;
  cudaStream_t stream;
  cpu_kernel(K kernel, dim3 blocks, dim3 threads, size_t shared = 0, cudaStream_t stream = NULL)
      : kernel(kernel), blocks(blocks), threads(threads), shared(shared), stream(stream)
  {
  }
  template <typename... A>
  cudaError_t operator()(A... a)
  {
    typedef cpu_call<K, A...> call;
    const call c = {{{blocks.x, blocks.y, blocks.z},
                     {threads.x, threads.y, threads.z},
                     shared,
                     call::one_thread,
                     NULL},
                    kernel,
                    std::tuple<A...>(a...)};
    return cpu_launch(stream, call::all_threads, &c, sizeof c);
  }
};

enum cudaLaunchAttributeID {
  cudaLaunchAttributeCooperative = 2,
  cudaLaunchAttributeProgrammaticStreamSerialization = 6
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  union {
    int cooperative, programmaticStreamSerializationAllowed;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute *attrs;
  unsigned numAttrs;
};
template <typename... P, typename... A>
static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(P...),
                                             A &&...a)
{
  return cpu_kernel<void (*)(P...)>(kernel, config->gridDim, config->blockDim,
                                    config->dynamicSmemBytes,
                                    config->stream)(P(std::forward<A>(a))...);
}

struct cudaFuncAttributes {
  int ptxVersion, maxThreadsPerBlock;
};
template <typename K>
static inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, K)
{
  *attributes = {80, 128}; /* each takes time here, and 72 ranks need as many */
  return cudaSuccess;
}

#include <cuda_functions.h>
#include <cuda_ptx.h>

#endif
