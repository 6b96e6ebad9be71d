/* SPDX-License-Identifier: Apache-2.0 */
/* topkA and oktopk as short as they can be: NCCL's host calls, thresholds, counts and regions on
 * the host, operators that do one thing each. Read topka.c first, then oktopk.c; the operators are
 * in simple_ops.cu, and as plain loops in simple_ops_cpu.c.
 *
 * It computes the same bits as the library, and the program verifies both in the same way
 * (--simple). What it is slow at: it sorts the whole gradient to find the k largest, it reads and
 * writes whole vectors many times, and the host waits several times a step for a number.
 *
 * Left out: 16-bit gradients, NaN and infinity, evening out the sums before they are gathered
 * (balance), dense steps to begin with, graphs, checkpoints. A call that fails ends the job. */
#ifndef SIMPLE_H
#define SIMPLE_H

#include <stddef.h>
#include <stdint.h>

#include "constants.h" /* sparse_allreduce.h: struct sparse_pair, the configuration, the statistics */

#ifdef __cplusplus
extern "C" {
#endif

/* Which elements of a vector are chosen: element i if its magnitude is above `above`, or equal to
 * it and i <= tie. */
struct simple_rule {
  float above;
  int64_t tie;
};

/* One rank's side. A vector has n floats, a list has entries {index, value} with ascending indices
 * and room for n of them. Both are in device memory. */
struct simple {
  sparse_allreduce_config_t config;
  struct sparse_constants constants;
  ncclComm_t comm;
  int rank, nranks;
  size_t n;
  size_t t;        /* floor(n * density): thresholds aim at so many entries */
  size_t k;        /* max(t, 1) */
  size_t capacity; /* a rank never offers more entries */

  float *acc;                   /* vector: gradient + residual; after a step it is the residual */
  float *sums;                  /* vector: what was offered, added up over the ranks */
  float *result;                /* vector: the average */
  struct sparse_pair *offered;  /* list: what this rank offers */
  struct sparse_pair *received; /* lists of all ranks, one after the other: nranks * capacity */
  struct sparse_pair *reduced;  /* list: the sums of this rank's region */
  struct sparse_pair *global;   /* list: the sums in the result */
  struct sparse_pair *list;     /* host: a copy of `offered` */
  void *work;                   /* of the operators */
  size_t work_bytes;
  uint64_t *numbers; /* numbers of the host on their way between ranks */

  uint64_t *boundaries; /* host: rank j owns indices boundaries[j] ... boundaries[j + 1] - 1 */
  double local_threshold, global_threshold;
  uint64_t steps; /* done so far */

  /* Of the last step, for those who verify it. */
  sparse_allreduce_statistics_t last;
  struct simple_rule rule; /* by which this rank chose what it offered */
};

/* config->algorithm is SPARSE_TOPKA or SPARSE_OKTOPK. */
struct simple *simple_create(ncclComm_t comm, size_t count,
                             const sparse_allreduce_config_t *config);
void simple_destroy(struct simple *s);

/* One step, on all ranks: s->result and s->acc are valid when the stream is done. */
void simple_topka(struct simple *s, const float *gradient, cudaStream_t stream);
void simple_oktopk(struct simple *s, const float *gradient, cudaStream_t stream);

/* all[r * count ...] becomes the `count` numbers of rank r. Waits. MPI: Allgather */
void simple_gather_numbers(struct simple *s, const uint64_t *mine, uint64_t *all, size_t count,
                           cudaStream_t stream);

/* ---- operators: simple_ops.cu, simple_ops_cpu.c ---------------------------------------------- */

/* vector[i] = gradient[i] + vector[i] */
void simple_add_vector(struct simple *s, float *vector, const float *gradient, cudaStream_t stream);

/* The rule that chooses the k largest magnitudes, lower indices first among equals. Waits. */
struct simple_rule simple_largest(struct simple *s, const float *vector, size_t k,
                                  cudaStream_t stream);

/* list = the entries first <= i < last of the vector that the rule chooses; how many. Waits. */
size_t simple_select(struct simple *s, const float *vector, size_t first, size_t last,
                     struct simple_rule rule, struct sparse_pair *list, cudaStream_t stream);

/* vector[index] += value for the entries of a list */
void simple_add_entries(float *vector, const struct sparse_pair *list, size_t count,
                        cudaStream_t stream);

/* vector[index] = 0 for the entries of a list; with `where`, only if where[index] is not 0 */
void simple_clear_entries(float *vector, const struct sparse_pair *list, size_t count,
                          const float *where, cudaStream_t stream);

/* to[i] = from[i] / divisor */
void simple_divide(struct simple *s, float *to, const float *from, int divisor,
                   cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
