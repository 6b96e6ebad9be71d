/* SPDX-License-Identifier: Apache-2.0 */
/* Copies to shared memory are there at once. */
#ifndef COMMON_CPU_CUDA_PIPELINE_PRIMITIVES_H
#define COMMON_CPU_CUDA_PIPELINE_PRIMITIVES_H
#include <cstring>
static inline void __pipeline_memcpy_async(void *to, const void *from, size_t bytes)
{
  memcpy(to, from, bytes);
}
static inline void __pipeline_commit() {}
static inline void __pipeline_wait_prior(int) {}
#endif
