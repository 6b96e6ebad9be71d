/* SPDX-License-Identifier: Apache-2.0 */
/* The direct AllReduce on GPUs: is it possible, addresses of the peers, launches. The kernels are
 * in allreduce_lines.cuh, allreduce_twohop.cuh and allreduce_push.cuh.
 *
 * Of NCCL's device interface (2.28 and later) kernels use only ncclGetLsaPointer, in a kernel of
 * one block. ncclDevCommCreate is called because it fails without symmetric memory; the
 * registration of a window may not. */
#include "allreduce_internal.h"

#if ALLREDUCE_HAS_DEVICE_CODE
#include <dlfcn.h>
#include <string.h>

#include <nccl_device.h>

#include "allreduce_lines.cuh"
#include "allreduce_push.cuh"
#include "allreduce_twohop.cuh"

enum { THREADS = 512 }; /* of a block, at most */

/* ---- kernels --------------------------------------------------------------------------------- */

/* A multiprocessor has room for two blocks of each kernel. With pushes one of them is for the next
 * kernel, when it is launched early. LL lines take so few blocks that one would do. */

template <typename S, int N, typename Data, bool WHOLE>
static __global__ void __launch_bounds__(THREADS, 2)
    onehop_kernel(const __grid_constant__ kernel_args<N> a)
{
  onehop_allreduce<S, Data, WHOLE>(a);
}

template <typename S, int N, bool WHOLE>
static __global__ void __launch_bounds__(THREADS, 2)
    twohop_kernel(const __grid_constant__ kernel_args<N> a)
{
  twohop_allreduce<S, WHOLE>(a);
}

template <typename S, int N>
static __global__ void __launch_bounds__(THREADS, 2)
    push_kernel(const __grid_constant__ kernel_args<N> a)
{
  push_allreduce<S, N == 2 ? 2 : 1>(a); /* words in flight from each rank */
}

template <int N>
using kernel = void (*)(const kernel_args<N>);

template <typename S, int N, bool WHOLE>
static kernel<N> kernel_of(enum allreduce_method method)
{
  return method == ALLREDUCE_LL       ? onehop_kernel<S, N, ll_data, WHOLE>
         : method == ALLREDUCE_ONEHOP ? onehop_kernel<S, N, bare_data, WHOLE>
         : method == ALLREDUCE_TWOHOP ? twohop_kernel<S, N, WHOLE>
                                      : push_kernel<S, N>;
}

template <int N>
static kernel<N> kernel_for(enum allreduce_method method, ncclDataType_t type, bool whole)
{
#define KERNEL_OF(type, sum, bits)                                            \
  case type:                                                                  \
    static_assert(sizeof(sum::element) == sizeof(bits), "an element's size"); \
    return whole ? kernel_of<sum, N, true>(method) : kernel_of<sum, N, false>(method);
  switch (type) {
    ALLREDUCE_TYPES(KERNEL_OF)
  default:
    return NULL;
  }
}

/* ---- launch ---------------------------------------------------------------------------------- */

template <int N>
static ncclResult_t launch(const struct allreduce_handle *h, const struct allreduce_call *call,
                           cudaStream_t stream)
{
  const kernel<N> launched = kernel_for<N>(call->launch.method, call->type, call->whole);
  if (launched == NULL)
    return allreduce_fail(ncclInvalidArgument, "no kernel adds type %d", (int)call->type);
  kernel_args<N> a = {};
  a.send = call->send;
  a.recv_here = call->recv[h->rank];
  for (int p = 0; p < h->n; p++) {
    a.recv[p] = call->recv[p];
    a.scratch[p] = h->peers[p];
  }
  a.state = h->state;
  a.error = h->error;
  a.limit = (uint64_t)(h->timeout * 1e9);
  a.count = call->count;
  a.lines = allreduce_lines_of(h->n, call->launch.method);
  a.parts_here = h->peers[h->rank] + a.lines.at;
  for (int i = 1; i <= h->n; i++)
    a.part_there[i - 1] =
        h->peers[(h->rank + i) % h->n] + a.lines.at + (size_t)h->rank * a.lines.part;
  a.push = call->push;
  a.check = call->check;
  a.next_waits = h->next_waits;
  a.rank = h->rank;
  a.n = h->n;
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(call->launch.blocks);
  config.blockDim = dim3(call->launch.threads);
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = h->overlaps && call->launch.method != ALLREDUCE_PUSH;
  ALLREDUCE_CUDATRY(cudaLaunchKernelEx(&config, launched, a));
  return ncclSuccess;
}

/* The kernels of this handle are those for N ranks. With lazy loading a kernel is loaded at its
 * first launch, which may wait for a device that waits for this rank. So load them all now. */
template <int N>
static cudaError_t load(struct allreduce_handle *h)
{
#define TYPE(type, sum, bits) type,
  static const ncclDataType_t types[] = {ALLREDUCE_TYPES(TYPE)};
  cudaFuncAttributes attributes = {};
  int driver = 0, nccl = 0;
  cudaError_t e = cudaDriverGetVersion(&driver);
  ncclGetVersion(&nccl);
  for (int i = 0; i < 2 * ALLREDUCE_METHODS; i++)
    for (ncclDataType_t type : types) {
      const auto launched = kernel_for<N>((enum allreduce_method)(i / 2), type, i % 2 == 1);
      if (e == cudaSuccess) e = cudaFuncGetAttributes(&attributes, launched);
    }
  h->launch = launch<N>;
  h->overlaps = attributes.ptxVersion >= ALLREDUCE_OVERLAPS && driver >= 12030; /* for all */
  h->next_waits = nccl >= NCCL_VERSION(2, 30, 7);
  return e;
}

/* ---- is it possible? ------------------------------------------------------------------------- */

/* Does this rank reach the other GPU over NVLink? A process may see only its own GPU
 * (CUDA_VISIBLE_DEVICES), like tasks of Slurm. NVML, which NCCL needs as well, sees all GPUs. */
static bool has_nvlink(const char *mine, const char *theirs)
{
  enum { NVLINK = 2, OK = 0 }; /* NVML_P2P_CAPS_INDEX_..., NVML_P2P_STATUS_... */
  if (strcmp(mine, theirs) == 0) return true;
  void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW), *a, *b;
  int status = -1;
  if (nvml == NULL) return false;
  auto init = (int (*)(void))dlsym(nvml, "nvmlInit_v2");
  auto find = (int (*)(const char *, void **))dlsym(nvml, "nvmlDeviceGetHandleByPciBusId_v2");
  auto p2p = (int (*)(void *, void *, int, int *))dlsym(nvml, "nvmlDeviceGetP2PStatus");
  return init != NULL && find != NULL && p2p != NULL && init() == 0 && find(mine, &a) == 0 &&
         find(theirs, &b) == 0 && p2p(a, b, NVLINK, &status) == 0 && status == OK;
}

static const char *why_not(const struct allreduce_handle *h)
{
  int version = 0, capability = 0;
  if (ncclGetVersion(&version) != ncclSuccess) version = 0;
  /* 2.28 makes no promise about its device structures, not even between patch releases. */
  if (NCCL_VERSION_CODE < NCCL_VERSION(2, 29, 0) ? version != NCCL_VERSION_CODE
                                                 : version < NCCL_VERSION_CODE)
    return "NCCL at run time is not the version of the headers";
  if (ncclTeamLsa(h->comm).nRanks != h->n) return "not all ranks share memory";
  cudaDeviceGetAttribute(&capability, cudaDevAttrComputeCapabilityMajor, h->device);
  if (capability < 7) return "the GPU is older than compute capability 7.0";
  for (int p = 0; p < h->n; p++)
    if (!has_nvlink(h->offers[h->rank].gpu, h->offers[p].gpu))
      return "a GPU is not reached over NVLink";
  return "";
}

ncclResult_t allreduce_device_ask(struct allreduce_handle *h, struct allreduce_limits *limits,
                                  const char **why)
{
  int multiprocessors = 0;
  *why = why_not(h);
  if (**why != '\0') return ncclSuccess;
  ALLREDUCE_CUDATRY(
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, h->device));
  ALLREDUCE_CUDATRY(h->n == 2   ? load<2>(h)
                    : h->n == 4 ? load<4>(h)
                    : h->n == 8 ? load<8>(h)
                                : load<ALLREDUCE_MAX_RANKS>(h));
  for (int m = 0; m < ALLREDUCE_METHODS; m++)
    limits->blocks[m] =
        allreduce_least(limits->blocks[m], (m == ALLREDUCE_PUSH ? 1 : 2) * multiprocessors);
  return ncclSuccess;
}

ncclResult_t allreduce_device_probe(ncclComm_t comm)
{
#ifdef NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER
  ncclDevCommRequirements requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
#else
  ncclDevCommRequirements requirements = {};
#endif
  ncclDevComm probe;
  const ncclResult_t made = ncclDevCommCreate(comm, &requirements, &probe);
  if (made == ncclInvalidUsage)
    return allreduce_fail(made, "the communicator has no symmetric memory");
  ALLREDUCE_NCCLTRY(made);
  ALLREDUCE_NCCLTRY(ncclDevCommDestroy(comm, &probe));
  return ncclSuccess;
}

/* ---- addresses ------------------------------------------------------------------------------- */

/* The address here of the window of every rank. */
static __global__ void lsa_pointers(ncclWindow_t window, int n, char **out)
{
  const int p = threadIdx.x;
  if (p < n) out[p] = (char *)ncclGetLsaPointer(window, 0, p);
}

ncclResult_t allreduce_device_peers(const struct allreduce_handle *h, ncclWindow_t window,
                                    char **peers)
{
  /* cudaGetLastError() after <<<>>> would also return an error that the caller has dealt with */
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1);
  config.blockDim = dim3(128);
  ALLREDUCE_CUDATRY(cudaLaunchKernelEx(&config, lsa_pointers, window, h->n, h->table));
  ALLREDUCE_CUDATRY(cudaMemcpy(peers, h->table, h->n * sizeof(*peers), cudaMemcpyDeviceToHost));
  return ncclSuccess;
}

#else /* only the first function is called */
ncclResult_t allreduce_device_ask(struct allreduce_handle *, struct allreduce_limits *,
                                  const char **why)
{
  *why = "built with NCCL older than 2.28 or CUDA older than 12.3";
  return ncclSuccess;
}
ncclResult_t allreduce_device_probe(ncclComm_t)
{
  return ncclInvalidUsage;
}
ncclResult_t allreduce_device_peers(const struct allreduce_handle *, ncclWindow_t, char **)
{
  return ncclInvalidUsage;
}
#endif
