/* SPDX-License-Identifier: Apache-2.0 */
/* All ten paths, to be read: read topka.c first, then oktopk.c. Thresholds, counts and regions are
 * on the host, operators do one thing each, and a rank does its own side only, as in MPI.
 *
 * The same source runs in two ways, by two tables of functions.
 *   on the GPU      operators are short kernels and CUB (ops.cu), ranks exchange by NCCL (nccl.c).
 *                   That is `--simple`.
 *   on the host     operators are plain loops (host.c), and what other ranks sent comes by the
 *                   launcher. That is the reference: after a step, all that the library or --simple
 *                   holds on the device has to equal it bit for bit.
 *
 * What it is slow at: it sorts the whole gradient to find the k largest, reads and writes whole
 * vectors many times, and the host waits several times a step for a number. Left out: 16-bit
 * gradients, graphs, checkpoints. A call that fails ends the job.
 *
 * A new path is a file with its function, a declaration below and a row of simple_paths. */
#ifndef SIMPLE_H
#define SIMPLE_H

#include <stddef.h>
#include <stdint.h>

#include "constants.h"
#include "sparse_allreduce.h" /* struct sparse_pair, the configuration, the statistics */

#ifdef __cplusplus
extern "C" {
#endif

struct simple;

/* The paths; those of the library have the places of their sparse_allreduce_algorithm_t. A path
 * that is here only comes after them: its place is its `algorithm`. */
struct simple_path {
  const char *name;
  void (*step)(struct simple *s, const float *gradient);
};
extern const struct simple_path simple_paths[];
extern const int simple_path_count;

/* Which elements of a vector are chosen: element i if the bits of its magnitude are above `above`
 * and not above `most`, or equal to `above` and i <= tie. Bits of magnitudes order as the
 * magnitudes do, infinity behind all numbers and NaN behind infinity. */
struct simple_rule {
  uint32_t above, most;
  int64_t tie;
};
#define SIMPLE_INFINITY 0x7f800000u
#define SIMPLE_NAN 0x7fffffffu
static const struct simple_rule SIMPLE_NONZERO = {0, SIMPLE_NAN, -1};

/* ---- operators: what a rank does with its own vectors and lists ------------------------------ */

/* A vector has n floats; a list has entries {index, value} with ascending indices. Both are in
 * the memory that `allocate` gives. Those that return something wait for it. */
struct simple_operators {
  void *(*allocate)(size_t bytes); /* zeroed; NULL if there is none */
  void (*release)(void *memory);
  size_t work_bytes_per_element; /* of s->work */

  /* bytes within that memory, to the host or from it; waits */
  void (*copy)(struct simple *s, void *to, const void *from, size_t bytes);

  void (*zero)(struct simple *s, float *vector);

  /* vector[i] = gradient[i] + vector[i], where gradient[i] is finite; how many are not */
  size_t (*add_gradient)(struct simple *s, float *vector, const float *gradient);

  /* the rule that chooses the k largest magnitudes, lower indices first among equals */
  struct simple_rule (*largest)(struct simple *s, const float *vector, size_t k);

  /* how many of the elements first <= i < last the rule chooses; and a list of them */
  size_t (*count)(struct simple *s, const float *vector, size_t first, size_t last,
                  struct simple_rule rule);
  size_t (*select)(struct simple *s, const float *vector, size_t first, size_t last,
                   struct simple_rule rule, struct sparse_pair *list);

  /* vector[index] += value for the entries of a list */
  void (*add_entries)(struct simple *s, float *vector, const struct sparse_pair *list,
                      size_t count);

  /* vector[index] = 0 for the entries of a list; with `where`, only if where[index] is not 0 */
  void (*clear_entries)(struct simple *s, float *vector, const struct sparse_pair *list,
                        size_t count, const float *where);

  void (*divide)(struct simple *s, float *to, const float *from, int divisor);

  /* the sum over a vector of (x - center), or of its square */
  double (*moment)(struct simple *s, const float *vector, double center, int squared);
};
extern const struct simple_operators simple_on_host, simple_on_device;

/* ---- exchanges: what ranks do together (all collective) -------------------------------------- */

struct simple_exchange {
  /* all[r * count ...] becomes the `count` numbers of rank r. MPI: Allgather */
  void (*numbers)(struct simple *s, const uint64_t *mine, uint64_t *all, size_t count);

  /* `all` becomes counts[0] elements of rank 0, then counts[1] of rank 1, ... `mine` may be at
   * its place in `all` already. MPI: Allgatherv */
  void (*gather)(struct simple *s, const void *mine, const uint64_t *counts, size_t element_bytes,
                 void *all);

  /* Entries begins[r] ... begins[r + 1] - 1 go to rank r; counts[r] entries come from rank r, to
   * received + places[r]. MPI: Alltoallv */
  void (*split)(struct simple *s, const struct sparse_pair *mine, const uint64_t *begins,
                struct sparse_pair *received, const uint64_t *places, const uint64_t *counts);

  /* MPI: Allreduce(SUM) */
  void (*sum)(struct simple *s, const float *mine, float *sums);
};
extern const struct simple_exchange simple_by_nccl, simple_by_link;

/* How simple_by_link reaches the other ranks: an allgather of host memory. `all` may be longer
 * than `mine` only. */
struct simple_link {
  void *context;
  void (*allgather)(void *context, const void *mine, void *all, size_t bytes);
};

/* ---- one rank's side ------------------------------------------------------------------------- */

struct simple {
  sparse_allreduce_config_t config;
  struct sparse_constants constants;
  const struct simple_operators *on;
  const struct simple_exchange *between;
  ncclComm_t comm;         /* of simple_by_nccl */
  struct simple_link link; /* of simple_by_link */
  cudaStream_t stream;     /* of the step, on the device */
  int rank, nranks;
  size_t n;
  size_t t;        /* floor(n * density): thresholds aim at so many entries */
  size_t k;        /* max(t, 1) */
  size_t capacity; /* a rank never offers more entries */

  float *acc;                   /* vector: gradient + residual; after a step it is the residual */
  float *sums;                  /* vector: what was offered, added up over the ranks */
  float *result;                /* vector: the average */
  struct sparse_pair *offered;  /* list of last.local entries: what this rank offers */
  struct sparse_pair *received; /* lists of all ranks, one after the other */
  struct sparse_pair *reduced;  /* list: the sums of this rank's region */
  struct sparse_pair *global;   /* list of last.global entries: the sums in the result */
  struct sparse_pair *list;     /* on the host: a copy of `offered` */
  void *work;                   /* of the operators */
  size_t work_bytes;
  uint64_t *numbers; /* numbers of the host on their way between ranks */

  uint64_t *boundaries; /* rank j owns indices boundaries[j] ... boundaries[j + 1] - 1 */
  double local_threshold, global_threshold;
  uint64_t steps;         /* done so far */
  double given_threshold; /* Gaussian paths: to be used in place of mean + z * deviation, unless
                             it is NaN. A device adds in another order than the host. */

  /* Of the last step. A threshold that the path does not have is NaN. */
  sparse_allreduce_statistics_t last;
  size_t nonfinite; /* elements of the gradient that were not */
};

/* For the ranks of `comm` on the current device; and on the host, as rank `rank` of `nranks`.
 * constants == NULL: those of config->preset. NULL if the host's memory does not suffice. */
struct simple *simple_create(ncclComm_t comm, size_t count, const sparse_allreduce_config_t *config,
                             const struct sparse_constants *constants);
struct simple *simple_create_on_host(struct simple_link link, int rank, int nranks, size_t count,
                                     const sparse_allreduce_config_t *config,
                                     const struct sparse_constants *constants);
void simple_destroy(struct simple *s); /* NULL is fine */
size_t simple_device_bytes(size_t count, double density, int nranks);

/* As when it was made. */
void simple_reset(struct simple *s);

/* One step, on all ranks. s->result and s->acc are valid when the stream is done. */
void simple_step(struct simple *s, const float *gradient, cudaStream_t stream);

/* ---- what paths share: simple.c -------------------------------------------------------------- */

/* Whether what is done every so many steps is due: always in the first sparse step. */
int simple_is_due(const struct simple *s, int interval);

/* acc = gradient + residual */
void simple_accumulate(struct simple *s, const float *gradient);

/* |x| > (float)threshold, never NaN. A negative one chooses all numbers, a NaN nothing. */
struct simple_rule simple_above(const struct simple *s, double threshold);
double simple_magnitude(uint32_t bits);
size_t simple_count_above(struct simple *s, double threshold); /* in acc */

/* What this rank offers of acc: the k largest; what is above *threshold, or, if that is more than
 * `capacity`, the k largest, and *threshold becomes the k-th magnitude. */
void simple_offer_largest(struct simple *s);
void simple_offer_above(struct simple *s, double *threshold);

/* Everybody gets all that is offered and adds it up in the order of ranks. */
void simple_sum_at_all(struct simple *s);

/* The offered entries go to the owners of their regions, who add them up: s->sums has the sums of
 * this rank's region. */
void simple_sum_at_owners(struct simple *s);

/* s->global becomes the lists s->reduced of all ranks, `mine` entries of this one; returns how
 * many they are. Regions are in rank order, so indices ascend. */
uint64_t simple_gather_sums(struct simple *s, uint64_t mine);

/* s->sums becomes s->global as a vector; s->result its average. */
void simple_scatter_global(struct simple *s);
void simple_average(struct simple *s);

/* What leaves the residual: what was offered; only what was offered and is in the result too. */
void simple_clear_offered(struct simple *s);
void simple_clear_offered_in_result(struct simple *s);

/* mean + z * deviation of acc (gaussiank.c). */
double simple_gaussian_threshold(struct simple *s);

/* On the host (host.c): the k largest of n values, and an addition with the GPU's NaN. */
struct simple_rule simple_host_largest(const float *values, size_t n, size_t k);
int simple_chosen(struct simple_rule rule, size_t i, float value);
float simple_add(float a, float b);

/* ---- the paths ------------------------------------------------------------------------------- */

void simple_dense(struct simple *s, const float *gradient);
void simple_topka(struct simple *s, const float *gradient);
void simple_topka2(struct simple *s, const float *gradient);
void simple_topkaopt(struct simple *s, const float *gradient);
void simple_gtopk(struct simple *s, const float *gradient);
void simple_oktopk(struct simple *s, const float *gradient);
void simple_topksa(struct simple *s, const float *gradient);
void simple_gaussiank(struct simple *s, const float *gradient);
void simple_gaussianksa(struct simple *s, const float *gradient);

#ifdef __cplusplus
}
#endif
#endif
