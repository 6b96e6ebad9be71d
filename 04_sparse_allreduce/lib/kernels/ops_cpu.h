/* SPDX-License-Identifier: Apache-2.0 */
/* What the plain C twins of the operators share. Each ops_X_cpu.c computes what the kernels of
 * ops_X.cu do, for `make CPU=1`, and is the shortest way to read it: one thread, one loop after the
 * other. Results have the same bits as those of the kernels, but for the last ones of mean and
 * deviation.
 *
 * The structs that are launched hold a copy of an operator's arguments; "device" memory is plain
 * memory. Without CPU_STANDIN this file and those are empty, so that every .c of the library may be
 * compiled. */
#ifndef OPS_CPU_H
#define OPS_CPU_H

#include "onesided/ops_onesided.h"

#ifdef CPU_STANDIN
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "decide/decide.h"

/* ---- launches -------------------------------------------------------------------------------- */

/* Calls twin(a copy of args) when the stream comes to it. */
static inline ncclResult_t twin_launch(cudaStream_t stream, void (*twin)(const void *args),
                                       const void *args, size_t bytes)
{
  return cpu_launch(stream, twin, args, bytes) == cudaSuccess ? ncclSuccess
                                                              : ncclUnhandledCudaError;
}

/* The arguments of many operators. */
struct control {
  struct sparse_memory m;
  enum sparse_decision what;
};

struct lists {
  struct sparse_memory m;
  struct sparse_list a, b, to;
  enum sparse_decision then;
};

/* ---- numbers --------------------------------------------------------------------------------- */

/* GPUs have one NaN as the result of arithmetic; the CPU keeps the bits of an operand. */
static inline float one_nan(float x)
{
  return x != x ? sparse_from_magnitude(SPARSE_NAN_LEVEL) : x;
}

/* A gradient is float, half or bfloat16. */
static inline float half_value(uint16_t bits)
{
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  float x = exponent == 0    ? ldexpf((float)fraction, -24)
            : exponent == 31 ? (fraction ? NAN : INFINITY)
                             : ldexpf((float)(1024 + fraction), exponent - 25);
  return bits >> 15 ? -x : x;
}

static inline float bfloat16_value(uint16_t bits)
{
  const uint32_t wide = (uint32_t)bits << 16;
  float x;
  memcpy(&x, &wide, sizeof(x));
  return x;
}

static inline float gradient_value(const void *gradient, ncclDataType_t type, size_t i)
{
  switch (type) {
  case ncclHalf:
    return half_value(((const uint16_t *)gradient)[i]);
  case ncclBfloat16:
    return bfloat16_value(((const uint16_t *)gradient)[i]);
  default:
    return ((const float *)gradient)[i];
  }
}

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

static inline bool is_entry(struct sparse_pair pair)
{
  return pair.index != SPARSE_NO_INDEX;
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

/* ---- parts of operators that others have in them --------------------------------------------- */

/* ops_residual_cpu.c: what is pending in the residual becomes zero. */
void twin_settle(const struct sparse_memory *m);

/* ops_regions_cpu.c: the parts of the offered list go to the owners of their regions. */
void twin_send_parts(const struct sparse_memory *m);

/* ops_select_cpu.c: of more candidates than its list holds a rank sends those that it chooses. */
void twin_choose_and_offer(const struct sparse_memory *m);

/* ---- ops_notes_cpu.c: how ranks tell each other what is where (struct sparse_notes) -----------
 */

/* Where this rank sees what lies at `mine` in its own memory in that of rank p. */
void *twin_at_peer(const struct sparse_memory *m, int p, const void *mine);

void twin_write_note(const struct sparse_memory *m, uint64_t *note, uint32_t value);

/* Tells the owners of regions where their entries are going to be. */
void twin_tell_owners(const struct sparse_memory *m);

/* The entries to their memory, and then how many. */
void twin_store_parts(const struct sparse_memory *m);

/* The list that rank p has for this one, once it has told. */
const struct sparse_pair *twin_await_list(const struct sparse_memory *m, int p);

/* Tells all ranks how many sums this one has for them. */
void twin_tell_all_of_sums(const struct sparse_memory *m, uint64_t sums);

/* Each rank has a place for each digit in the memory of every rank: two, in turns. */
uint32_t *twin_histogram(const struct sparse_memory *m, int p, int digit);

/* counts[b] becomes the sum over all ranks. False if one does not come in time. */
bool twin_add_histograms(const struct sparse_memory *m, uint64_t *counts, int digit);

/* Everybody's sums, one after the other. */
void twin_fetch_sums(const struct sparse_memory *m);

#endif
#endif
