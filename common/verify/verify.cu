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
static __global__ void fill(Word *buffer, size_t count, verify_data data, int rank,
                            const verify_state *state)
{
  for (size_t i = first_element(); i < count; i += stride())
    buffer[i] = (Word)verify_bits(data.type, verify_input(&data, state->round, rank, i));
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
static __global__ void compare(const Word *buffer, size_t count, verify_data data,
                               verify_state *state)
{
  __shared__ unsigned long long block_first;
  unsigned long long wrong = 0, first = ~0ULL;
  Word bits = 0;
  if (threadIdx.x == 0) block_first = ~0ULL;
  for (size_t i = first_element(); i < count; i += stride()) {
    const Word element = buffer[i]; /* read once: it may change if the caller did not wait */
    if (element == (Word)verify_bits(data.type, verify_expected(&data, state->round, i))) continue;
    if (wrong++ == 0) {
      first = i;
      bits = element;
    }
  }
  if (!__syncthreads_or(wrong != 0)) return;
  if (wrong != 0) {
    atomicAdd(&state->wrong, wrong);
    atomicMin(&block_first, first);
  }
  __syncthreads();
  if (wrong == 0 || first != block_first) return;
  record(state, first, bits);
}

template <typename Word>
static __global__ void digest(const Word *buffer, size_t count, verify_state *state)
{
  unsigned long long hash = 0; /* a sum: the order in which threads add does not matter */
  for (size_t i = first_element(); i < count; i += stride())
    hash += verify_element_hash(buffer[i], i);
  if (hash) atomicAdd(&state->digest, hash);
}

static __global__ void next_round(verify_state *state)
{
  state->round++;
}

/* `Word` is the unsigned integer that is as wide as an element. */
template <typename Word>
static void launch(verify_operation operation, void *buffer, size_t count, verify_data data,
                   int rank, verify_state *state, cudaStream_t stream)
{
  Word *words = (Word *)buffer;
  const unsigned blocks = blocks_for(count);
  if (operation == VERIFY_FILL)
    fill<<<blocks, THREADS, 0, stream>>>(words, count, data, rank, state);
  else if (operation == VERIFY_COMPARE)
    compare<<<blocks, THREADS, 0, stream>>>(words, count, data, state);
  else if (operation == VERIFY_DIGEST)
    digest<<<blocks, THREADS, 0, stream>>>(words, count, state);
  else
    next_round<<<1, 1, 0, stream>>>(state);
}

cudaError_t verify_launch(verify_operation operation, void *buffer, size_t count, verify_data data,
                          int rank, verify_state *state, cudaStream_t stream)
{
  auto function = data.size == 1   ? launch<uint8_t>
                  : data.size == 2 ? launch<uint16_t>
                  : data.size == 4 ? launch<uint32_t>
                                   : launch<uint64_t>;
  function(operation, buffer, count, data, rank, state, stream);
  return cudaGetLastError();
}
