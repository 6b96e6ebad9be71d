/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the AlltoAllV share. Not for users: they include alltoallv.h. C and CUDA C++.
 */
#ifndef ALLTOALLV_INTERNAL_H
#define ALLTOALLV_INTERNAL_H

#include <stdbool.h>

#include "alltoallv.h"
#include "protocol.h"

#ifdef __cplusplus
extern "C" {
#endif

struct alltoallv_request;

/* ---- errors: a result of NCCL's kind, and the sentence of alltoallv_last_error() ---------- */

/* The longest sentence. */
enum { ALLTOALLV_SENTENCE = 512 };

/* Sets the sentence and returns `result`. The old sentence may be among the arguments. */
ncclResult_t alltoallv_fail(ncclResult_t result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* NCCL's own reason for a failure, which says more than the result; else the result in words. */
const char *alltoallv_nccl_reason(ncclResult_t result);

#define ALLTOALLV_NCCLTRY(call)                                                              \
  do {                                                                                       \
    ncclResult_t try_result = (call);                                                        \
    if (try_result != ncclSuccess)                                                           \
      return alltoallv_fail(try_result, "%s: %s", #call, alltoallv_nccl_reason(try_result)); \
  } while (0)

#define ALLTOALLV_CUDATRY(call)                                      \
  do {                                                               \
    cudaError_t try_error = (call);                                  \
    if (try_error != cudaSuccess)                                    \
      return alltoallv_fail(ncclUnhandledCudaError, "%s: %s", #call, \
                            cudaGetErrorString(try_error));          \
  } while (0)

/* For functions that have set the sentence themselves. */
#define ALLTOALLV_TRY(call)                           \
  do {                                                \
    ncclResult_t try_result = (call);                 \
    if (try_result != ncclSuccess) return try_result; \
  } while (0)

/* Reports an error of an exchange, found by the host, unless an earlier one waits to be read. */
void alltoallv_report(struct alltoallv_error *record, int kind, int source, int destination,
                      uint64_t sent, uint64_t expected, uint32_t element);

/* Device counts: does everything fit everywhere? If not, the first thing that does not is reported:
 * the same on every rank, from the same rows. counts[s * stride + d]: elements from s to d;
 * rooms[d * stride]: bytes of a slot at d, or of all that it receives. */
bool alltoallv_everything_fits(struct alltoallv_error *record, const struct alltoallv_request *x,
                               int n, const uint64_t *rooms, const uint64_t *counts, size_t stride);

/* ---- the kernel's side: lsa.cu, or its CPU version ---------------------------------------- */

/* Ranks here are those of `comm`, which holds only ranks that reach each other by load and store. A
 * function that fails has set the sentence. */
struct alltoallv_lsa; /* scratch memory, device state, launch limits */

/* The number of consecutive ranks around this one that could use the kernel: at most all ranks of
 * the host; 0 if NCCL has no device interface, and then *why says so. Not collective. */
int alltoallv_lsa_ranks(ncclComm_t comm, const char **why);

/* Is the GPU with that PCI id, of another rank of the host, reached over NVLink? Only there do
 * additions from other GPUs add up. In the order in which one counts more than the one before. */
enum alltoallv_link { ALLTOALLV_LINK_NVLINK, ALLTOALLV_LINK_UNKNOWN, ALLTOALLV_LINK_PCIE };
enum { ALLTOALLV_PCI_ID = 16 }; /* bytes of one as text, its 0 included */
enum alltoallv_link alltoallv_lsa_link(int device, const char *id);

struct alltoallv_lsa_config {
  int max_blocks;
  size_t ll_threshold;
  uint32_t first_epoch;
  double timeout_seconds;
};

/* In two steps, so that ranks can agree in between that all have got so far: create allocates what
 * is this rank's own; connect is collective and returns ncclInvalidUsage without symmetric memory.
 * After a failure of either *lsa, unless NULL, can only be destroyed. */
ncclResult_t alltoallv_lsa_create(ncclComm_t comm, const struct alltoallv_lsa_config *config,
                                  struct alltoallv_lsa **lsa);
ncclResult_t alltoallv_lsa_connect(struct alltoallv_lsa *lsa);
/* Frees everything and returns the first failure. */
ncclResult_t alltoallv_lsa_destroy(struct alltoallv_lsa *lsa);

/* Where the device leaves its errors. */
struct alltoallv_errors *alltoallv_lsa_errors(struct alltoallv_lsa *lsa);

/* Collective. Makes a buffer known as window number `id`; peers[p] receives the address at which
 * this rank sees the buffer of rank p. */
ncclResult_t alltoallv_lsa_register(struct alltoallv_lsa *lsa, int id, void *buff, size_t bytes,
                                    void **peers);
ncclResult_t alltoallv_lsa_unregister(struct alltoallv_lsa *lsa, int id);

/* An exchange. */
struct alltoallv_request {
  enum alltoallv_kind kind;
  const char *send;
  char *recv;
  uint32_t window;                    /* the number of the window that holds recv */
  uint64_t window_offset;             /* of recv in it */
  uint32_t element;                   /* bytes */
  const struct alltoallv_pair *pairs; /* kind HOST only: of this rank with each */
  /* device counts: device arrays, and what fits, in elements */
  uint64_t capacity;
  const size_t *sendcounts, *sdispls;
  size_t *recvcounts, *rdispls, *needed;
};

/* Enqueues the exchange. */
ncclResult_t alltoallv_lsa_launch(struct alltoallv_lsa *lsa,
                                  const struct alltoallv_request *request, cudaStream_t stream);

/* ---- handles ------------------------------------------------------------------------------ */

/* A registered receive buffer; its number is its place in the handle's table. */
struct alltoallv_window {
  char *base; /* NULL: free entry */
  size_t bytes;
  void *peers[ALLTOALLV_MAX_LSA_RANKS]; /* where this rank sees the buffers of the LSA ranks */
};

struct alltoallv_handle {
  ncclComm_t comm;
  int rank, n;
  alltoallv_config_t config;
  size_t ll_threshold;
  char why[160];

  /* The kernel's side: ranks lsa_first ... lsa_first + lsa_n - 1, all of this host. */
  struct alltoallv_lsa *lsa; /* NULL: send/recv for everybody */
  ncclComm_t lsa_comm;       /* ours: those ranks */
  int lsa_first, lsa_n;
  struct alltoallv_window windows[ALLTOALLV_MAX_WINDOWS];

  /* What runs beside the caller's stream: the part for other hosts. */
  cudaStream_t side_stream;
  cudaEvent_t fork, join;

  /* The last exchange that was not captured: two of them never overlap. */
  cudaStream_t last_stream;
  cudaEvent_t last_done;
  bool last_exists;

  struct alltoallv_pair *pairs;   /* of the current exchange; the host is done with it at return */
  uint64_t *words, *words_device; /* to talk to all ranks through NCCL: see alltoallv_agree */
  cudaStream_t words_stream;
  struct alltoallv_error counts_error; /* found by the host on the send/recv path */
};

/* Most 64-bit words that a rank can tell all others at once. */
static inline size_t alltoallv_most_words(int n)
{
  return 2 * (size_t)n + 8;
}

/* handle.c. Collective. The first `words` words of h->words of every rank reach h->words of all, in
 * rank order: those of rank r are at h->words + r * words. Waits. */
ncclResult_t alltoallv_agree(struct alltoallv_handle *h, size_t words);

/* Has a wait been given up? Then other ranks may not come any more. */
bool alltoallv_has_timed_out(const struct alltoallv_handle *h);

/* alltoallv_init with what only tests change: pairs up to ll_threshold bytes take lines, and the
 * number of the first epoch. */
ncclResult_t alltoallv_init_with(ncclComm_t comm, const alltoallv_config_t *config,
                                 size_t ll_threshold, uint32_t first_epoch, alltoallv_t *handle);

/* sendrecv.c: the part of an exchange that the kernel does not do. */
ncclResult_t alltoallv_sendrecv(struct alltoallv_handle *h, const struct alltoallv_request *x,
                                cudaStream_t stream);
/* Device counts where the kernel does not reach all ranks. Fills h->pairs. *fits: has to be
 * exchanged. */
ncclResult_t alltoallv_sendrecv_counts(struct alltoallv_handle *h,
                                       const struct alltoallv_request *x, cudaStream_t stream,
                                       bool *fits);

static inline bool alltoallv_is_local(const struct alltoallv_handle *h, int p)
{
  return h->lsa != NULL && p >= h->lsa_first && p < h->lsa_first + h->lsa_n;
}

#ifdef __cplusplus
}
#endif
#endif
