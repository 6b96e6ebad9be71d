/* SPDX-License-Identifier: Apache-2.0 */
/* An AllGather as a kernel of your own: docs/kernels_without_gpu.md says how to build it, and
 * prints what a good run does: "every rank has the parts of all 4 ranks". */
#include <stdio.h>

#include <thread>
#include <vector>

#include <nccl.h>
#include <nccl_device.h>

#define CHECK(call)                                                        \
  do {                                                                     \
    const int code = (int)(call);                                          \
    if (code == 0) break;                                                  \
    fprintf(stderr, "%s:%d: %s: %d %s\n", __FILE__, __LINE__, #call, code, \
            cudaGetErrorString((cudaError_t)code));                        \
    exit(3);                                                               \
  } while (0)

enum { RANKS = 4, BLOCKS = 2, THREADS = 128 };
static const size_t COUNT = 10007; /* numbers of each rank */

/* Stores the part of this rank into the windows of all others. */
static __global__ void all_gather(ncclDevComm comm, ncclWindow_t window)
{
  ncclLsaBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), comm, ncclTeamTagLsa(), blockIdx.x);
  /* all ranks are here, so their windows may be written */
  barrier.sync(ncclCoopCta(), cuda::memory_order_relaxed);
  const size_t at = comm.rank * COUNT * sizeof(int);
  const int *mine = (const int *)ncclGetLsaPointer(window, at, comm.rank);
  for (int i = 1; i < comm.nRanks; i++) {
    int *theirs = (int *)ncclGetLsaPointer(window, at, (comm.rank + i) % comm.nRanks);
    for (size_t k = blockIdx.x * THREADS + threadIdx.x; k < COUNT; k += BLOCKS * THREADS)
      theirs[k] = mine[k];
  }
  /* all parts have arrived */
  barrier.sync(ncclCoopCta(), cuda::memory_order_release);
}

static void run(int rank, ncclUniqueId id)
{
  ncclComm_t comm;
  ncclWindow_t window;
  ncclDevComm dev_comm;
#ifdef NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER
  ncclDevCommRequirements requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
#else
  ncclDevCommRequirements requirements = {};
#endif
  cudaStream_t stream;
  int *memory;
  const size_t bytes = RANKS * COUNT * sizeof(int);
  CHECK(cudaSetDevice(rank));
  CHECK(ncclCommInitRank(&comm, RANKS, id, rank));
  CHECK(cudaStreamCreate(&stream));
  requirements.lsaBarrierCount = BLOCKS;
  CHECK(ncclDevCommCreate(comm, &requirements, &dev_comm));
  CHECK(ncclMemAlloc((void **)&memory, bytes));
  CHECK(ncclCommWindowRegister(comm, memory, bytes, &window, NCCL_WIN_COLL_SYMMETRIC));

  std::vector<int> numbers(RANKS * COUNT, -1);
  for (size_t k = 0; k < COUNT; k++) numbers[rank * COUNT + k] = (int)(rank * COUNT + k);
  CHECK(cudaMemcpyAsync(memory, numbers.data(), bytes, cudaMemcpyHostToDevice, stream));
  all_gather<<<BLOCKS, THREADS, 0, stream>>>(dev_comm, window);
  CHECK(cudaMemcpyAsync(numbers.data(), memory, bytes, cudaMemcpyDeviceToHost, stream));
  CHECK(cudaStreamSynchronize(stream));
  size_t wrong = 0;
  for (size_t k = 0; k < RANKS * COUNT; k++) wrong += numbers[k] != (int)k;
  if (wrong > 0) {
    fprintf(stderr, "rank %d: %zu of %zu numbers are wrong\n", rank, wrong, RANKS * COUNT);
    exit(1);
  }
  CHECK(ncclCommWindowDeregister(comm, window));
  CHECK(ncclMemFree(memory));
  CHECK(ncclDevCommDestroy(comm, &dev_comm));
  CHECK(cudaStreamDestroy(stream));
  CHECK(ncclCommDestroy(comm));
}

int main()
{
  ncclUniqueId id;
  CHECK(ncclGetUniqueId(&id));
  std::vector<std::thread> ranks;
  for (int r = 0; r < RANKS; r++) ranks.emplace_back(run, r, id);
  for (std::thread &rank : ranks) rank.join();
  printf("every rank has the parts of all %d ranks\n", RANKS);
}
