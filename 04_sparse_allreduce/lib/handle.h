/* SPDX-License-Identifier: Apache-2.0 */
/* What the host files share: paths, the handle, parts of steps. Not for users. */
#ifndef SPARSE_HANDLE_H
#define SPARSE_HANDLE_H

#include <stdbool.h>

#include "alltoallv.h"
#include "ops.h"

struct sparse_allreduce_handle;

/* ---- paths ----------------------------------------------------------------------------------- */

/* Enqueues a step, on every rank in the same way: select_offered(), an exchange, sums in an order
 * that is the same on all ranks, and ops_apply(). sparse_phase() says where each begins. */
typedef ncclResult_t sparse_path_t(struct sparse_allreduce_handle *h, const void *gradient,
                                   cudaStream_t stream);

/* What is particular about a path, as bits. */
enum {
  SPARSE_SELECTS = 1,     /* offers entries, keeps a residual: all but dense */
  SPARSE_VARIES = 2,      /* not always k entries: the host waits for counts if NCCL moves lists */
  SPARSE_REGIONS = 4,     /* lists go to owners of regions, sums to every rank */
  SPARSE_TREE = 8,        /* lists of k entries go up a tree, by NCCL calls of its own */
  SPARSE_FALLS_BACK = 16, /* to a dense result, if sums are many: the host always waits */
  SPARSE_BALANCES = 32,   /* may even out the sums before they are gathered */
  SPARSE_REUSES = 64,     /* thresholds, which are exact only in some steps */
  SPARSE_ADAPTS = 128,    /* raises and adapts them, and has new regions in some steps */
  SPARSE_CHOOSES = 256,   /* of the sums only the largest are the result */
  SPARSE_EXACT = 512,     /* the threshold is exact in every step, */
  SPARSE_GAUSSIAN = 1024, /* or Gaussian */
  SPARSE_ONESIDED = 2048, /* can do without messages */
};

struct sparse_path {
  const char *name;
  unsigned is;
  sparse_path_t *run;
};

/* `algorithm` must be valid. */
const struct sparse_path *sparse_path_of(sparse_allreduce_algorithm_t algorithm);

sparse_path_t path_dense, path_lists, path_gtopk, path_regions, path_oktopk;

/* ---- a handle -------------------------------------------------------------------------------- */

/* What the host knows about a step: its kind, which depends only on its number, and its outcome. */
struct sparse_step {
  bool dense, exact_local, exact_global, repartition;
  bool fell_back; /* TOPKSA gathered densely */
  bool there;     /* false: no step has run yet */
};

/* It leaves a dense result and no entries. */
static inline bool sparse_is_dense(struct sparse_step step)
{
  return step.dense || step.fell_back;
}

struct sparse_allreduce_handle {
  ncclComm_t comm;
  const struct sparse_path *path;
  struct sparse_memory m;
  bool onesided;         /* oktopk: ranks use each other's lists, and no messages */
  alltoallv_t alltoallv; /* NULL: send/recv, and the host reads counts, */
  char why[256];         /* and why, if AUTO chose that */
  size_t lists_bytes;    /* of the memory at m.lists */

  ncclResult_t broken; /* what has ended this handle: every call but destroy returns it, */
  char reason[256];    /* and the sentence */

  uint64_t step;             /* number of the next step */
  double density;            /* at most the configured one */
  uint64_t exact_step;       /* number of one that finds thresholds and regions anew */
  struct sparse_step now;    /* the step that is being enqueued */
  struct sparse_step last;   /* the last one that ran, */
  struct sparse_step latest; /* or that was captured, if that came later */

  /* On the host. Not pinned: freeing pinned memory waits for all GPUs of the process. */
  uint64_t *counts;
  struct sparse_state *state;

  /* For what the handle does outside of steps, when the device has nothing else to do. Stream NULL
   * may be another one here than in NCCL (CUDA_API_PER_THREAD_DEFAULT_STREAM). */
  cudaStream_t own;

  bool time_phases;
  cudaEvent_t phases[6]; /* when each began, and the end */
  int phase;             /* the next to begin */
};

/* ---- errors ---------------------------------------------------------------------------------- */

/* Set the text of sparse_allreduce_last_error() and return `result`: of any error; of a call of
 * NCCL that failed; of a call of the AlltoAllV library, which may have succeeded. */
ncclResult_t sparse_fail(ncclResult_t result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
ncclResult_t sparse_fail_nccl(ncclResult_t result, const char *call);
ncclResult_t sparse_alltoallv(ncclResult_t result);

#define SPARSE_NCCL(call)                                                      \
  do {                                                                         \
    ncclResult_t try_result = (call);                                          \
    if (try_result != ncclSuccess) return sparse_fail_nccl(try_result, #call); \
  } while (0)

#define SPARSE_CUDA(call)                                                                         \
  do {                                                                                            \
    cudaError_t try_error = (call);                                                               \
    if (try_error != cudaSuccess)                                                                 \
      return sparse_fail(ncclUnhandledCudaError, "%s: %s", #call, cudaGetErrorString(try_error)); \
  } while (0)

/* For functions that have set the text themselves. */
#define SPARSE_TRY(call)                              \
  do {                                                \
    ncclResult_t try_result = (call);                 \
    if (try_result != ncclSuccess) return try_result; \
  } while (0)

/* ---- lists ----------------------------------------------------------------------------------- */

static inline struct sparse_list sparse_offered(const struct sparse_memory *m)
{
  return (struct sparse_list){m->offered, &m->state->offered_count, 1};
}

static inline struct sparse_list sparse_reduced(const struct sparse_memory *m)
{
  return (struct sparse_list){m->reduced, &m->state->reduced_count, 1};
}

/* One-sided: the sums of all ranks, each in its owner's memory. */
#define SPARSE_AT_OWNERS ((struct sparse_list){NULL, NULL, 0})

/* All ranks' lists, one after the other; and the entries of the result, once they are one list. */
static inline struct sparse_list sparse_gathered(const struct sparse_memory *m)
{
  return (struct sparse_list){m->gathered, m->state->gathered_counts, m->nranks};
}

static inline struct sparse_list sparse_result(const struct sparse_memory *m)
{
  return (struct sparse_list){m->gathered, &m->state->result_count, 1};
}

/* ---- the handle ------------------------------------------------------------------------------ */

/* A hash of `count` bytes, and of what was hashed before. */
uint64_t sparse_hash(uint64_t so_far, const void *bytes, size_t count);

/* Every call begins with it: an error if the handle is NULL, or broken as far as the host knows. */
ncclResult_t sparse_usable(const struct sparse_allreduce_handle *h);

/* Waits for the device, then copies the state to h->state. */
ncclResult_t sparse_read_state(struct sparse_allreduce_handle *h);

/* The same, and an error if the handle is broken, for calls that need the work of its last step. */
ncclResult_t sparse_wait(struct sparse_allreduce_handle *h);

/* Steps from here on have this density, and the state is h->state. There is no last step then. */
ncclResult_t sparse_change_density(struct sparse_allreduce_handle *h, double density);

/* ---- parts of a step ------------------------------------------------------------------------- */

/* The phase that begins now, for sparse_allreduce_phases(). */
enum sparse_phase {
  SPARSE_PHASE_SELECT,
  SPARSE_PHASE_EXCHANGE,
  SPARSE_PHASE_REDUCE,
  SPARSE_PHASE_GATHER,
  SPARSE_PHASE_APPLY,
  SPARSE_PHASES,
};
ncclResult_t sparse_phase(struct sparse_allreduce_handle *h, enum sparse_phase phase,
                          cudaStream_t stream);

/* offer.c: adds the gradient to the residual and leaves what this rank offers in the offered list,
 * and the rule by which it was chosen in state->selection. See enum sparse_removal. */
ncclResult_t select_offered(struct sparse_allreduce_handle *h, const void *gradient,
                            cudaStream_t stream);

/* exchange.c. All are collective.
 *
 * Split: state->boundaries divide the offered list; the part in region j goes to rank j, for all j.
 * Part p arrives at received[list_displs[p]], received_counts[p] entries; part `rank` is copied. At
 * most `throttle` peers at a time. */
ncclResult_t exchange_split(struct sparse_allreduce_handle *h, long throttle, cudaStream_t stream);

/* Rank r has counts[r] elements: those from place from[r] to from[r + 1] of all of them. Those that
 * it hands on in a gather are to[r] to to[r + 1]: the same, or even shares (OKTOPK, balancing). */
void exchange_shares(const struct sparse_allreduce_handle *h, const uint64_t *counts,
                     uint64_t *from, uint64_t *to);

/* How many places a[0] to a[1] and b[0] to b[1] have in common; *first becomes the first one. */
uint64_t exchange_overlap(const uint64_t *a, const uint64_t *b, uint64_t *first);

/* AllGatherV: the state->send_counts[0] entries at `send` of every rank arrive at `recv` of all, in
 * rank order, one after the other. `recv` is `gathered`, then gathered_counts and gathered_displs
 * of the state say where, or `received`: received_counts and received_displs. */
ncclResult_t exchange_gather(struct sparse_allreduce_handle *h, const struct sparse_pair *send,
                             struct sparse_pair *recv, cudaStream_t stream);

/* All ranks exchange whether their gradients were finite: 4 bytes each, at a step's end. */
ncclResult_t exchange_nonfinite(struct sparse_allreduce_handle *h, cudaStream_t stream);

/* Gathers the same number of words from every rank on the host, in h->counts[r * words ...]; waits
 * for the stream. `mine` is in device memory. */
ncclResult_t exchange_counts(struct sparse_allreduce_handle *h, const uint64_t *mine, size_t words,
                             cudaStream_t stream);

/* Elements places[r] to places[r + 1] of `vector`, which lie there on rank r, go to all ranks. */
ncclResult_t exchange_blocks(struct sparse_allreduce_handle *h, void *vector,
                             const uint64_t *places, size_t size, cudaStream_t stream);

#endif
