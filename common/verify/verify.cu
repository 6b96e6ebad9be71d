/* SPDX-License-Identifier: Apache-2.0 */
#include "verify_kernels.h"

/* Grid-stride loops: the grid is fixed, a thread takes every (blocks * threads)-th element. */
static const unsigned BLOCKS = 1024, THREADS = 256;

static __device__ size_t first_element()
{
  return blockIdx.x * (size_t)blockDim.x + threadIdx.x;
}
static __device__ size_t stride()
{
  return gridDim.x * (size_t)blockDim.x;
}

static unsigned blocks_for(size_t count)
{
  size_t blocks = (count + THREADS - 1) / THREADS;
  return blocks < 1 ? 1 : blocks > BLOCKS ? BLOCKS : (unsigned)blocks;
}

template <typename Word>
static __global__ void fill(verify_job job)
{
  const uint64_t round = job.state->round;
  for (size_t i = first_element(); i < job.count; i += stride())
    ((Word *)job.buffer)[i] =
        (Word)verify_bits(job.data.type, verify_input(&job.data, round, job.rank, i));
}

/* Changes the lowest index and its element together. Only one thread of a block calls this: if two
 * threads of a warp waited for each other here, they might never finish. */
static __device__ void record(verify_state *state, unsigned long long first, uint64_t bits)
{
  while (atomicCAS(&state->busy, 0, 1) != 0) continue;
  __threadfence();
  volatile verify_state *shared = state;
  if (first < shared->first) {
    shared->first = first;
    shared->bits = bits;
  }
  __threadfence();
  atomicExch(&state->busy, 0);
}

template <typename Word>
static __global__ void compare(verify_job job)
{
  __shared__ unsigned long long block_first;
  const uint64_t round = job.state->round;
  unsigned long long wrong = 0, first = ~0ULL;
  Word bits = 0;
  if (threadIdx.x == 0) block_first = ~0ULL;
  for (size_t i = first_element(); i < job.count; i += stride()) {
    const Word element = ((Word *)job.buffer)[i]; /* once: it may change if nobody has waited */
    if (element == (Word)verify_bits(job.data.type, verify_expected(&job.data, round, i))) continue;
    if (wrong++ == 0) {
      first = i;
      bits = element;
    }
  }
  if (!__syncthreads_or(wrong != 0)) return;
  if (wrong != 0) {
    atomicAdd(&job.state->wrong, wrong);
    atomicMin(&block_first, first);
  }
  __syncthreads();
  if (wrong == 0 || first != block_first) return;
  record(job.state, first, bits);
}

template <typename Word>
static __global__ void digest(verify_job job)
{
  unsigned long long hash = 0; /* a sum: the order in which threads add does not matter */
  for (size_t i = first_element(); i < job.count; i += stride())
    hash += verify_element_hash(((Word *)job.buffer)[i], i);
  if (hash) atomicAdd(&job.state->digest, hash);
}

static __global__ void next_round(verify_job job)
{
  if (threadIdx.x == 0) job.state->round++;
}

/* `Word` is the unsigned integer that is as wide as an element. */
template <typename Word>
static void launch(verify_operation operation, verify_job job, cudaStream_t stream)
{
  void (*const kernels[])(verify_job) = {fill<Word>, compare<Word>, digest<Word>, next_round};
  kernels[operation]<<<blocks_for(job.count), THREADS, 0, stream>>>(job);
}

cudaError_t verify_launch(verify_operation operation, verify_job job, cudaStream_t stream)
{
  auto function = job.data.size == 1   ? launch<uint8_t>
                  : job.data.size == 2 ? launch<uint16_t>
                  : job.data.size == 4 ? launch<uint32_t>
                                       : launch<uint64_t>;
  function(operation, job, stream);
  return cudaGetLastError();
}
