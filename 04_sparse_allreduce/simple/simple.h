/* SPDX-License-Identifier: Apache-2.0 */
/* topkA and oktopk as short as they can be: NCCL's host calls, thresholds, counts and regions on
 * the host, operators that do one thing each. Read topka.c first, then oktopk.c; the operators are
 * in simple_ops.cu, and as plain loops in simple_ops_cpu.c.
 *
 * It computes the same bits as the library in ../lib, and the program verifies both in the same way
 * (--simple). What it is slow at: it sorts the whole gradient to find the k largest, and the host
 * waits for the device several times a step to learn how many entries there are.
 *
 * Left out: 16-bit gradients, NaN and infinity (the library can drop or report them), evening out
 * the sums before they are gathered (balance), graphs, checkpoints. A failed call ends the job. */
#ifndef SIMPLE_H
#define SIMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sparse_allreduce.h" /* struct sparse_pair, the configuration, the statistics */

#ifdef __cplusplus
extern "C" {
#endif

/* One rank's side. Vectors have n floats, lists have entries {index, value} with ascending indices;
 * both are in device memory. */
struct simple {
  sparse_allreduce_config_t config;
  ncclComm_t comm;
  int rank, nranks;
  size_t n;
  size_t t;        /* floor(n * density), which thresholds aim at */
  size_t k;        /* max(t, 1), how many entries a rank offers */
  size_t capacity; /* the most that a rank may offer */

  float *acc;                   /* gradient + residual; after a step it is the residual */
  float *sums;                  /* over the ranks, of what was offered */
  float *result;                /* their average */
  struct sparse_pair *offered;  /* list of what this rank offers, up to capacity */
  struct sparse_pair *received; /* lists of all ranks, one after the other: nranks * capacity */
  struct sparse_pair *reduced;  /* list of the sums that this rank found, as many */
  struct sparse_pair *global;   /* list of the sums in the result, as many */
  uint64_t *numbers;            /* for numbers of the host on their way between ranks */
  struct simple_ops *ops;       /* what the operators need */

  struct sparse_pair *list; /* host: a copy of `offered`, up to capacity */
  uint64_t *boundaries;     /* host: rank j owns indices boundaries[j] ... boundaries[j + 1] - 1 */
  double local_threshold, global_threshold;
  sparse_allreduce_statistics_t last; /* of the last step; last.step counts from 0 */
  uint64_t steps;                     /* done so far */
};

/* Collective. config->algorithm is SPARSE_TOPKA or SPARSE_OKTOPK; count as in sparse_allreduce.h.
 */
struct simple *simple_create(ncclComm_t comm, size_t count,
                             const sparse_allreduce_config_t *config);
void simple_destroy(struct simple *s);

/* Collective. One step: s->result and s->acc (the residual) are valid when this returns. */
void simple_run(struct simple *s, const float *gradient, cudaStream_t stream);

/* The two algorithms; simple_run calls the configured one. */
void simple_topka(struct simple *s, const float *gradient, cudaStream_t stream);
void simple_oktopk(struct simple *s, const float *gradient, cudaStream_t stream);

/* all[r * count ...] becomes the `count` numbers of rank r: MPI_Allgather of host memory. Waits. */
void simple_gather_numbers(struct simple *s, const uint64_t *mine, uint64_t *all, size_t count,
                           cudaStream_t stream);

/* ---- operators: simple_ops.cu, simple_ops_cpu.c ---------------------------------------------- */

/* The smallest of the k largest entries, and with it the k-th magnitude. */
struct simple_kth {
  float magnitude;
  uint32_t index; /* the last index that was taken with just that magnitude */
};

struct simple_ops *simple_ops_create(const struct simple *s);
void simple_ops_destroy(struct simple_ops *ops);

/* vector[i] += gradient[i] */
void simple_add_vector(struct simple *s, float *vector, const float *gradient, cudaStream_t stream);

/* list = the k entries of the vector with the largest magnitudes, the lower index first among
 * equals. Waits. */
struct simple_kth simple_largest(struct simple *s, const float *vector, size_t k,
                                 struct sparse_pair *list, cudaStream_t stream);

/* How many entries i of the vector, first <= i < last, have |x| > threshold; list becomes those,
 * unless they are more than `room`. Waits. */
size_t simple_above(struct simple *s, const float *vector, size_t first, size_t last,
                    double threshold, struct sparse_pair *list, size_t room, cudaStream_t stream);

/* vector[index] += value for the entries of a list. */
void simple_add_entries(struct simple *s, float *vector, const struct sparse_pair *list,
                        size_t count, cudaStream_t stream);

/* vector[index] = 0 for the entries of a list; with `where`, only if where[index] is not 0. */
void simple_clear_entries(struct simple *s, float *vector, const struct sparse_pair *list,
                          size_t count, const float *where, cudaStream_t stream);

/* to[i] = from[i] / divisor */
void simple_divide(struct simple *s, float *to, const float *from, int divisor,
                   cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
