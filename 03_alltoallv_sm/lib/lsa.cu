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

#include "alltoallv_internal.h"
#include "alltoallv_kernel.cuh"

/* What goes in lines to all ranks together; measured with two ranks. The heads of large pairs are
 * half of it, a little more than the link carries until headers come. */
static const size_t lines_of_all = 2 << 20;

size_t alltoallv_lsa_lines(int n)
{
  const size_t bytes = lines_of_all / (size_t)(n > 1 ? n - 1 : 1);
  return (bytes + ALLTOALLV_GROUP_BYTES - 1) / ALLTOALLV_GROUP_BYTES * ALLTOALLV_GROUP_BYTES;
}

static void (*const kernels[])(kernel_args) = {
    alltoallv_kernel<MODE_SMALL>, alltoallv_kernel<MODE_LARGE>, alltoallv_kernel<MODE_DEVICE>,
    alltoallv_kernel<MODE_MANY>}; /* [mode] */

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
  for (int mode = MODE_SMALL; mode <= MODE_MANY && loaded; mode++)
    loaded = cudaFuncGetAttributes(&attributes, kernels[mode]) == cudaSuccess;
  cudaGetLastError(); /* not for others to find */
  if (!loaded) return "the kernel is not built for a GPU";
  h->most_threads = attributes.maxThreadsPerBlock;
  h->launches_early = !h->config.no_early_launch && attributes.ptxVersion >= 90 &&
                      driver >= 12030; /* before 12.3 not in graphs */
  h->next_waits = version >= NCCL_VERSION(2, 30, 7);
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
ncclResult_t alltoallv_lsa_peers(struct alltoallv_handle *h, struct alltoallv_window *w)
{
  char *const *peers = (char *const *)w->peers;
  char *const *scratch = (char *const *)h->scratch.peers;
  /* cudaGetLastError() after <<<>>> would also return an error that the caller has dealt with */
  const cudaLaunchConfig_t config = {dim3(1), dim3(128), 0, h->words_stream, NULL, 0};
  ALLTOALLV_CUDATRY(cudaLaunchKernelEx(&config, lsa_pointers, w->window, h->n, (char **)h->words));
  ALLTOALLV_CUDATRY(cudaStreamSynchronize(h->words_stream));
  memcpy(w->peers, h->words, h->n * sizeof(*peers));
  w->place = peers[0] - scratch[0];
  for (int p = 1; p < h->n; p++)
    if (peers[p] - peers[p - 1] != scratch[1] - scratch[0])
      return alltoallv_fail(ncclInternalError, "ranks are not mapped at equal distances");
  return ncclSuccess;
}

/* ---- launch ------------------------------------------------------------------------------- */

/* The mode and the grid for an exchange, and what depends on them: idle blocks cost time. */
static int choose_launch(const struct alltoallv_handle *h, struct kernel_args *a, dim3 *grid,
                         int *threads)
{
  const struct alltoallv_request *x = &a->x;
  const bool host = x->kind == ALLTOALLV_KIND_HOST;
  const int max_blocks = h->config.max_blocks, teams = h->n < max_blocks ? h->n : max_blocks;
  int blocks = max_blocks / teams; /* of a team */
  uint64_t largest = 0;            /* pair */
  a->ll_threshold =
      (uint32_t)h->ll_bytes / ALLTOALLV_GROUP_BYTES / x->payloads * ALLTOALLV_GROUP_BYTES;
  if (!host) { /* only the room is known, or not even that: as if one pair had all of it */
    const uint64_t fits = x->room * (alltoallv_in_slots(x->kind) ? (uint64_t)h->n : 1);
    largest = fits > 0 ? fits * x->widest : UINT32_MAX;
  }
  for (int p = 0; host && p < h->n; p++) {
    if (a->pairs[p].sends > largest) largest = a->pairs[p].sends;
    if (a->pairs[p].gets > largest) largest = a->pairs[p].gets;
  }
  if (host && largest > a->ll_threshold) { /* the same on all ranks that have a large pair */
    /* A multiprocessor is for the next kernel, if it comes early: of this one a block stays until
     * all is there. */
    *threads = h->most_threads;
    *grid = dim3(max_blocks > 2 ? max_blocks - 1 : 2, 1);
    a->line_blocks = grid->x < 8 ? 1 : grid->x / 4;
    return MODE_LARGE;
  }
  /* a warp for every group of the largest pair if there are enough, in blocks as small as can be */
  const uint64_t groups = largest / ALLTOALLV_GROUP_BYTES + 1;
  *threads = 128;
  while (*threads < h->most_threads && groups > (uint64_t)(blocks * *threads / 32)) *threads *= 2;
  uint64_t enough = (groups * 32 + *threads - 1) / *threads;
  if (!host) enough = (enough + 3) / 4 * 4;
  if (enough < (uint64_t)blocks) blocks = (int)enough;
  if (teams * blocks < 2) blocks = 2; /* one rank: a block for headers and another one */
  *grid = dim3(blocks, teams);
  return host ? MODE_SMALL : x->payloads > 1 ? MODE_MANY : MODE_DEVICE;
}

ncclResult_t alltoallv_lsa_launch(struct alltoallv_handle *h, const struct alltoallv_request *x,
                                  cudaStream_t stream)
{
  dim3 grid;
  int threads;
  struct kernel_args a = {};
  char *const *scratch = (char *const *)h->scratch.peers;
  a.state = h->state;
  a.scratch_base = scratch[0];
  a.scratch_stride = scratch[1] - scratch[0]; /* which one rank does not need */
  a.rank = h->rank;
  a.n = h->n;
  a.mailbox_bytes = alltoallv_mailbox_bytes(h->ll_bytes);
  a.x = *x;
  for (int p = 0; x->kind == ALLTOALLV_KIND_HOST && p < h->n; p++) a.pairs[p] = h->pairs[p];
  a.next_waits = h->next_waits;
  if (h->config.timeout_seconds > 0) a.limit = (uint64_t)(h->config.timeout_seconds * 1e9);
  a.errors = h->errors;
  const int mode = choose_launch(h, &a, &grid, &threads);
  const size_t shared = mode >= MODE_DEVICE ? (size_t)h->n * (h->n + 1) * sizeof(uint64_t) : 0;
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  const cudaLaunchConfig_t config = {grid,   dim3(threads), shared,
                                     stream, &early,        h->launches_early};
  ALLTOALLV_CUDATRY(cudaLaunchKernelEx(&config, kernels[mode], a));
  return ncclSuccess;
}
