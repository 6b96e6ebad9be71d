/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels of the operators share: scratch memory, launching, sums and searches within a
 * warp or a block, and the last block, which takes most decisions. */
#ifndef OPS_DEVICE_CUH
#define OPS_DEVICE_CUH

#include <cuda_pipeline_primitives.h>
#include <cuda_runtime.h>
#include <vector>

#include "decide/decide.h"
#include "ops.h"

/* ---- scratch memory ---------------------------------------------------------------------------
 * Operators of one handle run one after the other, so they share it. Nothing in it is cleared
 * between launches: the last block of a launch leaves it as the next one needs it. */

enum {
  OPS_DENSE_TILE = 8192,     /* elements of a dense vector or region that a block takes at a time */
  OPS_KEPT_TILE = 4096,      /* the least number if it filters them */
  OPS_LIST_TILE = 1024,      /* entries of a list that it takes */
  OPS_SELECTING_LEAST = 256, /* threads of blocks that search and filter */
  OPS_SELECTING_MOST = 512,
};

/* Magnitudes `low` to `high`, in bins of 2^shift. Open: what is beyond counts as the nearest. Over:
 * nothing is searched any more. */
enum ops_window_kind : uint32_t { OPS_CLOSED, OPS_OPEN, OPS_OVER };
struct alignas(16) ops_window {
  uint32_t low, high, shift;
  ops_window_kind kind;
};

struct ops_scratch {
  uint32_t launches;  /* with a chain, so far */
  uint32_t ticket;    /* the next tile of the chain */
  uint32_t done;      /* blocks that have finished */
  uint32_t arrived;   /* blocks at a grid barrier, */
  uint32_t barriers;  /* and how many of those there have been */
  uint32_t nonfinite; /* of a gradient element that is not finite, ~index, the largest; or 0 */
  uint64_t totals;    /* both counts of the chain over all tiles */
  uint32_t levels[SPARSE_MAX_LEVELS];
  uint32_t region_begins[SPARSE_MAX_RANKS]; /* in the list of a pass that offers; not [0] */
  uint32_t dropped[SPARSE_MAX_RANKS];       /* entries of each list that a reduction has left out */
  alignas(16) uint32_t bins[SPARSE_BINS];   /* of a search, */
  ops_window window;                        /* which goes on here */
  uint64_t wanted;                          /* and looks for the entry that has this rank here */
};

static __host__ __device__ inline size_t ops_dense_tiles(size_t n)
{
  return (n + OPS_DENSE_TILE - 1) / OPS_DENSE_TILE;
}

static __host__ __device__ inline size_t ops_words(size_t n, int nranks, size_t capacity)
{
  const size_t dense = (n + OPS_KEPT_TILE - 1) / OPS_KEPT_TILE;
  const size_t lists = ((size_t)nranks + 1) * (capacity + 1) / OPS_LIST_TILE + 2;
  return dense > lists ? dense : lists;
}

/* After the struct: a word for each tile of the chain, */
static __host__ __device__ inline unsigned long long *ops_chain_words(const sparse_memory &m)
{
  return (unsigned long long *)((char *)m.scratch + (sizeof(ops_scratch) + 255) / 256 * 256);
}

/* sums of values and squares of each dense tile, */
static __host__ __device__ inline double2 *ops_tile_moments(const sparse_memory &m)
{
  const size_t words = (ops_words(m.n, m.nranks, m.capacity) + 1) / 2 * 2;
  return (double2 *)(ops_chain_words(m) + words);
}

/* and a bit for each element of the dense tiles: is it in the result? All others are zero. */
static __host__ __device__ inline uint32_t *ops_result_bits(const sparse_memory &m)
{
  return (uint32_t *)(ops_tile_moments(m) + ops_dense_tiles(m.n));
}

static __host__ __device__ inline size_t ops_result_words(size_t n)
{
  return ops_dense_tiles(n) * (OPS_DENSE_TILE / 32);
}

/* ---- launching ------------------------------------------------------------------------------- */

/* Of the current device; `otherwise` if CUDA does not say. */
static inline int ops_device_attribute(enum cudaDeviceAttr attribute, int otherwise)
{
  int device = 0, value = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&value, attribute, device) != cudaSuccess)
    return otherwise;
  return value;
}

static inline int ops_multiprocessors(void)
{
  return ops_device_attribute(cudaDevAttrMultiProcessorCount, 1);
}

/* As many blocks as there is work for, but not more than `per_multiprocessor` on each. */
static inline unsigned ops_blocks(size_t work, size_t work_per_block, int per_multiprocessor)
{
  const size_t most = (size_t)ops_multiprocessors() * (size_t)per_multiprocessor;
  const size_t needed = (work + work_per_block - 1) / work_per_block;
  return (unsigned)(needed < 1 ? 1 : needed < most ? needed : most);
}

/* How many blocks a multiprocessor runs at once, at most `per_multiprocessor`. Shared memory may be
 * short, of which CUDA keeps up to 1024 bytes for itself in each block. */
static inline int ops_at_once(size_t shared_bytes, int per_multiprocessor)
{
  const int bytes = ops_device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, 0);
  const int room = (int)((size_t)bytes / (shared_bytes + 1024));
  return room < 1 ? 1 : room < per_multiprocessor ? room : per_multiprocessor;
}

/* How a kernel starts. NEXT: while the kernel before it in the stream ends (programmatic dependent
 * launch, from sm_90 on), which hides most of a launch; it waits for that end itself, in
 * ops_begin(). COOPERATIVE: after that end, and all its blocks run at once. FIRST: after a kernel
 * of the caller, or of another stream, which need not have waited for what is before it. */
enum ops_start { OPS_NEXT, OPS_COOPERATIVE, OPS_FIRST };

/* Does the code that runs on this device wait in ops_begin()? Not before ops_load() knows. */
bool ops_waits(void);

template <typename... Parameters, typename... Arguments>
static ncclResult_t ops_launch(void (*kernel)(Parameters...), unsigned blocks, unsigned threads,
                               enum ops_start start, cudaStream_t stream, Arguments... arguments)
{
  cudaLaunchConfig_t config = {};
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (start != OPS_FIRST && ops_waits()) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (start == OPS_COOPERATIVE) {
    attributes[count].id = cudaLaunchAttributeCooperative;
    attributes[count++].val.cooperative = 1;
  }
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...) == cudaSuccess
             ? ncclSuccess
             : ncclUnhandledCudaError;
}

/* All kernels. A file adds its own by a constant of the type below, and ops_load() loads them:
 * their first launch, which would, may be within a stream capture. */
std::vector<const void *> &ops_kernels(void);
struct ops_load_kernels {
  template <typename... Kernels>
  explicit ops_load_kernels(Kernels... kernels)
  {
    (ops_kernels().push_back((const void *)kernels), ...);
  }
};

/* __launch_bounds__; fewer blocks where a multiprocessor runs less than 2048 threads. */
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ % 100 != 0 || __CUDA_ARCH__ >= 1100)
#define OPS_BOUNDS(threads, blocks) \
  __launch_bounds__(threads, (blocks) * (threads) <= 1024 ? (blocks) : 1024 / (threads))
#else
#define OPS_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)
#endif

/* Waits until the kernel before this one in the stream has ended, and so all before it. Kernels
 * begin with it, because only then they may look at memory; reduce and apply may earlier. (Those
 * that are launched without early start have nothing to wait for.) */
static __device__ inline void ops_begin(void)
{
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Shared memory of a block of reduce: at least as much as a block of apply has (48144 bytes), which
 * begins in the piece that a block of reduce leaves. If that piece is smaller, fewer blocks of
 * apply run at once, and so until their end (H200, 133M elements: 3 % of a step). Static memory
 * ends at 49152 bytes, and functions have a little of their own. */
enum { OPS_PLACE_BYTES = 48640 };

/* The next kernel's blocks may take the place of those of this one as they end, and not only when
 * all have; those of this one have all begun by then. */
static __device__ inline void ops_let_next_begin(void)
{
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* In front of a loop: it is not unrolled. Most code runs once in a step and comes from memory,
 * since the vectors have driven it out of all caches. So short code is fast code, unless a loop is
 * for keeping loads on their way. (28M elements: 3.5 us of 165.) */
#define OPS_ROLLED _Pragma("unroll 1")

/* ---- within a warp or a block ---------------------------------------------------------------- */

static const unsigned OPS_ALL_LANES = 0xffffffffu;

/* Sums over the lanes before and including this one. */
template <typename T>
static __device__ inline T ops_warp_scan(T x)
{
  for (unsigned step = 1; step < 32; step *= 2) {
    const T before = __shfl_up_sync(OPS_ALL_LANES, x, step);
    if (threadIdx.x % 32 >= step) x += before;
  }
  return x;
}

template <typename T>
static __device__ inline T ops_warp_sum(T x)
{
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(OPS_ALL_LANES, x, step);
  return x;
}

static __device__ inline uint32_t ops_warp_sum(uint32_t x)
{
#if __CUDA_ARCH__ >= 800
  return __reduce_add_sync(OPS_ALL_LANES, x);
#else
  return ops_warp_sum<uint32_t>(x);
#endif
}

/* The sum of counts[0 .. warps), and in *before that of the warps before this one. In all lanes. */
static __device__ inline uint32_t ops_block_sum(const uint32_t *counts, uint32_t warps,
                                                uint32_t *before)
{
  const uint32_t lane = threadIdx.x % 32, count = lane < warps ? counts[lane] : 0;
  *before = ops_warp_sum(lane < threadIdx.x / 32 ? count : 0);
  return ops_warp_sum(count);
}

static __device__ inline uint2 ops_entry_at(const sparse_pair *pairs, uint64_t i, uint64_t count)
{
  return i < count ? *(const uint2 *)&pairs[i] : make_uint2(SPARSE_NO_INDEX, 0); /* beyond all */
}

/* The number of entries of a list, in all threads of the block. */
static __device__ inline uint64_t ops_list_count(const sparse_list &list)
{
  if (list.parts == 1) return *list.counts;
  uint64_t count = 0;
  for (int p = (int)(threadIdx.x % 32); p < list.parts; p += 32) count += list.counts[p];
  return ops_warp_sum(count);
}

/* The first entry at or after `low` whose index is not below `key`, searched for by a whole warp,
 * which looks at 64 entries at a time: a sixth of the round trips to memory of a binary search.
 * Both loads come before the first comparison; otherwise the compiler may let one wait for it.
 * The key of a tile's end may be above all indices, and no place beyond the list is below it. */
static __device__ inline uint32_t ops_lower_bound(const sparse_pair *pairs, uint32_t low,
                                                  uint32_t count, uint64_t key)
{
  const uint32_t lane = threadIdx.x % 32;
  uint32_t high = count;
  while (low < high) {
    const uint32_t step = (high - low) / 65 + 1;
    const uint64_t at = low + (uint64_t)step * (lane + 1) - 1;
    const uint64_t further = at + (uint64_t)step * 32;
    const uint64_t near = at < high ? pairs[at].index : UINT64_MAX;
    const uint64_t far = further < high ? pairs[further].index : UINT64_MAX;
    const uint32_t less = (uint32_t)(__popc(__ballot_sync(OPS_ALL_LANES, near < key)) +
                                     __popc(__ballot_sync(OPS_ALL_LANES, far < key)));
    const uint64_t end = low + (uint64_t)step * (less + 1) - 1;
    low += step * less;
    if (end < high && less < 64) high = (uint32_t)end;
  }
  return low;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Release and acquire. CUDA's __threadfence() orders more than a message needs: it takes longer. */
static __device__ inline void ops_fence(void)
{
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

static __device__ inline void ops_fence_system(void)
{
  asm volatile("fence.acq_rel.sys;" ::: "memory");
}

/* This thread's copies to shared memory (__pipeline_memcpy_async) are there then. */
static __device__ inline void ops_await_copies(void)
{
  __pipeline_commit();
  __pipeline_wait_prior(0);
}

/* Brings memory to the L2 cache, by all threads of a grid, of which each block takes its share. */
static __device__ inline void ops_prefetch(const void *begin, size_t bytes)
{
  const size_t line = 128, threads = (size_t)gridDim.x * blockDim.x;
  const size_t me = (size_t)threadIdx.x * gridDim.x + blockIdx.x;
  const char *end = (const char *)begin + bytes;
  const char *first = (const char *)((uintptr_t)begin / line * line);
  for (const char *at = first + me * line; at < end; at += threads * line)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

/* ---- the last block -------------------------------------------------------------------------- */

/* True for the block that gets here last, which sees what all others have written before; with
 * `system`, in the memory of other GPUs, too. `counter` is zero before and after: atomicInc(). */
static __device__ inline bool ops_is_last(uint32_t *counter, bool system)
{
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    if (system)
      ops_fence_system();
    else
      ops_fence();
    uint32_t before;
    asm volatile("atom.acquire.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(counter), "r"(gridDim.x - 1)
                 : "memory");
    last = before == gridDim.x - 1;
  }
  __syncthreads();
  return last;
}

/* No block waits: there may be a grid barrier after it, but no other last block before that. */
static __device__ inline bool ops_last_block(ops_scratch *scratch, bool system = false)
{
  return ops_is_last(&scratch->done, system);
}

/* All blocks wait for each other, and for the last one to call last_does() with all its threads.
 * They have to run at once: a cooperative launch, which does not begin early; or no more of them
 * than fit (ops_at_once), while nothing else on the device waits for them. */
template <typename F>
static __device__ inline void ops_grid_sync(ops_scratch *scratch, F last_does)
{
  volatile uint32_t *barriers = &scratch->barriers;
  const uint32_t before = threadIdx.x == 0 ? *barriers : 0;
  const bool last = ops_is_last(&scratch->arrived, false);
  if (last) {
    last_does();
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    if (last) {
      ops_fence();
      *barriers = before + 1;
    } else {
      while (*barriers == before) continue;
    }
    ops_fence();
  }
  __syncthreads();
}

/* Not inlined: its registers are not to be counted to those of the kernels' loops. */
template <void (*DECISION)(const sparse_memory *)>
static __device__ __noinline__ void ops_decide(const sparse_memory *m)
{
  DECISION(m);
}

#endif
