/* SPDX-License-Identifier: Apache-2.0 */
/* Up to 40 ranks of the AlltoAllV on one GPU: the kernel of the library, in one cooperative launch
 * in which the third dimension of the grid is the rank. All blocks are on the GPU at the same time,
 * as those of real ranks on theirs; random delays let ranks run ahead of each other. */
#ifndef RANKS_H
#define RANKS_H

#include <cuda_runtime.h>

#include "lib/alltoallv_protocol.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  RANKS_MAX = 40,    /* more than 32 talk with two warps */
  RANKS_GUARD = 0xEE /* what receive buffers hold before each exchange */
};

struct ranks_exchange {
  enum alltoallv_kind kind;
  struct alltoallv_pair pairs[RANKS_MAX][RANKS_MAX]; /* [rank][peer]; offsets in `input`, buffer */
};

struct ranks_case {
  int ranks, columns, teams; /* a rank has columns x teams blocks */
  uint32_t first_epoch;      /* number of the first exchange */
  int stale;                 /* scratch memory holds what looks like lines of exchanges 2 and 3 */
  uint64_t seed;             /* of the delays */
  int exchanges;
  const struct ranks_exchange *exchange;
  const char *input; /* what all ranks send from, input_bytes */
  size_t input_bytes, buffer_bytes, ll_bytes;
  /* out, in host memory: [exchange][rank] the receive buffer after the exchange, and with device
   * counts what the kernel says comes from each peer, in bytes */
  char *received;
  uint64_t (*counts)[RANKS_MAX];
  /* out: the first disagreement that each rank reports, or kind 0, and a wait given up */
  struct alltoallv_errors errors[RANKS_MAX];
};

/* Blocks that are on the GPU at the same time, of a case with so many ranks. */
int ranks_blocks(int ranks);

cudaError_t ranks_run(struct ranks_case *c);

#ifdef __cplusplus
}
#endif
#endif
