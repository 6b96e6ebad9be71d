/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the CPU stand-in: kernels. What they do right is shown by 02 to 04, so these are the
 * parts of CUDA that readers' kernels may use, windows, and what the stand-in says of mistakes. */
#include "standin.h"

#include <nccl_device.h>

/* ---- threads and what they share ------------------------------------------------------------- */

static dim3 number(unsigned i, dim3 size)
{
  return dim3(i % size.x, i / size.x % size.y, i / size.x / size.y);
}

struct __align__(32) aligned
{
  int4 words;
};
static __constant__ const aligned ZEROS = {};

/* out[block][thread]: the sum of the block's threads up to this one, and more of other kinds. */
static __global__ void scan(int *out, int *total, unsigned *turn)
{
  extern __shared__ int before[];
  __shared__ int of_warp[32];
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned threads = blockDim.x * blockDim.y * blockDim.z, lane = thread % 32;
  int value = (int)(block + thread % 7) + __ldg(&ZEROS.words.w) + (int)sizeof(ZEROS) - 32;
  atomicAdd(total, value);
  for (unsigned by = 1; by < 32; by *= 2) {
    const int other = __shfl_up_sync(~0u, value, by);
    if (lane >= by) value += other;
  }
  if (lane == 31 || thread == threads - 1) of_warp[thread / 32] = value;
  before[thread] = __popc(__ballot_sync(~0u, thread % 3 == 0) & ((1u << lane) - 1));
  if (__syncthreads_count(thread % 5 == 0) != (int)(threads + 4) / 5) value = -1000000;
  for (unsigned w = 0; w < thread / 32; w++) value += of_warp[w];
  /* blocks in the opposite order: each waits for the next one */
  const unsigned blocks = gridDim.x * gridDim.y * gridDim.z;
  if (thread == 0)
    while (*(volatile unsigned *)turn != blocks - 1 - block) continue;
  __syncthreads();
  out[block * threads + thread] = value + 1000 * before[threads - 1 - thread];
  __syncthreads();
  if (thread == 0) atomicAdd(turn, 1);
}

void test_kernels(void **state)
{
  (void)state;
  const dim3 blocks(2, 3, 2), threads(9, 5, 3);
  const unsigned n = threads.x * threads.y * threads.z, all = 12;
  int *out = (int *)device_memory(all * n * sizeof(int)), *total = (int *)device_memory(8), sum = 0;
  CUDA(cudaMemset(total, 0, 8));
  scan<<<blocks, threads, n * sizeof(int)>>>(out, total, (unsigned *)total + 1);
  CUDA(cudaDeviceSynchronize());
  for (unsigned block = 0; block < all; block++) {
    int value = 0;
    for (unsigned thread = 0; thread < n; thread++) {
      value += (int)(block + thread % 7);
      const unsigned other = n - 1 - thread;
      int before = 0;
      for (unsigned t = other / 32 * 32; t < other; t++) before += t % 3 == 0;
      REQUIRE(out[block * n + thread] == value + 1000 * before);
    }
    sum += value;
  }
  REQUIRE(*total == sum);
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  scan<<<1, 1025, 0, stream>>>(out, total, NULL);
  REQUIRE(cudaStreamSynchronize(stream) == cudaErrorLaunchFailure);
  REQUIRE(cudaDeviceSynchronize() == cudaErrorLaunchFailure);
  REQUIRE(strstr(cudaGetErrorString(cudaErrorLaunchFailure), "1025 threads per block"));
  CUDA(cudaStreamDestroy(stream));
  CUDA(cudaFree(out));
  CUDA(cudaFree(total));
}

/* ---- windows --------------------------------------------------------------------------------- */

/* Every rank adds up what all ranks have, between two barriers; the result is left at all. */
static __global__ void add_all(ncclDevComm comm, ncclWindow_t window, size_t count, int *out)
{
  ncclLsaBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), comm, ncclTeamLsa(comm),
                                             comm.lsaBarrier, blockIdx.x);
  barrier.sync(ncclCoopCta(), cuda::memory_order_acquire);
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    int sum = 0;
    for (int p = 0; p < comm.nRanks; p++) sum += ((int *)ncclGetLsaPointer(window, 0, p))[i];
    out[i] = sum;
  }
  barrier.sync(ncclCoopCta(), cuda::memory_order_release);
}

static void window_body(struct rank *me)
{
  enum { COUNT = 5000, BLOCKS = 3 };
  int *in = NULL, *out = (int *)device_memory(COUNT * sizeof(int)), rest[3] = {0};
  ncclWindow_t window = NULL, large = NULL;
  ncclDevComm comm;
  ncclDevCommRequirements requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  requirements.lsaBarrierCount = BLOCKS;
  NCCL(ncclDevCommCreate(me->comm, &requirements, &comm));
  NCCL(ncclMemAlloc((void **)&in, COUNT * sizeof(int)));
  NCCL(ncclCommWindowRegister(me->comm, in, COUNT * sizeof(int), &window, NCCL_WIN_COLL_SYMMETRIC));
  for (int i = 0; i < COUNT; i++) in[i] = me->rank * i;
  add_all<<<BLOCKS, 96, 0, me->stream>>>(comm, window, COUNT, out);
  CUDA(cudaStreamSynchronize(me->stream));
  for (int i = 0; i < COUNT; i++) REQUIRE(out[i] == i * me->n * (me->n - 1) / 2);

  const int next = (me->rank + 1) % me->n;
  const size_t bytes = COUNT * sizeof(int);
  char *theirs = (char *)ncclGetLsaPointer(window, 0, next);
  REQUIRE(ncclGetLsaPointer(window, bytes, next) == theirs + bytes);
  REQUIRE(!ncclGetLsaPointer(window, bytes + 1, next) && !ncclGetLsaPointer(window, 0, me->n));
  const enum cudaMemcpyKind kind = cudaMemcpyDeviceToDevice;
  REQUIRE(cudaMemcpy(out, theirs + 8, bytes, kind) == cudaErrorInvalidValue);
  REQUIRE(cudaMemcpy(theirs + bytes - 4, out, 8, kind) == cudaErrorInvalidValue);
  CUDA(cudaMemcpy(rest, theirs + bytes - 12, 12, cudaMemcpyDeviceToHost));
  REQUIRE(rest[2] == next * (COUNT - 1));
  REQUIRE(cudaMemcpy(theirs + CPU_LSA_STRIDE / 2, out, 4, kind) == cudaErrorInvalidValue);

  /* again and again: more in all than there are addresses and memory for */
  for (int i = 0; i < 20; i++) {
    char *memory = NULL;
    NCCL(ncclMemAlloc((void **)&memory, (size_t)1 << 30));
    NCCL(ncclCommWindowRegister(me->comm, memory, (size_t)1 << 30, &large, 0));
    ((char *)ncclGetLsaPointer(large, 0, next))[(1 << 30) - 1 - i] = (char)i;
    pthread_barrier_wait(&barrier);
    REQUIRE(memory[(1 << 30) - 1 - i] == (char)i);
    NCCL(ncclCommWindowDeregister(me->comm, large));
    NCCL(ncclMemFree(memory));
  }
  NCCL(ncclCommWindowDeregister(me->comm, window));
  NCCL(ncclMemFree(in));
  NCCL(ncclDevCommDestroy(me->comm, &comm));
  CUDA(cudaFree(out));
}

void test_kernel_windows(void **state)
{
  (void)state;
  run_ranks(1, window_body);
  run_ranks(3, window_body);
}

/* ---- deadlocks ------------------------------------------------------------------------------- */

static __global__ void wait_for_others(int kind)
{
  if (blockIdx.x != 1) return;
  if (kind == 0 && threadIdx.x == 7) {
    __shfl_sync(3u << 7, 0, 0); // thread 7
    return;
  }
  if (kind == 1 && threadIdx.x >= 60) __syncwarp(1); // threads from 60
  __syncthreads();                                   // the others
}

static int line_of(const char *text)
{
  char line[200];
  FILE *source = fopen(__FILE__, "r");
  REQUIRE(source != NULL);
  for (int n = 1; fgets(line, sizeof(line), source) != NULL; n++)
    if (strstr(line, text) != NULL && strstr(line, "strstr") == NULL) {
      fclose(source);
      return n;
    }
  REQUIRE(!"the line is there");
  return 0;
}

static void expect_deadlock(int kind, const char *text)
{
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  wait_for_others<<<2, 64, 0, stream>>>(kind);
  REQUIRE(cudaStreamSynchronize(stream) == cudaErrorLaunchFailure);
  const char *said = cudaGetErrorString(cudaErrorLaunchFailure);
  if (strcmp(said, text) != 0) fprintf(stderr, "said: %s\nexpected: %s\n", said, text);
  REQUIRE(strcmp(said, text) == 0);
  CUDA(cudaStreamDestroy(stream));
}

/* They end the kernel, with a sentence that says who waits where. */
void test_deadlocks(void **state)
{
  char text[300];
  (void)state;
  snprintf(text, sizeof(text),
           "block 1: 63 of 64 threads wait at __syncthreads in kernels.cu:%d, thread 7 at "
           "__shfl_sync in kernels.cu:%d",
           line_of("// the "
                   "others"),
           line_of("// thread "
                   "7"));
  expect_deadlock(0, text);
  snprintf(text, sizeof(text),
           "block 1: 60 of 64 threads wait at __syncthreads in kernels.cu:%d, 4 threads at "
           "__syncwarp in kernels.cu:%d",
           line_of("// the "
                   "others"),
           line_of("// threads "
                   "from"));
  expect_deadlock(1, text);
}
