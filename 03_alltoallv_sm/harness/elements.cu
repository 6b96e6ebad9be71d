/* SPDX-License-Identifier: Apache-2.0 */
#include "elements.h"

static const unsigned BLOCKS = 1024, THREADS = 256;

static __global__ void fill_or_compare(segment s, element_errors *errors)
{
  const size_t step = gridDim.x * (size_t)THREADS;
  unsigned long long wrong = 0;
  for (size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x; i < s.count; i += step) {
    if (element_store_or_compare(&s, i, !errors) && wrong++ == 0 &&
        atomicCAS(&errors->first_plus_one, 0ULL, i + 1) == 0)
      errors->source = s.source;
  }
  if (wrong) atomicAdd(&errors->wrong, wrong);
}

cudaError_t elements_launch(struct segment segment, element_errors *errors, cudaStream_t stream)
{
  size_t blocks = (segment.count + THREADS - 1) / THREADS;
  if (blocks > BLOCKS) blocks = BLOCKS;
  if (blocks > 0) fill_or_compare<<<blocks, THREADS, 0, stream>>>(segment, errors);
  return cudaGetLastError();
}
