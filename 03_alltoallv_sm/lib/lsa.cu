/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel's side on GPUs: what is possible, addresses of the peers, launches. What the kernel
 * does is in kernel.cuh.
 *
 * Of NCCL's device interface one thing is used: ncclGetLsaPointer, in a kernel of one block. And
 * ncclDevCommCreate tells whether there is symmetric memory: without it a window may be none. */
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
  struct device_state *state;
  char **windows; /* device: see kernel_args */
};

/* ---- what is possible --------------------------------------------------------------------- */

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

enum link { LINK_NVLINK, LINK_PCIE, LINK_UNKNOWN };

static enum link link_to(int device, const char *mine, const char *theirs)
{
  int peer = 0, atomics = 0;
  const bool visible =
      cudaDeviceGetByPCIBusId(&peer, theirs) == cudaSuccess &&
      (peer == device || cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported,
                                                   device, peer) == cudaSuccess);
  cudaGetLastError(); /* not for others to find */
  if (!visible) return nvml_sees_nvlink(mine, theirs) ? LINK_NVLINK : LINK_UNKNOWN;
  return peer == device || atomics ? LINK_NVLINK : LINK_PCIE; /* only NVLink has atomics */
}

const char *alltoallv_lsa_why_not(const struct alltoallv_handle *h, int device,
                                  const char (*ids)[ALLTOALLV_PCI_ID], int *blocks)
{
  int version = 0, major = 0;
  bool unknown = false;
  if (ncclGetVersion(&version) != ncclSuccess) version = 0;
  /* 2.28 makes no promise about its device structures, not even between patch releases. */
  if (NCCL_VERSION_CODE < NCCL_VERSION(2, 29, 0) ? version != NCCL_VERSION_CODE
                                                 : version < NCCL_VERSION_CODE)
    return "NCCL at run time is not the version of the headers";
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(blocks, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
      major < 7)
    return "a GPU is older than compute capability 7.0";
  if (*blocks > ALLTOALLV_MAX_BLOCKS) *blocks = ALLTOALLV_MAX_BLOCKS;
  if (ncclTeamLsa(h->comm).nRanks != h->n) return "not all ranks share memory";
  if (h->n > ALLTOALLV_MAX_LSA_RANKS) return "more ranks share memory than the kernel is made for";
  for (int r = 0; r < h->n; r++) {
    const enum link link = link_to(device, ids[h->rank], ids[r]);
    if (link == LINK_PCIE) return "a GPU is reached over PCIe, for which the kernel is not made";
    unknown = unknown || link == LINK_UNKNOWN;
  }
  return unknown && h->config.method == ALLTOALLV_AUTO
             ? "a process does not see whether another one's GPU is on NVLink"
             : "";
}

/* ---- set up ------------------------------------------------------------------------------- */

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

ncclResult_t alltoallv_lsa_create(struct alltoallv_handle *h, size_t *scratch_bytes)
{
  struct device_state first = {};
  const size_t table = (ALLTOALLV_MAX_WINDOWS + 1) * (size_t)h->n * sizeof(*h->lsa->windows);
  h->lsa = (struct alltoallv_lsa *)calloc(1, sizeof(*h->lsa));
  if (h->lsa == NULL) return alltoallv_fail(ncclSystemError, "out of memory");
  ALLTOALLV_CUDATRY(h->n <= 8 ? load_kernels<8>() : load_kernels<ALLTOALLV_MAX_LSA_RANKS>());
  for (struct block_memory &block : first.block) block.epoch = h->first_epoch - 1;
  ALLTOALLV_CUDATRY(cudaMalloc((void **)&h->lsa->windows, table));
  ALLTOALLV_CUDATRY(cudaMalloc((void **)&h->lsa->state, sizeof(first)));
  ALLTOALLV_CUDATRY(cudaMemcpy(h->lsa->state, &first, sizeof(first), cudaMemcpyHostToDevice));
  *scratch_bytes = 2 * (size_t)h->n * alltoallv_mailbox_bytes(h->ll_threshold);
  return ncclSuccess;
}

ncclResult_t alltoallv_lsa_destroy(struct alltoallv_handle *h)
{
  const cudaError_t windows = cudaFree(h->lsa->windows), state = cudaFree(h->lsa->state);
  free(h->lsa);
  ALLTOALLV_CUDATRY(windows);
  ALLTOALLV_CUDATRY(state);
  return ncclSuccess;
}

ncclResult_t alltoallv_lsa_probe(struct alltoallv_handle *h)
{
#ifdef NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER
  ncclDevCommRequirements requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
#else
  ncclDevCommRequirements requirements = {};
#endif
  ncclDevComm probe;
  ALLTOALLV_NCCLTRY(ncclDevCommCreate(h->lsa_comm, &requirements, &probe));
  ALLTOALLV_NCCLTRY(ncclDevCommDestroy(h->lsa_comm, &probe));
  return ncclSuccess;
}

static __global__ void lsa_pointers(ncclWindow_t window, int n, char **out)
{
  int p = threadIdx.x;
  if (p < n) out[p] = (char *)ncclGetLsaPointer(window, 0, p);
}

/* NCCL maps the ranks at equal distances, which saves the kernel a table of scratch memory. */
ncclResult_t alltoallv_lsa_peers(struct alltoallv_handle *h, int id)
{
  char **out = h->lsa->windows + (size_t)id * h->n, **peers = (char **)h->windows[id].peers;
  lsa_pointers<<<1, 128>>>(h->windows[id].window, h->n, out);
  ALLTOALLV_CUDATRY(cudaGetLastError());
  ALLTOALLV_CUDATRY(cudaMemcpy(peers, out, h->n * sizeof(*out), cudaMemcpyDeviceToHost));
  for (int p = 2; p < h->n; p++)
    if (peers[p] - peers[p - 1] != peers[1] - peers[0])
      return alltoallv_fail(ncclInternalError, "ranks are not mapped at equal distances");
  return ncclSuccess;
}

/* ---- launch ------------------------------------------------------------------------------- */

/* What an exchange is worth: idle blocks and threads cost time too. */
struct shape {
  int mode;
  dim3 grid;
  int threads;
};

static struct shape shape_of(const struct alltoallv_handle *h, const struct alltoallv_request *x)
{
  struct shape s = {MODE_DEVICE, dim3(1), 512};
  const int max_blocks = h->config.max_blocks, teams = h->n < max_blocks ? h->n : max_blocks;
  int blocks = max_blocks / teams; /* of a team */
  uint64_t largest = 0, enough = blocks;
  if (x->kind != ALLTOALLV_KIND_HOST) {
    const uint64_t fits = x->capacity * (x->kind == ALLTOALLV_KIND_SLOTS ? (uint64_t)h->n : 1);
    /* Only what fits is known: where little can arrive, little is sent, mostly. So a warp for
     * every group of half of it, rounded up: of two ranks that is the pair with the other one. */
    if (fits > 0) enough = fits * x->element / 2 / (16 * ALLTOALLV_GROUP_BYTES) + 1;
    if (enough < 4) enough = 4;
  } else {
    for (int p = 0; p < h->n; p++) {
      if (h->pairs[p].send_bytes > largest) largest = h->pairs[p].send_bytes;
      if (h->pairs[p].recv_bytes > largest) largest = h->pairs[p].recv_bytes;
    }
    s.mode = largest > h->ll_threshold ? MODE_LARGE : MODE_SMALL;
  }
  if (s.mode == MODE_SMALL) {
    /* a warp for every group of the largest pair, in blocks as small as that allows */
    const uint64_t groups = largest / ALLTOALLV_GROUP_BYTES + 1;
    for (s.threads = 128; s.threads < 512; s.threads *= 2)
      if (groups <= (uint64_t)(blocks * s.threads / 32)) break;
    enough = (groups * 32 + s.threads - 1) / s.threads;
  }
  if (enough < (uint64_t)blocks) blocks = (int)enough;
  if (teams * blocks < 2) blocks = 2; /* one rank: a block for headers and another one */
  s.grid = dim3(blocks, teams);
  return s;
}

template <int N>
static ncclResult_t launch(const struct alltoallv_handle *h, const struct alltoallv_request *x,
                           cudaStream_t stream)
{
  char *const *scratch = (char *const *)h->windows[ALLTOALLV_MAX_WINDOWS].peers;
  struct kernel_args a = {};
  passed_args<N> passed;
  a.state = h->lsa->state;
  a.scratch_base = scratch[0];
  a.scratch_stride = h->n > 1 ? scratch[1] - scratch[0] : 0;
  a.rank = h->rank;
  a.n = h->n;
  a.ll_threshold = (uint32_t)h->ll_threshold;
  a.mailbox_bytes = alltoallv_mailbox_bytes(h->ll_threshold);
  a.x = *x;
  for (int p = 0; x->kind == ALLTOALLV_KIND_HOST && p < h->n; p++) a.pairs[p] = h->pairs[p];
  a.limit = (uint64_t)(h->config.timeout_seconds * 1e9);
  a.errors = h->errors;
  a.windows = h->lsa->windows;
  memcpy(&passed, &a, sizeof(passed));
  const struct shape s = shape_of(h, x);
  if (s.mode == MODE_SMALL)
    alltoallv_kernel<N, MODE_SMALL><<<s.grid, s.threads, 0, stream>>>(passed);
  else if (s.mode == MODE_LARGE)
    alltoallv_kernel<N, MODE_LARGE><<<s.grid, s.threads, 0, stream>>>(passed);
  else
    alltoallv_kernel<N, MODE_DEVICE>
        <<<s.grid, s.threads, (size_t)h->n * h->n * sizeof(uint64_t), stream>>>(passed);
  ALLTOALLV_CUDATRY(cudaGetLastError());
  return ncclSuccess;
}

ncclResult_t alltoallv_lsa_launch(struct alltoallv_handle *h, const struct alltoallv_request *x,
                                  cudaStream_t stream)
{
  return h->n <= 8 ? launch<8>(h, x, stream) : launch<ALLTOALLV_MAX_LSA_RANKS>(h, x, stream);
}
