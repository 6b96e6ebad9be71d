/* SPDX-License-Identifier: Apache-2.0 */
/* What the CPU versions of the operators share. Each X_cpu.c computes what the kernels of X.cu do,
 * small_cpu.c also what those of apply.cu do, for `make CPU=1`, and is the shortest way to read it:
 * one thread, one loop after the other. Results have the same bits as those of the kernels, but for
 * the last ones of mean and deviation. "Device" memory is plain memory. */
#ifndef OPS_CPU_H
#define OPS_CPU_H

#include <math.h>
#include <string.h>

#include "cpu.h"
#include "handle.h"
#include "onesided/onesided.h"

/* An operator and its arguments, as far as it has them. It does run(call), or each(call, i) for all
 * entries of `list` or, without a list, all elements of the vectors; and then the decision. */
struct call {
  void (*run)(const struct call *call);
  void (*each)(const struct call *call, uint64_t i);
  enum sparse_decision then;
  struct sparse_memory m;
  struct sparse_list list, from;
  const void *gradient;
  enum sparse_candidates candidates;
  enum sparse_removal removal;
  struct sparse_selection *selection;
  enum sparse_decision found;
  const struct sparse_pair *lists;
  bool own_region;
  enum sparse_sums which;
  float scale, *vector, *values;
  uint32_t *indices;
};

/* small_cpu.c: the operator runs when the stream comes to it. */
ncclResult_t enqueue(const struct sparse_memory *m, cudaStream_t stream, struct call call);

/* GPUs have one NaN as the result of arithmetic; the CPU keeps the bits of an operand. */
static inline float one_nan(float x)
{
  return x != x ? sparse_from_magnitude(SPARSE_NAN_LEVEL) : x;
}

/* local_pass_cpu.c: of a gradient, float, half or bfloat16. */
float gradient_value(const void *gradient, ncclDataType_t type, size_t i);

static inline uint64_t list_count(struct sparse_list list)
{
  uint64_t count = 0;
  for (int p = 0; p < list.parts; p++) count += list.counts[p];
  return count;
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

/* small_cpu.c: where the regions begin in a list, and how many of its entries are in each. */
void cpu_partition(const struct sparse_memory *m, const struct sparse_pair *pairs, uint64_t count,
                   uint64_t *displs, uint64_t *counts);

#endif
