/* SPDX-License-Identifier: Apache-2.0 */
/* What the host files of the AlltoAllV share. Not for users: they include alltoallv.h. */
#ifndef ALLTOALLV_INTERNAL_H
#define ALLTOALLV_INTERNAL_H

#include "alltoallv.h"
#include "alltoallv_errors.h"
#include "alltoallv_lsa.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A registered receive buffer; its number is its place in the handle's table. */
struct alltoallv_window {
  char *base; /* NULL: free entry */
  size_t bytes;
  uint64_t since; /* which registration of the handle it was: an entry is used again */
  void *peers[ALLTOALLV_MAX_LSA_RANKS]; /* where this rank sees the buffers of the LSA ranks */
};

/* A segment of a receive buffer, from one rank. */
struct alltoallv_span {
  uint64_t begin, end;
  int rank;
};

struct alltoallv_handle {
  ncclComm_t comm;
  int rank, n;
  alltoallv_config_t config;
  alltoallv_method_t method;
  char why[160];

  /* The one-sided part: ranks lsa_first ... lsa_first + lsa_n - 1, all of this host. */
  struct alltoallv_lsa *lsa; /* NULL: send/recv for everybody */
  ncclComm_t lsa_comm;       /* ours: those ranks */
  int lsa_first, lsa_n;
  struct alltoallv_window windows[ALLTOALLV_MAX_WINDOWS];
  uint64_t registrations; /* so far */

  /* What runs beside the caller's stream: the part for other hosts, or a plan's copy to itself. */
  cudaStream_t side_stream;
  cudaEvent_t fork, join;

  /* The last exchange that was not captured: two of them never overlap. */
  cudaStream_t last_stream;
  cudaEvent_t last_done;
  bool last_exists;

  /* The last one that was: of which capture, and on which stream, which need not exist any more. */
  unsigned long long capture;
  cudaStream_t captured_stream;
  bool captured_exists;

  struct alltoallv_pair
      *pairs; /* of the current call, n entries; the host is done with it at return */
  struct alltoallv_span *spans;   /* n entries, to look for segments that overlap */
  uint64_t *stage, *stage_device; /* to talk to all ranks through NCCL: see alltoallv_agree */
  cudaStream_t stage_stream;
  struct alltoallv_error counts_error; /* found by the host on the send/recv path */
  uint32_t copy_starts;                /* starts of copy engine plans so far */
};

/* One exchange with counts known to the host. */
struct alltoallv_exchange {
  const char *send;
  char *recv;
  bool registered; /* recv lies in a registered buffer: */
  uint32_t window; /* its number, else 0 */
  uint64_t window_offset;
  struct alltoallv_unit unit;
  struct alltoallv_pair *pairs; /* n entries */
};

/* Most 64-bit words that a rank can tell all others at once. */
static inline size_t alltoallv_stage_words(int n)
{
  return 3 * (size_t)n + 8;
}

/* Collective. The first `words` words of h->stage of every rank reach h->stage of all, in rank
 * order: those of rank r are at h->stage + r * words. Waits. */
ncclResult_t alltoallv_agree(struct alltoallv_handle *h, size_t words);

/* Collective. Have all ranks got as far as this one? The first failure becomes everybody's. Why, a
 * rank that has failed itself knows from its own sentence; the others have the result in words. */
ncclResult_t alltoallv_agree_on(struct alltoallv_handle *h, ncclResult_t result, const char *what);

/* The sentence for an error that is not about this rank's arguments alone, and its result. `base`
 * is the rank of the communicator that the record's rank 0 is. */
ncclResult_t alltoallv_describe(const struct alltoallv_error *e, int base, int *source,
                                int *destination);

/* alltoallv_errors.c: has the device, or send/recv, left an error in this record? */
bool alltoallv_has_error(const struct alltoallv_error *e);

/* alltoallv_errors.c: has a wait been given up? Then other ranks may not come any more. */
bool alltoallv_has_timed_out(const struct alltoallv_handle *h);

static inline const char *alltoallv_unit_name(struct alltoallv_unit unit)
{
  return unit.rows ? "rows" : "elements";
}

/* alltoallv_windows.c: the number of the window that holds the byte `at`, or -1. */
int alltoallv_find_window(const struct alltoallv_handle *h, const void *at);

/* alltoallv_check.c: what a count of one means. */
ncclResult_t alltoallv_make_unit(ncclDataType_t datatype, size_t row_elements,
                                 struct alltoallv_unit *unit);

/* Where recvbuff lies: on the kernel's path it has to be registered, with room for `end` bytes.
 * `last` is the rank whose segment ends there, -1: recvcapacity. */
ncclResult_t alltoallv_locate_recvbuff(const struct alltoallv_handle *h, void *recvbuff,
                                       uint64_t end, int last, struct alltoallv_exchange *ex);

/* Checks the arguments of alltoallv_rows() and turns them into bytes, in ex->pairs. */
ncclResult_t alltoallv_make_exchange(struct alltoallv_handle *h, const void *sendbuff,
                                     const size_t sendcounts[], const size_t sdispls[],
                                     void *recvbuff, const size_t recvcounts[],
                                     const size_t rdispls[], size_t row_elements,
                                     ncclDataType_t datatype, struct alltoallv_exchange *ex);

/* Makes `stream` wait for the exchange before. *capturing: is the stream being captured? */
ncclResult_t alltoallv_order(struct alltoallv_handle *h, cudaStream_t stream, bool *capturing);

/* What comes after fork on the side stream runs beside `stream`, until join; always join, also
 * after an error in between. */
ncclResult_t alltoallv_fork(struct alltoallv_handle *h, cudaStream_t stream);
ncclResult_t alltoallv_join(struct alltoallv_handle *h, cudaStream_t stream);

/* Enqueues an exchange: the kernel for the LSA ranks, send/recv for all others. */
ncclResult_t alltoallv_run_exchange(struct alltoallv_handle *h, const struct alltoallv_exchange *ex,
                                    bool capturing, cudaStream_t stream);
void alltoallv_fill_request(const struct alltoallv_handle *h, const struct alltoallv_exchange *ex,
                            struct alltoallv_request *request);

/* alltoallv_sendrecv.c: the part of an exchange that the kernel does not do. */
ncclResult_t alltoallv_sendrecv(struct alltoallv_handle *h, const struct alltoallv_exchange *ex,
                                bool capturing, cudaStream_t stream);
ncclResult_t alltoallv_sendrecv_device_counts(struct alltoallv_handle *h,
                                              const struct alltoallv_exchange *ex,
                                              const struct alltoallv_request *request,
                                              cudaStream_t stream);
static inline bool alltoallv_is_local(const struct alltoallv_handle *h, int p)
{
  return h->lsa != NULL && p >= h->lsa_first && p < h->lsa_first + h->lsa_n;
}

/* For benchmarks: the bytes of a plan along the same way, without any protocol. */
ncclResult_t alltoallv_start_bare(alltoallv_plan_t plan, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
