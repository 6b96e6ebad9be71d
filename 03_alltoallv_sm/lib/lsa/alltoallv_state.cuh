/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the kernel share: its arguments, and what a rank and a block remember. */
#ifndef ALLTOALLV_STATE_CUH
#define ALLTOALLV_STATE_CUH

#include "alltoallv_protocol.h"

/* What a rank remembers from one exchange to the next, in its own device memory. Numbers that the
 * host passed would freeze in a graph. */
struct device_state {
  uint32_t broken;                     /* a timeout has occurred: for ever */
  uint32_t reported;                   /* last call that has reported an error */
  uint32_t blocks_done;                /* blocks that have pushed their tiles */
  unsigned long long taken;            /* turns handed out */
  uint32_t call[ALLTOALLV_MAX_BLOCKS]; /* per block: number of the last call */
  /* per source: what received[] in the scratch memory, which grows, was after the last call */
  uint64_t received_before[ALLTOALLV_MAX_LSA_RANKS];
};

/* What every path reads comes first: the arguments are cached by lines of 64 bytes, and each line
 * costs a miss per launch. */
template <int N>
struct kernel_args {
  struct device_state *state;
  char *scratch_base;      /* where I see the scratch memory of rank 0 */
  uint64_t scratch_stride; /* from there to that of the next rank */
  int rank, n;
  uint32_t kind, ll_threshold;
  const char *send;
  char *recv;
  uint64_t window_offset; /* my receive buffer: number of the window, offset in it */
  uint32_t window;
  uint32_t unit; /* bytes that a count of one means */
  uint32_t lead; /* so many bytes of a large pair travel as lines */
  struct alltoallv_scratch scratch;
  const uint64_t *sendcounts, *sdispls;
  uint64_t capacity;
  alignas(64) struct alltoallv_pair pairs[N];
  uint64_t limit; /* nanoseconds to wait; 0: for ever */
  struct alltoallv_errors *errors;
  char *const *windows; /* [number * n + rank]: where I see that window of that rank */
  uint64_t *recvcounts, *rdispls, *needed;
  uint64_t unit_inverse; /* of the odd part of the unit, modulo 2^64: see publish_counts */
  uint32_t rows;         /* are counts in rows? */
};

/* How tiles are dealt to warps: see deal_tiles in alltoallv_push.cuh. A couple is two tiles that
 * follow each other. */
struct deal {
  uint32_t shift, width; /* width: the most couples that one round has */
  uint64_t turns;        /* one per tile, and some without */
};

/* A tile of a pair. */
struct place {
  int peer; /* -1: this turn has none */
  uint64_t tile;
};

/* What the threads of a block share. */
template <int N>
struct block_state {
  struct alltoallv_pair pairs[N];
  char *to[N];         /* where I push data for rank p; NULL: nowhere, the counts disagree */
  bool takes[N];       /* a large pair is coming from rank p, and the counts agree */
  uint32_t couples[N]; /* of tiles: how many of the pair have to be pushed */
  unsigned long long pushed[N]; /* bytes that this block has pushed to rank p */
  /* Device counts: bytes for rank p, from all and from those before me; what fits there; its
   * receive buffer: offset in the window, and number of the window. */
  uint64_t total[N], before[N], capacity[N], offset[N];
  uint32_t window[N];
  struct deal deal;       /* device counts: how tiles are dealt, */
  struct place first[16]; /* and the first one of each warp */
  uint32_t call;          /* number of the exchange */
  int bad;                /* device counts: which entry does not fit */
  int stop;               /* a wait of this block has been given up */
  int broken;             /* the handle was broken when the block began */
};

#define NOT_BAD 0x7fffffff

#endif
