/* SPDX-License-Identifier: Apache-2.0 */
/* The direct AllReduce on GPUs: where it is possible, scratch memory, addresses of the peers,
 * launches. What the kernels do is in oneshot.cuh and twoshot.cuh.
 *
 * Of NCCL's device interface (2.28 and later) one thing is used: ncclGetLsaPointer, in a kernel of
 * one block. ncclDevCommCreate is called because it tells whether there is symmetric memory:
 * without it a window may be none. */
#include "internal.h"

#if ALLREDUCE_HAS_DEVICE_CODE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include <nccl_device.h>

#include "oneshot.cuh"
#include "twoshot.cuh"

enum { THREADS = 512 }; /* of a block, at most */

struct allreduce_device {
  ncclComm_t comm;
  int rank, n;
  uint64_t limit; /* nanoseconds */
  char *scratch;
  ncclWindow_t window;
  char *peers[ALLREDUCE_MAX_RANKS]; /* the scratch memory of each rank */
  char **table;                     /* device memory, for n addresses */
  struct allreduce_state *state;
  struct allreduce_error *error;
  bool overlaps; /* the code that runs here waits for the kernel before it: wait.cuh */
};

/* ---- kernels --------------------------------------------------------------------------------- */

template <typename S, int N>
static __global__ void __launch_bounds__(THREADS)
    ll_kernel(const __grid_constant__ kernel_args<N> a)
{
  oneshot_allreduce<S, N, LL>(a);
}

template <typename S, int N>
static __global__ void __launch_bounds__(THREADS)
    ll128_kernel(const __grid_constant__ kernel_args<N> a)
{
  oneshot_allreduce<S, N, LL128>(a);
}

template <typename S, int N>
static __global__ void __launch_bounds__(THREADS)
    twoshot_kernel(const __grid_constant__ kernel_args<N> a)
{
  /* as many words on their way as registers allow; a sum may be added in wider ones than a word */
  constexpr int WORDS = N <= 2 ? 8 : N <= 4 ? 4 : 2;
  constexpr int WIDER = sizeof(typename S::wide) / sizeof(typename S::element);
  constexpr int U = WIDER < WORDS ? WORDS / WIDER : 1;
  twoshot_allreduce<S, N, U>(a);
}

template <int N>
using kernel = void (*)(const kernel_args<N>);

template <typename S, int N>
static kernel<N> kernel_of(enum allreduce_method method)
{
  return method == ALLREDUCE_LL      ? ll_kernel<S, N>
         : method == ALLREDUCE_LL128 ? ll128_kernel<S, N>
                                     : twoshot_kernel<S, N>;
}

template <int N>
static kernel<N> kernel_for(enum allreduce_method method, ncclDataType_t type)
{
#define KERNEL_OF(type, sum, bits)                                            \
  case type:                                                                  \
    static_assert(sizeof(sum::element) == sizeof(bits), "an element's size"); \
    return kernel_of<sum, N>(method);
  switch (type) {
    ALLREDUCE_TYPES(KERNEL_OF)
  default:
    return NULL;
  }
}

/* ---- launch ---------------------------------------------------------------------------------- */

template <int N>
static ncclResult_t launch(struct allreduce_device *d, const struct allreduce_call *call,
                           cudaStream_t stream)
{
  const kernel<N> launched = kernel_for<N>(call->launch.method, call->type);
  if (launched == NULL)
    return allreduce_fail(ncclInvalidArgument, "no kernel adds type %d", (int)call->type);
  kernel_args<N> a = {};
  for (int p = 0; p < d->n; p++) {
    a.send[p] = call->send[p];
    a.recv[p] = call->recv[p];
    a.scratch[p] = d->peers[p];
  }
  a.state = d->state;
  a.error = d->error;
  a.limit = d->limit;
  a.count = call->count;
  a.lines = allreduce_lines_of(d->n, call->launch.method == ALLREDUCE_LL128);
  a.slice = call->slice;
  a.check = call->check;
  a.rank = d->rank;
  a.n = d->n;
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(call->launch.blocks);
  config.blockDim = dim3(call->launch.threads);
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = d->overlaps && call->launch.method != ALLREDUCE_TWOSHOT;
  ALLREDUCE_CUDATRY(cudaLaunchKernelEx(&config, launched, a));
  return ncclSuccess;
}

ncclResult_t allreduce_device_launch(struct allreduce_device *device,
                                     const struct allreduce_call *call, cudaStream_t stream)
{
  if (device->n == 2) return launch<2>(device, call, stream);
  if (device->n <= 4) return launch<4>(device, call, stream);
  if (device->n <= 8) return launch<8>(device, call, stream);
  return launch<ALLREDUCE_MAX_RANKS>(device, call, stream);
}

/* With lazy loading a kernel is loaded at its first launch, which may wait for a device that waits
 * for us. So load them all now. Finds how many blocks of each method a multiprocessor has room for,
 * whatever the type. */
template <int N>
static cudaError_t load_kernels(bool *overlaps, int fit[ALLREDUCE_METHODS])
{
#define TYPE(type, sum, bits) type,
  static const ncclDataType_t types[] = {ALLREDUCE_TYPES(TYPE)};
  static const enum allreduce_method methods[] = {ALLREDUCE_LL, ALLREDUCE_LL128, ALLREDUCE_TWOSHOT};
  cudaFuncAttributes attributes;
  int driver = 0;
  cudaError_t e = cudaDriverGetVersion(&driver);
  for (enum allreduce_method method : methods) {
    fit[method] = ALLREDUCE_MAX_BLOCKS;
    for (ncclDataType_t type : types) {
      const void *kernel = (const void *)kernel_for<N>(method, type);
      int blocks = 0;
      if (e == cudaSuccess) e = cudaFuncGetAttributes(&attributes, kernel);
      if (e == cudaSuccess)
        e = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, THREADS, 0);
      if (e != cudaSuccess) return e;
      *overlaps = attributes.ptxVersion >= ALLREDUCE_OVERLAPS && driver >= 12030; /* for all */
      if (blocks < fit[method]) fit[method] = blocks;
    }
  }
  return cudaSuccess;
}

/* ---- where it is possible -------------------------------------------------------------------- */

/* How this rank's device reaches another GPU: over NVLink GPUs have atomic operations on each
 * other's memory, over PCIe they have not. */
enum link { LINK_UNKNOWN, LINK_PCIE, LINK_NVLINK };

/* A process may see its own GPU only (CUDA_VISIBLE_DEVICES), as Slurm's tasks do. NVML, which NCCL
 * needs as well, sees all of the host, whatever CUDA does. */
static enum link link_by_nvml(const char *mine, const char *theirs)
{
  enum { NVLINK = 2, OK = 0, UNKNOWN = 6 }; /* NVML_P2P_CAPS_INDEX_..., NVML_P2P_STATUS_... */
  void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  void *a = NULL, *b = NULL;
  int status = -1;
  if (nvml == NULL) return LINK_UNKNOWN;
  auto init = (int (*)(void))dlsym(nvml, "nvmlInit_v2");
  auto find = (int (*)(const char *, void **))dlsym(nvml, "nvmlDeviceGetHandleByPciBusId_v2");
  auto p2p = (int (*)(void *, void *, int, int *))dlsym(nvml, "nvmlDeviceGetP2PStatus");
  const bool known = init != NULL && find != NULL && p2p != NULL && init() == 0 &&
                     find(mine, &a) == 0 && find(theirs, &b) == 0 &&
                     p2p(a, b, NVLINK, &status) == 0;
  if (!known) return LINK_UNKNOWN;
  return status == OK ? LINK_NVLINK : status == UNKNOWN ? LINK_UNKNOWN : LINK_PCIE;
}

static enum link link_to(int device, const char *id)
{
  int peer = 0, atomics = 0;
  char mine[ALLREDUCE_ID] = "";
  enum link link = LINK_UNKNOWN;
  if (cudaDeviceGetByPCIBusId(&peer, id) == cudaSuccess &&
      (peer == device || cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported,
                                                   device, peer) == cudaSuccess))
    link = peer == device || atomics ? LINK_NVLINK : LINK_PCIE;
  else if (cudaDeviceGetPCIBusId(mine, sizeof mine, device) == cudaSuccess)
    link = link_by_nvml(mine, id);
  cudaGetLastError(); /* not for others to find */
  return link;
}

/* V100, A100, and all from H100 on. (NCCL uses its own lines of 128 bytes from 7.0 on; this is
 * narrower. Only on H200 has it been tried.) */
static bool keeps_128_bytes(int major, int minor)
{
  return major >= 9 || (major >= 7 && minor == 0);
}

const char *allreduce_device_why_not(ncclComm_t comm, int n, const char *ids,
                                     struct allreduce_limits *limits)
{
  int version = 0, device = 0, major = 0, minor = 0;
  if (ncclGetVersion(&version) != ncclSuccess) version = 0;
  /* 2.28 makes no promise about its device structures, not even between patch releases. */
  if (NCCL_VERSION_CODE < NCCL_VERSION(2, 29, 0) ? version != NCCL_VERSION_CODE
                                                 : version < NCCL_VERSION_CODE)
    return "NCCL at run time is not the version of the headers";
  if (ncclTeamLsa(comm).nRanks != n) return "not all ranks share memory";
  if (ncclCommCuDevice(comm, &device) != ncclSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess)
    return "the GPU cannot be asked for its properties";
  if (major < 7) return "the GPU is older than compute capability 7.0";
  if (!keeps_128_bytes(major, minor)) limits->ll128 = 0;
  for (int p = 0; p < n; p++) {
    const enum link link = link_to(device, ids + (size_t)p * ALLREDUCE_ID);
    if (link == LINK_PCIE) return "a GPU is reached over PCIe";
    if (link == LINK_UNKNOWN) limits->ll128 = 0;
  }
  return "";
}

/* ---- set up ---------------------------------------------------------------------------------- */

/* Where this rank sees the window of every rank. */
static __global__ void lsa_pointers(ncclWindow_t window, int n, char **out)
{
  const int p = threadIdx.x;
  if (p < n) out[p] = (char *)ncclGetLsaPointer(window, 0, p);
}

ncclResult_t allreduce_device_peers(struct allreduce_device *d, ncclWindow_t window, char **peers)
{
  lsa_pointers<<<1, 128>>>(window, d->n, d->table);
  ALLREDUCE_CUDATRY(cudaGetLastError());
  ALLREDUCE_CUDATRY(cudaMemcpy(peers, d->table, d->n * sizeof(*peers), cudaMemcpyDeviceToHost));
  return ncclSuccess;
}

ncclResult_t allreduce_device_create(ncclComm_t comm, int rank, int n, double timeout,
                                     uint64_t calls_before, struct allreduce_limits *limits,
                                     struct allreduce_device **device)
{
  struct allreduce_device *d = (struct allreduce_device *)calloc(1, sizeof(*d));
  *device = d;
  if (d == NULL) return allreduce_fail(ncclSystemError, "out of memory");
  d->comm = comm;
  d->rank = rank;
  d->n = n;
  d->limit = (uint64_t)(timeout * 1e9);
  const size_t bytes = allreduce_scratch_bytes(n);
  struct allreduce_state first = {};
  for (allreduce_state::allreduce_memory &block : first.block) block.epoch = calls_before;
  int now = 0, multiprocessors = 0, fit[ALLREDUCE_METHODS];
  ALLREDUCE_CUDATRY(cudaGetDevice(&now));
  ALLREDUCE_CUDATRY(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, now));
  ALLREDUCE_CUDATRY(n == 2   ? load_kernels<2>(&d->overlaps, fit)
                    : n <= 4 ? load_kernels<4>(&d->overlaps, fit)
                    : n <= 8 ? load_kernels<8>(&d->overlaps, fit)
                             : load_kernels<ALLREDUCE_MAX_RANKS>(&d->overlaps, fit));
  for (int m = 0; m < ALLREDUCE_METHODS; m++)
    limits->blocks[m] = fit[m] * multiprocessors < ALLREDUCE_MAX_BLOCKS ? fit[m] * multiprocessors
                                                                        : ALLREDUCE_MAX_BLOCKS;
  ALLREDUCE_CUDATRY(cudaMalloc((void **)&d->table, n * sizeof(*d->table)));
  ALLREDUCE_CUDATRY(cudaMalloc((void **)&d->state, sizeof(first)));
  ALLREDUCE_CUDATRY(cudaMemcpy(d->state, &first, sizeof(first), cudaMemcpyHostToDevice));
  ALLREDUCE_CUDATRY(cudaHostAlloc((void **)&d->error, sizeof(*d->error),
                                  cudaHostAllocMapped | cudaHostAllocPortable));
  memset(d->error, 0, sizeof(*d->error));
  ALLREDUCE_NCCLTRY(ncclMemAlloc((void **)&d->scratch, bytes));
  ALLREDUCE_CUDATRY(cudaMemset(d->scratch, 0, bytes));
  ALLREDUCE_CUDATRY(cudaDeviceSynchronize()); /* before a peer can reach it */
  return ncclSuccess;
}

/* Collective. */
static ncclResult_t probe_symmetric_memory(ncclComm_t comm)
{
#ifdef NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER
  ncclDevCommRequirements requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
#else
  ncclDevCommRequirements requirements;
  memset(&requirements, 0, sizeof(requirements));
#endif
  ncclDevComm probe;
  const ncclResult_t made = ncclDevCommCreate(comm, &requirements, &probe);
  if (made == ncclInvalidUsage)
    return allreduce_fail(made, "the communicator has no symmetric memory");
  ALLREDUCE_NCCLTRY(made);
  ALLREDUCE_NCCLTRY(ncclDevCommDestroy(comm, &probe));
  return ncclSuccess;
}

ncclResult_t allreduce_device_connect(struct allreduce_device *d)
{
  ALLREDUCE_TRY(probe_symmetric_memory(d->comm));
  ALLREDUCE_NCCLTRY(ncclCommWindowRegister(d->comm, d->scratch, allreduce_scratch_bytes(d->n),
                                           &d->window, NCCL_WIN_COLL_SYMMETRIC));
  if (d->window == NULL) return allreduce_fail(ncclInvalidUsage, "NCCL made no window");
  return allreduce_device_peers(d, d->window, d->peers);
}

ncclResult_t allreduce_device_destroy(struct allreduce_device *d)
{
  ncclResult_t first = ncclSuccess, memory = ncclSuccess;
  if (d->window != NULL) first = ncclCommWindowDeregister(d->comm, d->window);
  if (d->scratch != NULL) memory = ncclMemFree(d->scratch);
  if (first == ncclSuccess) first = memory;
  if (first != ncclSuccess) allreduce_fail(first, "%s", allreduce_nccl_reason(first));
  const cudaError_t errors[] = {cudaFree(d->table), cudaFree(d->state), cudaFreeHost(d->error)};
  for (cudaError_t error : errors)
    if (first == ncclSuccess && error != cudaSuccess)
      first = allreduce_fail(ncclUnhandledCudaError, "%s", cudaGetErrorString(error));
  free(d);
  return first;
}

struct allreduce_error *allreduce_device_error(struct allreduce_device *d)
{
  return d->error;
}

#else /* nobody calls anything but the first */
const char *allreduce_device_why_not(ncclComm_t, int, const char *, struct allreduce_limits *)
{
  return "built with NCCL older than 2.28 or CUDA older than 12.3";
}
#define NOT_HERE(name, ...)      \
  ncclResult_t name(__VA_ARGS__) \
  {                              \
    return ncclInvalidUsage;     \
  }
NOT_HERE(allreduce_device_create, ncclComm_t, int, int, double, uint64_t, struct allreduce_limits *,
         struct allreduce_device **)
NOT_HERE(allreduce_device_connect, struct allreduce_device *)
NOT_HERE(allreduce_device_destroy, struct allreduce_device *)
NOT_HERE(allreduce_device_peers, struct allreduce_device *, ncclWindow_t, char **)
NOT_HERE(allreduce_device_launch, struct allreduce_device *, const struct allreduce_call *,
         cudaStream_t)
struct allreduce_error *allreduce_device_error(struct allreduce_device *)
{
  return NULL;
}
#endif
