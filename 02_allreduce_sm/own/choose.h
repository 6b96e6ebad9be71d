/* SPDX-License-Identifier: Apache-2.0 */
/* Which method a call takes, on how many blocks. All ranks have to choose alike, so nothing enters
 * but what they have in common: bytes (count and type), the number of ranks, and limits on which
 * allreduce_create lets them agree. */
#ifndef ALLREDUCE_CHOOSE_H
#define ALLREDUCE_CHOOSE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum allreduce_method { ALLREDUCE_LINES, ALLREDUCE_WIDE, ALLREDUCE_TWOSHOT, ALLREDUCE_METHODS };

struct allreduce_shape {
  enum allreduce_method method;
  int blocks, threads; /* of the launch; threads of a block */
};

struct allreduce_limits {
  size_t blocks[ALLREDUCE_METHODS]; /* of a launch: as many as all GPUs run at once */
  size_t lines;                     /* the most bytes that a rank sends to others as lines ... */
  size_t wide;                      /* ... and as wide lines; 0: wide lines cannot be used */
};

/* `bytes` is not 0, n at least 2. */
struct allreduce_shape allreduce_choose(size_t bytes, int n, struct allreduce_limits limits);

#ifdef __cplusplus
}
#endif
#endif
