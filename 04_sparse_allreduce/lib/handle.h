/* SPDX-License-Identifier: Apache-2.0 */
/* What the host files share: paths, the handle, parts of steps. Not for users. */
#ifndef SPARSE_HANDLE_H
#define SPARSE_HANDLE_H

#include <stdbool.h>

#include "alltoallv.h"
#include "ops.h"

/* ---- paths ----------------------------------------------------------------------------------- */

/* Where the sums are made, of lists that have k entries or not, */
enum sparse_sums_at {
  SPARSE_SUMS_AT_ALL,    /* every rank gets all lists, and adds */
  SPARSE_SUMS_AT_OWNERS, /* the owner of a region adds what lies in it; every rank gets the sums */
  SPARSE_SUMS_UP_A_TREE, /* two lists of k entries at a time; the root's go to every rank */
};

/* and which of them are the result. */
enum sparse_choice {
  SPARSE_EVERY_SUM,
  SPARSE_K_LARGEST_SUMS,
  SPARSE_SUMS_FOLLOWED, /* those above a threshold that follows them, the k largest now and then.
                           The local threshold adapts, too, regions are new now and then, owners may
                           even out what they have, and messages can be avoided (OKTOPK) */
};

struct sparse_path {
  const char *name;
  enum sparse_select select;
  enum sparse_sums_at sums;
  enum sparse_choice choice;
  bool falls_back; /* to a dense result, if sums are many: the host always waits */
  bool one_peer;   /* at a time */
};

/* `algorithm` must be valid. */
const struct sparse_path *sparse_path_of(sparse_allreduce_algorithm_t algorithm);

/* Lists do not always have k entries: the host waits for counts if NCCL moves them. */
static inline bool sparse_varies(const struct sparse_path *path)
{
  return path->select > SPARSE_SELECT_K || path->sums == SPARSE_SUMS_AT_OWNERS;
}

struct sparse_allreduce_handle;

/* Steps, enqueued on every rank in the same way: of vectors, of a tree, of all other paths, and of
 * OKTOPK without messages. */
typedef ncclResult_t sparse_step_t(struct sparse_allreduce_handle *h, const void *gradient,
                                   cudaStream_t stream);
sparse_step_t step_dense, step_up_a_tree, step_of_lists, step_onesided;

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
};

/* ---- errors ---------------------------------------------------------------------------------- */

/* Set the text of sparse_allreduce_last_error() and return `result`: of any error; of a call of
 * NCCL that failed; of a call of the AlltoAllV library, which may have succeeded. */
#define sparse_fail(result, ...) (sparse_say(__VA_ARGS__), (result))
void sparse_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
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

/* ---- the handle ------------------------------------------------------------------------------ */

/* A hash of `count` bytes, and of what was hashed before. */
uint64_t sparse_hash(uint64_t so_far, const void *bytes, size_t count);

/* Every call begins with it: an error if one of the two is NULL, or the handle broken as far as the
 * host knows. */
ncclResult_t sparse_usable(const struct sparse_allreduce_handle *h, const void *argument);

/* Waits for the device, then copies the state to h->state. */
ncclResult_t sparse_read_state(struct sparse_allreduce_handle *h);

/* The same, and an error if the handle is broken, for calls that need the work of its last step. */
ncclResult_t sparse_wait(struct sparse_allreduce_handle *h, const void *argument);

/* Steps from here on have this density, and the state is h->state. There is no last step then. */
ncclResult_t sparse_change_density(struct sparse_allreduce_handle *h, double density);

/* ---- parts of a step ------------------------------------------------------------------------- */

/* paths/pipeline.c: adds the gradient to the residual and leaves what this rank offers in the
 * offered list, and the rule by which it was chosen in state->selection. See enum sparse_removal.
 */
ncclResult_t select_offered(struct sparse_allreduce_handle *h, const void *gradient,
                            cudaStream_t stream);

/* exchange.c. All are collective.
 *
 * Split: state->kept.boundaries divide the offered list; the part in region j goes to rank j, for
 * all j. Part p arrives at received[list_displs[p]], received_counts[p] entries; part `rank` is
 * copied. At most `throttle` peers at a time. */
ncclResult_t exchange_split(struct sparse_allreduce_handle *h, long throttle, cudaStream_t stream);

/* Rank r has counts[r] elements: those from place from[r] to from[r + 1] of all of them. Those that
 * it hands on in a gather are to[r] to to[r + 1]: the same, or even shares (OKTOPK, balancing). */
void exchange_shares(const struct sparse_allreduce_handle *h, const uint64_t *counts,
                     uint64_t *from, uint64_t *to);

/* How many places a[0] to a[1] and b[0] to b[1] have in common; *first becomes the first one. */
uint64_t exchange_overlap(const uint64_t *a, const uint64_t *b, uint64_t *first);

/* AllGatherV: the state->send_counts[0] entries at `send` of every rank arrive at `recv` of all, in
 * rank order, one after the other; counts[r] and displs[r], in device memory, become how many there
 * are of rank r, and where (unless all have k, which they say already). */
ncclResult_t exchange_gather(struct sparse_allreduce_handle *h, const struct sparse_pair *send,
                             struct sparse_pair *recv, uint64_t *counts, uint64_t *displs,
                             cudaStream_t stream);

/* All ranks exchange whether their gradients were finite: 4 bytes each, at a step's end. */
ncclResult_t exchange_nonfinite(struct sparse_allreduce_handle *h, cudaStream_t stream);

/* Waits until all ranks have come here. */
ncclResult_t exchange_barrier(struct sparse_allreduce_handle *h);

/* Gathers the same number of words from every rank on the host, in h->counts[r * words ...]; waits
 * for the stream. `mine` is in device memory. */
ncclResult_t exchange_counts(struct sparse_allreduce_handle *h, const uint64_t *mine, size_t words,
                             cudaStream_t stream);

/* Elements places[r] to places[r + 1] of `vector`, which lie there on rank r, go to all ranks. */
ncclResult_t exchange_blocks(struct sparse_allreduce_handle *h, void *vector,
                             const uint64_t *places, size_t size, cudaStream_t stream);

#endif
