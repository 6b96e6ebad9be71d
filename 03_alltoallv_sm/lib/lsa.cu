/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel's side on GPUs: what is possible, addresses of the peers, launches. Of NCCL's device
 * interface it uses ncclGetLsaPointer, and ncclDevCommCreate, which tells whether there is
 * symmetric memory: without it a window may be none. */
#include <dlfcn.h>
#include <string.h>

#include <nccl.h>
#if NCCL_VERSION_CODE < NCCL_VERSION(2, 28, 0)
#error "the AlltoAllV needs NCCL 2.28 or newer; allowed: NCCL_HOME=<folder of one>"
#endif
#include <nccl_device.h>

#include "internal.h"
#include "kernel.cuh"

/* Measured with two ranks: see internal.h. */
const size_t alltoallv_lsa_threshold = 2 << 20;

/* [mode]; N ranks at most */
template <int N>
static void (*const kernels[])(passed_args<N>) = {
    alltoallv_kernel<N, MODE_SMALL>, alltoallv_kernel<N, MODE_LARGE>,
    alltoallv_kernel<N, MODE_DEVICE>};

/* ---- what is possible --------------------------------------------------------------------- */

/* Is that GPU known to be reached over NVLink? NVML, which comes with the driver, also knows GPUs
 * that CUDA_VISIBLE_DEVICES hides from this process. NCCL opens it in the same way. */
static bool on_nvlink(const char *mine, const char *theirs)
{
  enum { CAPABILITY_NVLINK = 2 };
  if (strcmp(mine, theirs) == 0) return true;
  void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW), *a, *b;
  if (nvml == NULL) return false;
  auto init = (int (*)(void))dlsym(nvml, "nvmlInit_v2");
  auto find = (int (*)(const char *, void **))dlsym(nvml, "nvmlDeviceGetHandleByPciBusId_v2");
  auto ask = (int (*)(void *, void *, int, int *))dlsym(nvml, "nvmlDeviceGetP2PStatus");
  int status = -1;
  return init != NULL && find != NULL && ask != NULL && init() == 0 && find(mine, &a) == 0 &&
         find(theirs, &b) == 0 && ask(a, b, CAPABILITY_NVLINK, &status) == 0 && status == 0;
}

const char *alltoallv_lsa_why_not(struct alltoallv_handle *h, int device,
                                  const struct alltoallv_answer *gpus, int *blocks)
{
  int version = 0, driver = 0;
  cudaFuncAttributes attributes;
  if (ncclGetVersion(&version) != ncclSuccess) version = 0;
  /* 2.28 makes no promise about its device structures, not even between patch releases. */
  if (NCCL_VERSION_CODE < NCCL_VERSION(2, 29, 0) ? version != NCCL_VERSION_CODE
                                                 : version < NCCL_VERSION_CODE)
    return "NCCL at run time is not the version of the headers";
  /* With lazy loading a kernel is loaded at its first launch, which may wait for a device that
   * waits for us. So load them all now. */
  bool loaded =
      cudaDeviceGetAttribute(blocks, cudaDevAttrMultiProcessorCount, device) == cudaSuccess &&
      cudaDriverGetVersion(&driver) == cudaSuccess;
  for (int mode = MODE_SMALL; mode <= MODE_DEVICE && loaded; mode++)
    loaded = (h->n <= 8 ? cudaFuncGetAttributes(&attributes, kernels<8>[mode])
                        : cudaFuncGetAttributes(&attributes,
                                                kernels<ALLTOALLV_MAX_LSA_RANKS>[mode])) ==
             cudaSuccess;
  cudaGetLastError(); /* not for others to find */
  if (!loaded) return "the kernel is not built for a GPU";
  h->launches_early =
      attributes.ptxVersion >= 90 && driver >= 12030; /* before 12.3 not in graphs */
  if (*blocks > ALLTOALLV_MAX_BLOCKS) *blocks = ALLTOALLV_MAX_BLOCKS;
  if (ncclTeamLsa(h->comm).nRanks != h->n) return "not all ranks share memory";
  if (h->n > ALLTOALLV_MAX_LSA_RANKS) return "more ranks share memory than the kernel is made for";
  for (int r = 0; r < h->n; r++)
    if (!on_nvlink(gpus[h->rank].text, gpus[r].text))
      return "a GPU may be on PCIe; the kernel needs NVLink";
  return "";
}

/* ---- set up ------------------------------------------------------------------------------- */

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

/* NCCL maps the ranks at equal distances, which saves the kernel a table. */
ncclResult_t alltoallv_lsa_peers(struct alltoallv_handle *h, int id)
{
  struct alltoallv_window *w = &h->windows[id];
  char *const *peers = (char *const *)w->peers;
  char *const *scratch = (char *const *)h->windows[ALLTOALLV_MAX_WINDOWS].peers;
  lsa_pointers<<<1, 128, 0, h->words_stream>>>(w->window, h->n, (char **)h->words);
  ALLTOALLV_CUDATRY(cudaGetLastError());
  ALLTOALLV_CUDATRY(cudaStreamSynchronize(h->words_stream));
  memcpy(w->peers, h->words, h->n * sizeof(*peers));
  w->place = peers[0] - scratch[0];
  for (int p = 1; p < h->n; p++)
    if (peers[p] - peers[p - 1] != scratch[1] - scratch[0])
      return alltoallv_fail(ncclInternalError, "ranks are not mapped at equal distances");
  return ncclSuccess;
}

/* ---- launch ------------------------------------------------------------------------------- */

/* The mode and the grid for an exchange: idle blocks cost time. */
static int choose_launch(const struct alltoallv_handle *h, const struct alltoallv_request *x,
                         dim3 *grid, int *threads)
{
  int mode = MODE_DEVICE;
  const int max_blocks = h->config.max_blocks, teams = h->n < max_blocks ? h->n : max_blocks;
  int blocks = max_blocks / teams; /* of a team */
  uint64_t largest = 0, enough = blocks;
  if (x->kind != ALLTOALLV_KIND_HOST) {
    const uint64_t fits = x->capacity * (x->kind == ALLTOALLV_KIND_SLOTS ? (uint64_t)h->n : 1);
    /* Only the capacity is known. Half of it is assumed to be sent, with a warp for each group. */
    if (fits > 0) enough = fits * x->element / 2 / (16 * ALLTOALLV_GROUP_BYTES) + 1;
    if (enough < 4) enough = 4;
  } else {
    for (int p = 0; p < h->n; p++) {
      if (h->pairs[p].send_bytes > largest) largest = h->pairs[p].send_bytes;
      if (h->pairs[p].recv_bytes > largest) largest = h->pairs[p].recv_bytes;
    }
    mode = largest > h->ll_threshold ? MODE_LARGE : MODE_SMALL;
  }
  *threads = mode == MODE_SMALL ? 128 : 512;
  if (mode == MODE_SMALL) {
    /* a warp for every group of the largest pair, in blocks as small as that allows */
    const uint64_t groups = largest / ALLTOALLV_GROUP_BYTES + 1;
    while (*threads < 512 && groups > (uint64_t)(blocks * *threads / 32)) *threads *= 2;
    enough = (groups * 32 + *threads - 1) / *threads;
  }
  if (enough < (uint64_t)blocks) blocks = (int)enough;
  if (teams * blocks < 2) blocks = 2; /* one rank: a block for headers and another one */
  *grid = dim3(blocks, teams);
  return mode;
}

template <int N>
static cudaError_t launch(const cudaLaunchConfig_t *config, int mode, const kernel_args &a)
{
  return cudaLaunchKernelEx(config, kernels<N>[mode], reinterpret_cast<const passed_args<N> &>(a));
}

ncclResult_t alltoallv_lsa_launch(struct alltoallv_handle *h, const struct alltoallv_request *x,
                                  cudaStream_t stream)
{
  dim3 grid;
  int threads;
  const int mode = choose_launch(h, x, &grid, &threads);
  struct kernel_args a = {};
  char *const *scratch = (char *const *)h->windows[ALLTOALLV_MAX_WINDOWS].peers;
  a.state = h->state;
  a.scratch_base = scratch[0];
  a.scratch_stride = scratch[1] - scratch[0]; /* which one rank does not need */
  a.rank = h->rank;
  a.n = h->n;
  a.ll_threshold = (uint32_t)h->ll_threshold;
  a.mailbox_bytes = alltoallv_mailbox_bytes(h->ll_threshold);
  a.x = *x;
  for (int p = 0; x->kind == ALLTOALLV_KIND_HOST && p < h->n; p++) a.pairs[p] = h->pairs[p];
  a.limit = (uint64_t)(h->config.timeout_seconds * 1e9);
  a.errors = h->errors;
  const size_t shared = mode == MODE_DEVICE ? (size_t)h->n * h->n * sizeof(uint64_t) : 0;
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  const cudaLaunchConfig_t config = {grid,   dim3(threads), shared,
                                     stream, &early,        h->launches_early};
  ALLTOALLV_CUDATRY(h->n <= 8 ? launch<8>(&config, mode, a)
                              : launch<ALLTOALLV_MAX_LSA_RANKS>(&config, mode, a));
  return ncclSuccess;
}
