/* SPDX-License-Identifier: Apache-2.0 */
#include "elements.h"

static const unsigned THREADS = 256;

static unsigned blocks_for(size_t count)
{
  size_t blocks = (count + THREADS - 1) / THREADS;
  return blocks < 1024 ? (unsigned)blocks : 1024;
}

template <typename Word>
static __global__ void fill(segment s)
{
  for (size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x; i < s.count;
       i += gridDim.x * (size_t)THREADS)
    ((Word *)s.start)[i] = (Word)element_bits(&s, i);
}

template <typename Word>
static __global__ void compare(segment s, element_errors *errors)
{
  unsigned long long wrong = 0;
  for (size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x; i < s.count;
       i += gridDim.x * (size_t)THREADS)
    if (((const Word *)s.start)[i] != (Word)element_bits(&s, i)) {
      if (wrong++ == 0 && atomicCAS(&errors->first_plus_one, 0ULL, i + 1) == 0)
        errors->source = s.source;
    }
  if (wrong) atomicAdd(&errors->wrong, wrong);
}

#define LAUNCH(kernel, ...)                                          \
  do {                                                               \
    if (segment.count == 0) return cudaSuccess;                      \
    const unsigned blocks = blocks_for(segment.count);               \
    switch (segment.size) {                                          \
    case 1:                                                          \
      kernel<uint8_t><<<blocks, THREADS, 0, stream>>>(__VA_ARGS__);  \
      break;                                                         \
    case 2:                                                          \
      kernel<uint16_t><<<blocks, THREADS, 0, stream>>>(__VA_ARGS__); \
      break;                                                         \
    case 4:                                                          \
      kernel<uint32_t><<<blocks, THREADS, 0, stream>>>(__VA_ARGS__); \
      break;                                                         \
    default:                                                         \
      kernel<uint64_t><<<blocks, THREADS, 0, stream>>>(__VA_ARGS__); \
      break;                                                         \
    }                                                                \
    return cudaGetLastError();                                       \
  } while (0)

cudaError_t elements_fill(struct segment segment, cudaStream_t stream)
{
  LAUNCH(fill, segment);
}

cudaError_t elements_compare(struct segment segment, element_errors *errors, cudaStream_t stream)
{
  LAUNCH(compare, segment, errors);
}
