/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of any type: four elements at a time, on their way while other work is done. */
#ifndef OPS_GRADIENT_CUH
#define OPS_GRADIENT_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <type_traits>

#include "device/device.cuh"

namespace
{

/* f(gradient), as a pointer to elements of its type. */
template <typename F>
ncclResult_t ops_with_type(ncclDataType_t type, const void *gradient, F f)
{
  switch (type) {
  case ncclHalf:
    return f((const __half *)gradient);
  case ncclBfloat16:
    return f((const __nv_bfloat16 *)gradient);
  default:
    return f((const float *)gradient);
  }
}

template <typename G>
struct quad {
  std::conditional_t<sizeof(G) == 4, float4, uint2> raw;
};

template <typename G>
__device__ inline float value(const quad<G> &q, int e)
{
  if constexpr (sizeof(G) == 4) return ((const float *)&q.raw)[e];
  const uint16_t bits = (uint16_t)(((const uint32_t *)&q.raw)[e / 2] >> 16 * (e % 2));
  return (float)*(const G *)&bits;
}

/* Sets an element that was 0. */
template <typename G>
__device__ inline void set(quad<G> &q, int e, G x)
{
  if constexpr (sizeof(G) == 4)
    ((float *)&q.raw)[e] = x;
  else
    ((uint32_t *)&q.raw)[e / 2] |= (uint32_t) * (const uint16_t *)&x << 16 * (e % 2);
}

/* To shared memory, where it is, for this thread, after ops_await_copies(); before sm_80 it is
 * there at once. What PASSES through the L2 cache is the first to be evicted again. */
template <bool PASSES, typename G>
__device__ inline void load_async(quad<G> *to, const G *from)
{
#if __CUDA_ARCH__ >= 800
  if (PASSES) {
    static_assert(sizeof(*to) == 8 || sizeof(*to) == 16, "what one copy takes");
    const uint32_t shared = (uint32_t)__cvta_generic_to_shared(to);
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    if (sizeof(*to) == 16)
      asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(shared),
                   "l"(from), "l"(policy)
                   : "memory");
    else
      asm volatile("cp.async.ca.shared.global.L2::cache_hint [%0], [%1], 8, %2;" ::"r"(shared),
                   "l"(from), "l"(policy)
                   : "memory");
    return;
  }
#endif
  __pipeline_memcpy_async(to, from, sizeof(*to));
}

} // namespace

#endif
