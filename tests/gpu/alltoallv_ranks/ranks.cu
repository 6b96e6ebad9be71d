/* SPDX-License-Identifier: Apache-2.0 */
#include "ranks.h"

#include <string.h>

#include <vector>

#include "lib/alltoallv_kernel.cuh"

namespace
{

struct launch_args {
  const kernel_args *args; /* [exchange * ranks + rank] */
  int exchanges, ranks;
  uint64_t seed;
  uint32_t *arrived; /* [rank]: blocks that have come to its barrier */
  char *received;    /* [exchange * ranks + rank][bytes] */
  size_t bytes;
};

/* What a call with device counts takes from device memory, and leaves there. */
struct lists {
  size_t sendcounts[RANKS_MAX], sdispls[RANKS_MAX], recvcounts[RANKS_MAX], rdispls[RANKS_MAX];
};

__device__ uint32_t hash(uint64_t x)
{
  x = (x ^ x >> 31) * 0x7fb5d329728ea185ull;
  x = (x ^ x >> 27) * 0x81dadef4bc2dd44dull;
  return (uint32_t)(x >> 33);
}

/* Of the blocks of one rank: between two kernels of a stream, all blocks of the first have ended.
 */
__device__ void rank_barrier(uint32_t *arrived, uint32_t blocks)
{
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence_system();
    const uint32_t target = (atomicAdd(arrived, 1) / blocks + 1) * blocks;
    while ((int32_t)(*(volatile uint32_t *)arrived - target) < 0) continue;
    __threadfence_system();
  }
  __syncthreads();
}

/* Of a rank, which makes it late for all, sometimes for several exchanges; and of a block. */
__device__ void delay(uint64_t seed, int exchange, uint32_t block)
{
  const uint64_t key = seed * 1000003 + exchange * 64ull + blockIdx.z;
  const uint32_t of_rank = hash(key), of_block = hash(key * 1009 + block + 1);
  if (of_rank % 8 == 0) __nanosleep(of_rank / 8 % 20000);
  if (of_rank % 32 == 1) __nanosleep(300000);
  if (of_block % 4 == 0) __nanosleep(of_block / 4 % 3000);
}

__host__ __device__ bool has_large(const kernel_args &a)
{
  bool large = false;
  for (int p = 0; a.x.kind == ALLTOALLV_KIND_HOST && p < a.n; p++)
    large |= a.pairs[p].sends > a.ll_threshold || a.pairs[p].gets > a.ll_threshold;
  return large;
}

__global__ void __launch_bounds__(512, 1) all_ranks(const __grid_constant__ launch_args l)
{
  const uint32_t blocks = all_blocks(), block = this_block();
  const size_t first = block * blockDim.x + threadIdx.x, step = blocks * blockDim.x;
  for (int e = 0; e < l.exchanges; e++) {
    const int at = e * l.ranks + blockIdx.z;
    const kernel_args &a = l.args[at];
    for (size_t i = first; i < l.bytes; i += step) a.x.payload[0].recv[i] = (char)RANKS_GUARD;
    rank_barrier(&l.arrived[blockIdx.z], blocks);
    delay(l.seed, e, block);
    if (a.x.kind != ALLTOALLV_KIND_HOST)
      exchange<MODE_DEVICE>(a);
    else if (has_large(a))
      exchange<MODE_LARGE>(a);
    else
      exchange<MODE_SMALL>(a);
    rank_barrier(&l.arrived[blockIdx.z], blocks);
    for (size_t i = first; i < l.bytes; i += step)
      l.received[at * l.bytes + i] = *(volatile char *)&a.x.payload[0].recv[i];
  }
}

/* Memory that host and device use in turn, cleared. */
class memory
{
public:
  template <typename T>
  T *take(size_t count)
  {
    T *at = NULL;
    if (error == cudaSuccess) error = cudaMallocManaged((void **)&at, count * sizeof(T));
    if (error != cudaSuccess) return NULL;
    memset((void *)at, 0, count * sizeof(T));
    all.push_back(at);
    return at;
  }
  ~memory()
  {
    for (void *at : all) cudaFree(at);
  }
  cudaError_t error = cudaSuccess;

private:
  std::vector<void *> all;
};

/* Of a block: the matrix of counts, and what fits. */
size_t shared_bytes(int ranks)
{
  return (size_t)(ranks * (ranks + 1)) * sizeof(uint64_t);
}

} // namespace

int ranks_blocks(int ranks)
{
  int device = 0, multiprocessors = 0, each = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) !=
          cudaSuccess ||
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, all_ranks, 512, shared_bytes(ranks)) !=
          cudaSuccess)
    return 0;
  return each * multiprocessors;
}

cudaError_t ranks_run(struct ranks_case *c)
{
  const size_t n = (size_t)c->ranks, all = n * (size_t)c->exchanges;
  const size_t mailboxes = n * alltoallv_mailbox_bytes(c->ll_bytes); /* of a parity */
  const size_t stride = (2 * mailboxes + c->buffer_bytes + 255) / 256 * 256;
  memory m;
  launch_args l = {};
  kernel_args *args = m.take<kernel_args>(all);
  struct lists *lists = m.take<struct lists>(all);
  struct alltoallv_state *states = m.take<struct alltoallv_state>(n);
  struct alltoallv_errors *errors = m.take<struct alltoallv_errors>(n);
  char *input = m.take<char>(c->input_bytes);
  char *scratches = m.take<char>(n * stride); /* and a receive buffer after each */
  l.args = args;
  l.exchanges = c->exchanges, l.ranks = c->ranks, l.seed = c->seed, l.bytes = c->buffer_bytes;
  l.arrived = m.take<uint32_t>(n);
  l.received = m.take<char>(all * c->buffer_bytes);
  if (m.error != cudaSuccess) return m.error;

  memcpy(input, c->input, c->input_bytes);
  for (size_t rank = 0; rank < n; rank++) {
    for (auto &block : states[rank].block) block.epoch = c->first_epoch - 1;
    for (size_t i = 0; c->stale && i < 2 * mailboxes; i += ALLTOALLV_LINE_BYTES) {
      const uint32_t number = i < mailboxes ? 2 : 3;
      memcpy(scratches + rank * stride + i + 12, &number, sizeof number);
    }
  }
  for (size_t i = 0; i < all; i++) {
    const struct ranks_exchange *x = &c->exchange[i / n];
    const size_t rank = i % n;
    kernel_args *a = &args[i];
    a->state = &states[rank];
    a->scratch_base = scratches, a->scratch_stride = stride;
    a->mailbox_bytes = alltoallv_mailbox_bytes(c->ll_bytes);
    a->rank = (int)rank, a->n = c->ranks;
    a->ll_threshold = (uint32_t)c->ll_bytes;
    a->head = ALLTOALLV_GROUP_BYTES;
    a->x.kind = x->kind, a->x.element = 1, a->x.payloads = 1, a->x.widest = 1,
    a->x.most = ALLTOALLV_TOO_MANY;
    a->x.payload[0] = {input, scratches + rank * stride + 2 * mailboxes, 2 * mailboxes, 1};
    a->x.room = x->kind == ALLTOALLV_KIND_SLOTS ? c->buffer_bytes / n : c->buffer_bytes;
    a->x.sendcounts = lists[i].sendcounts, a->x.sdispls = lists[i].sdispls;
    a->x.recvcounts = lists[i].recvcounts, a->x.rdispls = lists[i].rdispls;
    a->limit = 10000000000ull; /* ns */
    a->errors = &errors[rank];
    for (size_t p = 0; p < n; p++) {
      a->pairs[p] = x->pairs[rank][p];
      lists[i].sendcounts[p] = a->pairs[p].sends;
      lists[i].sdispls[p] = a->pairs[p].sends_at;
    }
    if (has_large(*a)) a->line_blocks = (uint32_t)(c->columns * c->teams + 3) / 4;
  }

  void *kernel_arguments[] = {&l};
  m.error =
      cudaLaunchCooperativeKernel((const void *)all_ranks, dim3(c->columns, c->teams, c->ranks),
                                  dim3(512), kernel_arguments, shared_bytes(c->ranks), NULL);
  if (m.error == cudaSuccess) m.error = cudaDeviceSynchronize();
  if (m.error != cudaSuccess) return m.error;
  memcpy(c->received, l.received, all * c->buffer_bytes);
  for (size_t i = 0; i < all; i++) memcpy(c->counts[i], lists[i].recvcounts, sizeof *c->counts);
  memcpy(c->errors, errors, n * sizeof *errors);
  return cudaSuccess;
}
