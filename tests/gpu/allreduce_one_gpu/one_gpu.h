/* SPDX-License-Identifier: Apache-2.0 */
/* A job of several ranks on one GPU: a dimension of the grid is the rank. */
#ifndef ONE_GPU_H
#define ONE_GPU_H

#include "tests/gpu/allreduce_direct/calls.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ONE_GPU_RANKS = 8, ONE_GPU_BLOCKS = 5, ONE_GPU_ROOM = 1 << 20 };
enum { ONE_GPU_SLOT = 256 }; /* so that pushes take several rounds */

/* Memory of all ranks, on the device: arrays of n. */
struct one_gpu {
  int n;
  char *send[ONE_GPU_RANKS], *recv[ONE_GPU_RANKS], *scratch[ONE_GPU_RANKS];
  char *inputs[ONE_GPU_RANKS], *results[ONE_GPU_RANKS];
  struct allreduce_state *state[ONE_GPU_RANKS];
  struct allreduce_error *error; /* in host memory */
  uint64_t limit;                /* ns to wait for others */
};

/* Runs all calls, which are of one type, in one cooperative launch. Call i takes method
 * methods[i]. Every block waits up to `delay` ns before each of them. */
void one_gpu_launch(const struct one_gpu *job, const struct calls *c,
                    const enum allreduce_method *methods, int blocks, unsigned delay);

#ifdef __cplusplus
}
#endif
#endif
