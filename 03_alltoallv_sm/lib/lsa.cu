/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel's side on GPUs: scratch memory, addresses of the peers, launches. What the kernel does
 * is in kernel.cuh.
 *
 * NCCL's device interface is used for two things only: scratch memory that peers can reach (a
 * resource of ncclDevCommCreate, which is also the test for symmetric memory), and the addresses of
 * the peers' windows (ncclGetLsaPointer, in a kernel of one block). */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include <nccl.h>
#if NCCL_VERSION_CODE < NCCL_VERSION(2, 28, 0)
#error "the AlltoAllV needs NCCL 2.28 or newer; allowed: NCCL_HOME=<folder of one>"
#endif
#include <nccl_device.h>

#include "internal.h"
#include "kernel.cuh"

struct alltoallv_lsa {
  ncclComm_t comm;
  ncclDevComm dev_comm;
  bool have_dev_comm;
  int rank, n;
  struct alltoallv_lsa_config config;
  int max_blocks;
  struct alltoallv_scratch scratch;
  char *peer[ALLTOALLV_MAX_LSA_RANKS]; /* scratch memory */
  uint64_t stride;                     /* from one to the next */
  struct device_state *state;
  struct alltoallv_errors *errors; /* host memory that the device can write */
  char **windows;                  /* device: see kernel_args */
  ncclWindow_t window[ALLTOALLV_MAX_WINDOWS];
};

/* ---- what is possible --------------------------------------------------------------------- */

int alltoallv_lsa_ranks(ncclComm_t comm, const char **why)
{
  int version = 0, device = 0, major = 0;
  if (ncclGetVersion(&version) != ncclSuccess) version = 0;
  /* 2.28 makes no promise about its device structures, not even between patch releases. */
  if (NCCL_VERSION_CODE < NCCL_VERSION(2, 29, 0) ? version != NCCL_VERSION_CODE
                                                 : version < NCCL_VERSION_CODE) {
    *why = "NCCL at run time is not the version of the headers";
    return 0;
  }
  if (ncclCommCuDevice(comm, &device) != ncclSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      major < 7) {
    *why = "the GPU is older than compute capability 7.0";
    return 0;
  }
  *why = "";
  return ncclTeamLsa(comm).nRanks;
}

/* NVML, which comes with the driver, knows GPUs that CUDA_VISIBLE_DEVICES hides from this process.
 * NCCL opens it in the same way. */
static bool nvml_sees_nvlink(const char *mine, const char *theirs)
{
  enum { CAPABILITY_NVLINK = 2 };
  void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW), *a, *b;
  if (nvml == NULL) return false;
  auto init = (int (*)(void))dlsym(nvml, "nvmlInit_v2");
  auto find = (int (*)(const char *, void **))dlsym(nvml, "nvmlDeviceGetHandleByPciBusId_v2");
  auto ask = (int (*)(void *, void *, int, int *))dlsym(nvml, "nvmlDeviceGetP2PStatus");
  int status = -1;
  return init != NULL && find != NULL && ask != NULL && init() == 0 && find(mine, &a) == 0 &&
         find(theirs, &b) == 0 && ask(a, b, CAPABILITY_NVLINK, &status) == 0 && status == 0;
}

enum alltoallv_link alltoallv_lsa_link(int device, const char *id)
{
  char mine[ALLTOALLV_PCI_ID] = "";
  int peer = 0, atomics = 0;
  if (cudaDeviceGetByPCIBusId(&peer, id) == cudaSuccess) {
    if (peer == device) return ALLTOALLV_LINK_NVLINK;
    if (cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, device, peer) ==
        cudaSuccess)
      return atomics ? ALLTOALLV_LINK_NVLINK : ALLTOALLV_LINK_PCIE;
  }
  cudaGetLastError(); /* not for others to find */
  if (cudaDeviceGetPCIBusId(mine, sizeof(mine), device) == cudaSuccess &&
      nvml_sees_nvlink(mine, id))
    return ALLTOALLV_LINK_NVLINK;
  return ALLTOALLV_LINK_UNKNOWN;
}

/* ---- set up ------------------------------------------------------------------------------- */

/* Where this rank sees the window of every LSA rank. */
static __global__ void lsa_pointers(ncclWindow_t window, size_t offset, int n, char **out)
{
  int p = threadIdx.x;
  if (p < n) out[p] = (char *)ncclGetLsaPointer(window, offset, p);
}

static ncclResult_t find_peers(struct alltoallv_lsa *lsa, ncclWindow_t window, size_t offset,
                               int id, void **peers)
{
  char **out = lsa->windows + (size_t)id * lsa->n;
  lsa_pointers<<<1, 128>>>(window, offset, lsa->n, out);
  ALLTOALLV_CUDATRY(cudaGetLastError());
  ALLTOALLV_CUDATRY(cudaMemcpy(peers, out, lsa->n * sizeof(*out), cudaMemcpyDeviceToHost));
  return ncclSuccess;
}

/* With lazy loading a kernel is loaded at its first launch, which may wait for a device that waits
 * for us. So load them all now. */
template <int N>
static cudaError_t load_kernels(void)
{
  cudaFuncAttributes attributes;
  cudaError_t e = cudaFuncGetAttributes(&attributes, alltoallv_kernel<N, MODE_SMALL>);
  if (e == cudaSuccess) e = cudaFuncGetAttributes(&attributes, alltoallv_kernel<N, MODE_LARGE>);
  if (e == cudaSuccess) e = cudaFuncGetAttributes(&attributes, alltoallv_kernel<N, MODE_DEVICE>);
  return e;
}

static ncclResult_t create(struct alltoallv_lsa *lsa)
{
  ALLTOALLV_NCCLTRY(ncclCommUserRank(lsa->comm, &lsa->rank));
  ALLTOALLV_NCCLTRY(ncclCommCount(lsa->comm, &lsa->n));

  int device = 0, multiprocessors = 0;
  ALLTOALLV_NCCLTRY(ncclCommCuDevice(lsa->comm, &device));
  ALLTOALLV_CUDATRY(
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  lsa->max_blocks = multiprocessors;
  if (lsa->max_blocks > ALLTOALLV_MAX_BLOCKS) lsa->max_blocks = ALLTOALLV_MAX_BLOCKS;
  if (lsa->config.max_blocks > 0 && lsa->config.max_blocks < lsa->max_blocks)
    lsa->max_blocks = lsa->config.max_blocks;
  ALLTOALLV_CUDATRY(lsa->n <= 8 ? load_kernels<8>() : load_kernels<ALLTOALLV_MAX_LSA_RANKS>());

  size_t table = (size_t)ALLTOALLV_MAX_WINDOWS * lsa->n * sizeof(*lsa->windows);
  ALLTOALLV_CUDATRY(cudaMalloc((void **)&lsa->windows, table));
  ALLTOALLV_CUDATRY(cudaMemset(lsa->windows, 0, table));
  struct device_state first;
  memset(&first, 0, sizeof(first));
  for (int i = 0; i < ALLTOALLV_MAX_BLOCKS; i++) first.epoch[i] = lsa->config.first_epoch - 1;
  ALLTOALLV_CUDATRY(cudaMalloc((void **)&lsa->state, sizeof(first)));
  ALLTOALLV_CUDATRY(cudaMemcpy(lsa->state, &first, sizeof(first), cudaMemcpyHostToDevice));
  ALLTOALLV_CUDATRY(cudaHostAlloc((void **)&lsa->errors, sizeof(*lsa->errors),
                                  cudaHostAllocMapped | cudaHostAllocPortable));
  memset((void *)lsa->errors, 0, sizeof(*lsa->errors));
  ALLTOALLV_CUDATRY(cudaDeviceSynchronize());
  return ncclSuccess;
}

ncclResult_t alltoallv_lsa_create(ncclComm_t comm, const struct alltoallv_lsa_config *config,
                                  struct alltoallv_lsa **lsa)
{
  *lsa = (struct alltoallv_lsa *)calloc(1, sizeof(**lsa));
  if (*lsa == NULL) return alltoallv_fail(ncclSystemError, "out of memory");
  (*lsa)->comm = comm;
  (*lsa)->config = *config;
  return create(*lsa);
}

ncclResult_t alltoallv_lsa_connect(struct alltoallv_lsa *lsa)
{
  lsa->scratch = alltoallv_scratch_layout(lsa->n, lsa->config.ll_threshold);
  ncclDevResourceHandle_t handle = 0;
  ncclDevResourceRequirements_t resource;
  ncclDevCommRequirements_t requirements;
  memset(&resource, 0, sizeof(resource));
  resource.bufferSize = lsa->scratch.bytes; /* NCCL clears it */
  resource.bufferAlign = 4096;
  resource.outBufferHandle = &handle;
#ifdef NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER
  requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
#else
  memset(&requirements, 0, sizeof(requirements));
#endif
  requirements.resourceRequirementsList = &resource;
  ALLTOALLV_NCCLTRY(ncclDevCommCreate(lsa->comm, &requirements, &lsa->dev_comm));
  lsa->have_dev_comm = true;

  ALLTOALLV_TRY(find_peers(lsa, lsa->dev_comm.resourceWindow, ncclGetResourceBufferOffset(handle),
                           0, (void **)lsa->peer));
  /* NCCL maps the ranks at equal distances, which saves the kernel a table. */
  lsa->stride = lsa->n > 1 ? (uint64_t)(lsa->peer[1] - lsa->peer[0]) : 0;
  for (int p = 1; p < lsa->n; p++)
    if ((uint64_t)(lsa->peer[p] - lsa->peer[p - 1]) != lsa->stride)
      return alltoallv_fail(ncclInternalError, "ranks are not mapped at equal distances");
  return ncclSuccess;
}

ncclResult_t alltoallv_lsa_destroy(struct alltoallv_lsa *lsa)
{
  ncclResult_t first = ncclSuccess;
  if (lsa->have_dev_comm) first = ncclDevCommDestroy(lsa->comm, &lsa->dev_comm);
  if (first != ncclSuccess) alltoallv_fail(first, "%s", alltoallv_nccl_reason(first));
  cudaError_t errors[] = {cudaFree(lsa->windows), cudaFree(lsa->state),
                          cudaFreeHost((void *)lsa->errors)};
  for (cudaError_t error : errors)
    if (first == ncclSuccess && error != cudaSuccess)
      first = alltoallv_fail(ncclUnhandledCudaError, "%s", cudaGetErrorString(error));
  free(lsa);
  return first;
}

struct alltoallv_errors *alltoallv_lsa_errors(struct alltoallv_lsa *lsa)
{
  return lsa->errors;
}

ncclResult_t alltoallv_lsa_register(struct alltoallv_lsa *lsa, int id, void *buff, size_t bytes,
                                    void **peers)
{
  lsa->window[id] = NULL;
  ALLTOALLV_NCCLTRY(
      ncclCommWindowRegister(lsa->comm, buff, bytes, &lsa->window[id], NCCL_WIN_COLL_SYMMETRIC));
  if (lsa->window[id] == NULL)
    return alltoallv_fail(ncclInvalidUsage, "NCCL made no window of the buffer");
  return find_peers(lsa, lsa->window[id], 0, id, peers);
}

ncclResult_t alltoallv_lsa_unregister(struct alltoallv_lsa *lsa, int id)
{
  ALLTOALLV_NCCLTRY(ncclCommWindowDeregister(lsa->comm, lsa->window[id]));
  return ncclSuccess;
}

/* ---- launch ------------------------------------------------------------------------------- */

/* What an exchange is worth: idle blocks and threads cost time too. */
struct shape {
  int mode;
  dim3 grid;
  int threads;
};

static struct shape shape_of(const struct alltoallv_lsa *lsa,
                             const struct alltoallv_request *request)
{
  struct shape s = {MODE_DEVICE, dim3(1), 512};
  int teams = lsa->n < lsa->max_blocks ? lsa->n : lsa->max_blocks;
  int blocks = lsa->max_blocks / teams; /* of a team */
  uint64_t largest = 0;
  if (request->kind != ALLTOALLV_KIND_HOST) {
    const uint64_t fits =
        request->capacity * (request->kind == ALLTOALLV_KIND_SLOTS ? (uint64_t)lsa->n : 1);
    /* Only what fits is known: where little can arrive, little is sent, mostly. So a warp for
     * every group of half of it, rounded up: of two ranks that is the pair with the other one. */
    uint64_t enough = fits * request->element / 2 / (16 * ALLTOALLV_GROUP_BYTES) + 1;
    if (enough < 4) enough = 4;
    if (fits > 0 && enough < (uint64_t)blocks) blocks = (int)enough;
  } else {
    for (int p = 0; p < lsa->n; p++) {
      const struct alltoallv_pair *pair = &request->pairs[p];
      if (pair->send_bytes > largest) largest = pair->send_bytes;
      if (pair->recv_bytes > largest) largest = pair->recv_bytes;
    }
    s.mode = largest > lsa->config.ll_threshold ? MODE_LARGE : MODE_SMALL;
  }
  if (s.mode == MODE_SMALL) {
    /* a warp for every group of the largest pair, in blocks as small as that allows */
    uint64_t groups = largest / ALLTOALLV_GROUP_BYTES + 1;
    for (s.threads = 128; s.threads < 512; s.threads *= 2)
      if (groups <= (uint64_t)(blocks * s.threads / 32)) break;
    uint64_t enough = (groups * 32 + s.threads - 1) / s.threads;
    if (enough < (uint64_t)blocks) blocks = (int)enough;
  }
  if (teams * blocks < 2) blocks = 2; /* the control block and another one */
  s.grid = dim3(blocks, teams);
  return s;
}

template <int N>
static void fill(const struct alltoallv_lsa *lsa, const struct alltoallv_request *request,
                 kernel_args<N> *a)
{
  const bool host = request->kind == ALLTOALLV_KIND_HOST;
  a->rank = lsa->rank;
  a->n = lsa->n;
  a->kind = request->kind;
  a->window = request->window;
  a->window_offset = request->window_offset;
  a->send = request->send;
  a->recv = request->recv;
  a->ll_threshold = (uint32_t)lsa->config.ll_threshold;
  a->scratch_base = lsa->peer[0];
  a->scratch_stride = lsa->stride;
  a->limit = (uint64_t)(lsa->config.timeout_seconds * 1e9);
  a->scratch = lsa->scratch;
  a->state = lsa->state;
  a->errors = lsa->errors;
  a->windows = lsa->windows;
  a->element = request->element;
  a->eager = host ? alltoallv_eager_bytes(lsa->n, lsa->config.ll_threshold) : 0;
  a->capacity = request->capacity;
  a->sendcounts = (const uint64_t *)request->sendcounts;
  a->sdispls = (const uint64_t *)request->sdispls;
  a->recvcounts = (uint64_t *)request->recvcounts;
  a->rdispls = (uint64_t *)request->rdispls;
  a->needed = (uint64_t *)request->needed;
  for (int p = 0; host && p < lsa->n; p++) a->pairs[p] = request->pairs[p];
}

template <int N>
static ncclResult_t launch(struct alltoallv_lsa *lsa, const struct alltoallv_request *request,
                           cudaStream_t stream)
{
  kernel_args<N> a = {};
  fill(lsa, request, &a);
  struct shape s = shape_of(lsa, request);
  if (s.mode == MODE_SMALL)
    alltoallv_kernel<N, MODE_SMALL><<<s.grid, s.threads, 0, stream>>>(a);
  else if (s.mode == MODE_LARGE)
    alltoallv_kernel<N, MODE_LARGE><<<s.grid, s.threads, 0, stream>>>(a);
  else
    alltoallv_kernel<N, MODE_DEVICE><<<s.grid, s.threads, 0, stream>>>(a);
  ALLTOALLV_CUDATRY(cudaGetLastError());
  return ncclSuccess;
}

ncclResult_t alltoallv_lsa_launch(struct alltoallv_lsa *lsa,
                                  const struct alltoallv_request *request, cudaStream_t stream)
{
  return lsa->n <= 8 ? launch<8>(lsa, request, stream)
                     : launch<ALLTOALLV_MAX_LSA_RANKS>(lsa, request, stream);
}
