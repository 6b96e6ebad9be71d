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
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)

static const int warpSize = 32;

/* ---- vectors --------------------------------------------------------------------------------- */

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
#define CPU_VECTOR2(NAME, T)               \
  struct alignas(2 * sizeof(T)) NAME {     \
    T x, y;                                \
  };                                       \
  static inline NAME make_##NAME(T x, T y) \
  {                                        \
    return {x, y};                         \
  }
#define CPU_VECTOR4(NAME, T)                         \
  struct alignas(4 * sizeof(T)) NAME {               \
    T x, y, z, w;                                    \
  };                                                 \
  static inline NAME make_##NAME(T x, T y, T z, T w) \
  {                                                  \
    return {x, y, z, w};                             \
  }
CPU_VECTOR2(int2, int)
CPU_VECTOR4(int4, int)
CPU_VECTOR2(uint2, unsigned)
CPU_VECTOR4(uint4, unsigned)
CPU_VECTOR2(float2, float)
CPU_VECTOR4(float4, float)
CPU_VECTOR2(double2, double)
CPU_VECTOR2(ulonglong2, unsigned long long)

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
  static void all_threads(const void *args) { cpu_run_grid(&((const cpu_call *)args)->grid, args); }
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
                     call::one_thread},
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
