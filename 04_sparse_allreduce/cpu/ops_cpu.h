/* SPDX-License-Identifier: Apache-2.0 */
/* What the CPU versions of the operators share. Each X_cpu.c computes what the kernels of X.cu do,
 * for `make CPU=1`, and is the shortest way to read it: one thread, one loop after the other.
 * Results have the same bits as those of the kernels, but for the last ones of mean and deviation.
 * "Device" memory is plain memory. */
#ifndef OPS_CPU_H
#define OPS_CPU_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "onesided/onesided.h"

/* The arguments of an operator, as far as it has them. */
struct call {
  struct sparse_memory m;
  struct sparse_list a, b, to;
  enum sparse_decision then;
  const void *gradient;
  enum sparse_candidates candidates;
  enum sparse_removal removal;
  struct sparse_select select;
  const struct sparse_pair *base;
  const uint64_t *displs, *counts, *region;
  int first, stride;
  enum sparse_sums which;
  float scale, *vector;
  uint32_t *indices;
  float *values;
};

/* Calls run(a copy of the call) when the stream comes to it. */
static inline ncclResult_t enqueue(cudaStream_t stream, void (*run)(const void *call),
                                   const struct call *call)
{
  return cpu_launch(stream, run, call, sizeof(*call)) == cudaSuccess ? ncclSuccess
                                                                     : ncclUnhandledCudaError;
}

/* ---- numbers --------------------------------------------------------------------------------- */

/* GPUs have one NaN as the result of arithmetic; the CPU keeps the bits of an operand. */
static inline float one_nan(float x)
{
  return x != x ? sparse_from_magnitude(SPARSE_NAN_LEVEL) : x;
}

/* Of a gradient: float, half or bfloat16. */
float gradient_value(const void *gradient, ncclDataType_t type, size_t i);

/* ---- where entries come from ----------------------------------------------------------------- */

static inline uint64_t list_count(struct sparse_list list)
{
  uint64_t count = 0;
  for (int p = 0; p < list.parts; p++) count += list.counts[p];
  return count;
}

/* A list, or all of the residual. */
struct input {
  const struct sparse_pair *pairs; /* NULL: the residual */
  const float *residual;
  uint64_t count;
};

static inline struct input input_from(const struct sparse_memory *m, struct sparse_list list,
                                      uint32_t source)
{
  if (source == SPARSE_FROM_LIST) return (struct input){list.pairs, NULL, list_count(list)};
  return (struct input){NULL, m->residual, m->n};
}

static inline struct sparse_pair entry(const struct input *in, uint64_t i)
{
  if (in->pairs != NULL) return in->pairs[i];
  return (struct sparse_pair){(uint32_t)i, in->residual[i]};
}

/* The first entry of a list whose index is not below `index`. */
static inline uint64_t lower_bound(const struct sparse_pair *pairs, uint64_t count, uint64_t index)
{
  uint64_t low = 0, high = count;
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (pairs[middle].index < index)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* ---- parts of operators that those of onesided_cpu.c have in them ---------------------------- */

/* local_pass_cpu.c */
void cpu_local_pass(const struct call *call);

/* small_cpu.c: state->region_counts and region_displs of the first `count` offered entries. */
void cpu_partition(const struct sparse_memory *m, uint64_t count);

/* select_cpu.c: ops_select(); of its parts the search, which returns what to add to the histogram
 * of all ranks by `add` (NULL: of this one alone), and the filter. */
void cpu_search(const struct sparse_memory *m, const struct input *in,
                struct sparse_selection *selection,
                bool (*add)(const struct sparse_memory *m, uint64_t *counts, int digit));
void cpu_keep(const struct sparse_memory *m, const struct sparse_select *select);
void cpu_select(const struct sparse_memory *m, const struct sparse_select *select);

/* reduce_cpu.c: the sum of lists[p][0 .. counts[p]), of the entries above levels[p] only; taken[p]
 * becomes how many those are. Returns how many sums there are in `to`. */
uint64_t cpu_reduce(const struct call *call, const struct sparse_pair *const *lists,
                    const uint64_t *counts, const sparse_level_t *levels, uint64_t *taken,
                    struct sparse_pair *to);

/* apply_cpu.c */
void cpu_apply(const struct sparse_memory *m, struct sparse_list list);

#endif
