/* SPDX-License-Identifier: Apache-2.0 */
#include "one_gpu.h"

#include "allreduce_lines.cuh"
#include "allreduce_push.cuh"
#include "allreduce_twohop.cuh"

/* One call of one rank, in device memory. */
template <int N>
struct step {
  kernel_args<N> args;
  enum allreduce_method method;
  const char *input;
  char *from, *to, *result;
  size_t bytes;
  unsigned delay;
  unsigned *came; /* blocks of this rank at the meetings below */
};

/* Between two kernels of a stream the first one has ended: all blocks of a rank wait for each
 * other. */
static __device__ void meet_own_blocks(unsigned *came, unsigned &meetings)
{
  meetings++;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    atomicAdd(came, 1);
    while (*(volatile unsigned *)came < meetings * gridDim.x) {
    }
  }
  __syncthreads();
  __threadfence();
}

static __device__ void wait_up_to(unsigned delay, unsigned call)
{
  const unsigned mixed = (call * 31 + blockIdx.x * 7 + blockIdx.y + 1) * 2654435761u;
  const uint64_t begin = nanoseconds(), wait = mixed >> 30 ? (mixed >> 8) % delay : 0;
  while (nanoseconds() - begin < wait) {
  }
  __syncthreads();
}

static __device__ void copy(char *to, const char *from, size_t bytes)
{
  const size_t step = (size_t)gridDim.x * blockDim.x;
  for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < bytes; i += step)
    ((volatile char *)to)[i] = from ? ((const volatile char *)from)[i] : (char)0xa5;
}

template <typename S, int N>
static __global__ void __launch_bounds__(256) sequence(const step<N> *steps, int n)
{
  unsigned meetings = 0;
  for (int i = 0; i < n; i++) {
    const step<N> &s = steps[(size_t)i * gridDim.y + blockIdx.y];
    copy(s.to - GUARD, NULL, s.bytes + 2 * GUARD);
    meet_own_blocks(s.came, meetings);
    copy(s.from, s.input, s.bytes);
    meet_own_blocks(s.came, meetings);
    wait_up_to(s.delay, i);
    if (s.bytes == 0)
      ; /* nothing is launched */
    else if (s.method == ALLREDUCE_LL)
      lines_allreduce<S, N, LL, false>(s.args);
    else if (s.method == ALLREDUCE_WIDE)
      lines_allreduce<S, N, WIDE, false>(s.args);
    else if (s.method == ALLREDUCE_TWOHOP)
      twohop_allreduce<S, false>(s.args);
    else
      push_allreduce<S, 2>(s.args);
    meet_own_blocks(s.came, meetings);
    copy(s.result, s.to - GUARD, s.bytes + 2 * GUARD);
    meet_own_blocks(s.came, meetings);
  }
}

template <int N>
static void *kernel_for(ncclDataType_t type)
{
  switch (type) {
  case ncclHalf:
    return (void *)sequence<sum_half, N>;
  case ncclDouble:
    return (void *)sequence<sum_double, N>;
  case ncclInt32:
    return (void *)sequence<sum_int32, N>;
  case ncclBfloat16:
    return (void *)sequence<sum_bfloat16, N>;
  default:
    return (void *)sequence<sum_float, N>;
  }
}

template <int N>
static void launch(const one_gpu *job, const calls *c, const enum allreduce_method *methods,
                   int blocks, unsigned delay)
{
  const int n = job->n;
  step<N> *steps;
  unsigned *came;
  CUDACHECK(cudaMallocManaged((void **)&steps, (size_t)c->n * n * sizeof *steps));
  CUDACHECK(cudaMalloc((void **)&came, n * sizeof *came));
  CUDACHECK(cudaMemset(came, 0, n * sizeof *came));
  for (int i = 0; i < c->n; i++)
    for (int rank = 0; rank < n; rank++) {
      const call &k = c->call[i];
      step<N> &s = steps[i * n + rank];
      s = {};
      for (int p = 0; p < n; p++) {
        s.args.recv[p] = job->recv[p] + k.to * k.size;
        s.args.scratch[p] = job->scratch[p];
      }
      s.to = s.args.recv[rank];
      s.from = k.from == IN_PLACE ? s.to : job->send[rank] + k.from * k.size;
      s.args.send = s.from;
      s.args.state = job->state[rank];
      s.args.error = &job->error[rank];
      s.args.limit = job->limit;
      s.args.count = k.count;
      s.args.lines = allreduce_lines_of(n, methods[i]);
      if (k.count > 0)
        s.args.push = allreduce_chunks_of(s.to, k.count * k.size, n, blocks, ONE_GPU_SLOT);
      s.args.check = allreduce_check(k.count, k.type, 0);
      s.args.rank = rank;
      s.args.n = n;
      s.method = methods[i];
      s.input = job->inputs[rank] + k.at + GUARD;
      s.result = job->results[rank] + k.at;
      s.bytes = k.count * k.size;
      s.delay = delay;
      s.came = came + rank;
    }
  const void *args_steps = steps;
  int ncalls = c->n;
  void *args[] = {(void *)&args_steps, &ncalls};
  CUDACHECK(cudaLaunchCooperativeKernel(kernel_for<N>(c->call[0].type), dim3(blocks, n), 256, args,
                                        0, NULL));
  CUDACHECK(cudaDeviceSynchronize());
  CUDACHECK(cudaFree(steps));
  CUDACHECK(cudaFree(came));
}

void one_gpu_launch(const one_gpu *job, const calls *c, const enum allreduce_method *methods,
                    int blocks, unsigned delay)
{
  if (job->n == 2)
    launch<2>(job, c, methods, blocks, delay);
  else if (job->n <= 4)
    launch<4>(job, c, methods, blocks, delay);
  else
    launch<8>(job, c, methods, blocks, delay);
}
