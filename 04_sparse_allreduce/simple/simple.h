/* SPDX-License-Identifier: Apache-2.0 */
/* All ten paths in a form for reading, topka.c first, then oktopk.c. Thresholds, counts and regions
 * are on the host, each operator does one thing, each rank only its own part, as in MPI. It runs
 *
 *   on the GPU   by short kernels and CUB (ops.cu), and NCCL (exchange.c): --simple
 *   on the host  by plain loops (host.c); the launcher brings what other ranks send: the reference
 *
 * README.md says how to add a path. A call that fails ends the job. */
#ifndef SIMPLE_H
#define SIMPLE_H

#include <stddef.h>
#include <stdint.h>

#include "constants.h"
#include "launcher.h"
#include "sparse_allreduce.h" /* struct sparse_pair, the configuration, the statistics */

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the paths ------------------------------------------------------------------------------- */

/* Makes one step of this rank: s->sums becomes the sums of the result, s->global the same as a
 * list, and s->acc the residual. */
struct simple;
typedef void simple_path_t(struct simple *s, const float *gradient);
simple_path_t simple_dense, simple_topka, simple_topka2, simple_topkaopt, simple_gtopk,
    simple_oktopk, simple_topksa, simple_gaussiank, simple_gaussianksa;

/* Those of the library are at the index of their sparse_allreduce_algorithm_t. A path that is only
 * here comes after them; its index is its `algorithm`. */
struct simple_path {
  const char *name;
  simple_path_t *step;
};
extern const struct simple_path simple_paths[];
extern const int simple_path_count;

/* The words that a rank sends according to the paper's Table 1, at best and at worst, for k chosen
 * entries of n on P ranks. The paper counts elements, which are words. */
void simple_paper_words(int path, double n, double k, double ranks, double *low, double *high);

/* ---- operators: what a rank does with its own vectors and lists ------------------------------ */

/* A vector has n floats; a list has entries {index, value} with ascending indices.
 *
 * Which elements of a vector are chosen: element i if the bits of its magnitude are above `above`
 * and not above `most`, or equal to `above` and i <= tie. Bits are ordered like magnitudes, with
 * infinity after all numbers and NaN after infinity. */
struct simple_rule {
  uint32_t above, most;
  int64_t tie;
};
#define SIMPLE_INFINITY 0x7f800000u
#define SIMPLE_NAN 0x7fffffffu
static const struct simple_rule SIMPLE_NONZERO = {0, SIMPLE_NAN, -1};

enum simple_change { SIMPLE_SET_0, SIMPLE_SET_1, SIMPLE_ADD };

struct simple_operators {
  /* vector[i] = gradient[i] + vector[i], where gradient[i] is finite */
  void (*add_gradient)(struct simple *s, float *vector, const float *gradient);

  /* the rule that chooses the k largest, lower indices first among equals */
  struct simple_rule (*largest)(struct simple *s, const float *vector, size_t k);

  /* how many elements the rule chooses; `list` becomes a list of them, unless it is NULL */
  size_t (*select)(struct simple *s, const float *vector, struct simple_rule rule,
                   struct sparse_pair *list);

  /* vector[index] becomes 0, or 1, or has the value added, for the entries of a list; with `where`
   * only if where[index] is not 0 */
  void (*entries)(struct simple *s, enum simple_change change, float *vector,
                  const struct sparse_pair *list, size_t count, const float *where);

  void (*divide)(struct simple *s, float *to, const float *from, int divisor);
};
extern const struct simple_operators simple_on_host, simple_on_device;

/* ---- one rank's side ------------------------------------------------------------------------- */

struct simple {
  sparse_allreduce_config_t config;
  struct sparse_constants constants; /* those of the preset */
  const struct simple_operators *on;
  ncclComm_t comm;       /* NULL on the host */
  const struct rank *me; /* for the launcher */
  /* launcher_allgather: how the reference reaches other ranks, unless a test has another way */
  void (*allgather)(const struct rank *me, const void *mine, void *all, size_t bytes);
  cudaStream_t stream; /* of the step, on the device */
  int rank, nranks;
  size_t n;
  size_t t;        /* floor(n * density): the number of entries that thresholds aim at */
  size_t k;        /* max(t, 1) */
  size_t capacity; /* a rank never offers more entries */

  float *acc;                   /* vector: gradient + residual; after a step it is the residual */
  float *sums;                  /* vector: what was offered, added up over the ranks */
  float *result;                /* vector: the average */
  struct sparse_pair *offered;  /* list of last.local entries: what this rank offers */
  struct sparse_pair *received; /* lists of all ranks, one after the other */
  struct sparse_pair *global;   /* list of last.global entries: the sums in the result */
  char *work;                   /* for operators, and for numbers that ranks exchange */
  size_t work_bytes;

  uint64_t boundaries[257]; /* rank j owns indices boundaries[j] ... boundaries[j + 1] - 1 */
  double local_threshold, global_threshold; /* NaN: the path has none */
  double given_threshold; /* Gaussian paths: to be used instead of mean + z * deviation, unless
                             it is NaN. A device adds in another order than the host. */
  uint64_t steps;         /* done so far */
  uint64_t exact_step;    /* in which everything is due */
  sparse_allreduce_statistics_t last; /* statistics of the last step */
  size_t nonfinite;                   /* elements of its gradient that were not finite */
};

/* It runs on the current device by `comm` or, if that is NULL, on the host by the launcher. */
struct simple *simple_create(ncclComm_t comm, const struct rank *me, size_t count,
                             const sparse_allreduce_config_t *config);
void simple_destroy(struct simple *s);                     /* NULL is fine */
void simple_reset(struct simple *s);                       /* begins again with the first step */
void simple_set_density(struct simple *s, double density); /* from the next step on */

/* Makes one step of the path on all ranks; s->result becomes the average. It and s->acc are valid
 * when the stream is done. */
void simple_step(struct simple *s, const float *gradient, cudaStream_t stream);

/* ---- exchanges: what ranks do together, all collective (exchange.c) -------------------------- */

/* They count the words of 32 bits that this rank sends to others. Host integers (simple_numbers)
 * are not counted.
 *
 * all[r * count ...] becomes the `count` numbers of rank r. MPI: Allgather */
void simple_numbers(struct simple *s, const uint64_t *mine, uint64_t *all, size_t count);

/* `all` becomes counts[0] elements of rank 0, then counts[1] of rank 1, ... `mine` may be at its
 * place there already. An element has `words` words, an entry 2. MPI: Allgatherv */
void simple_gather(struct simple *s, const void *mine, const uint64_t *counts, size_t words,
                   void *all);

/* The first sends[0] entries of `mine` go to rank 0, the next sends[1] to rank 1, ...; `received`
 * becomes receives[0] entries from rank 0, then receives[1] from rank 1, ...
 * MPI: Alltoall(counts), Alltoallv(entries) */
void simple_split(struct simple *s, const struct sparse_pair *mine, const uint64_t *sends,
                  struct sparse_pair *received, uint64_t *receives);

/* MPI: Allreduce(SUM) */
void simple_sum(struct simple *s, const float *mine, float *sums);

/* ---- what paths share (simple.c) ------------------------------------------------------------- */

/* Is something due that is done every `interval` steps? In the first sparse step it always is, and
 * in the first one with another density. */
int simple_is_due(const struct simple *s, int interval);

/* acc = gradient + residual */
void simple_accumulate(struct simple *s, const float *gradient);

/* |x| > (float)threshold, never NaN. A negative one chooses all numbers, a NaN nothing. */
struct simple_rule simple_above(const struct simple *s, double threshold);
size_t simple_count_above(struct simple *s, double threshold); /* of acc */
double simple_kth_magnitude(struct simple *s);                 /* likewise */

/* This rank offers the k largest of acc, and gets the k-th magnitude; or what is above *threshold.
 * If that is more than `capacity`, it offers the k largest, and *threshold becomes the k-th
 * magnitude. A threshold of 0, which a step without any gradient leaves, may select no more than k.
 */
double simple_offer_largest(struct simple *s);
void simple_offer_above(struct simple *s, double *threshold);
uint64_t simple_offered_index(struct simple *s, uint64_t e); /* of an offered entry */

/* Every rank gets all that is offered and adds it in the order of ranks, to s->sums, and to
 * s->global without sums of 0. */
void simple_sum_at_all(struct simple *s);

/* The offered entries go to the owners of their regions, who add them up: s->sums has the sums of
 * this rank's region, and 0 elsewhere. */
void simple_sum_at_owners(struct simple *s);

/* The owners' sums that the rule chooses go to every rank, as s->global and as s->sums. `balance`
 * says whether owners first even out what each has to send. */
void simple_gather_sums(struct simple *s, struct simple_rule rule, int balance);

/* s->global becomes a list of the sums that the rule chooses; s->sums those of s->global, or 0. */
void simple_list_sums(struct simple *s, struct simple_rule rule);
void simple_sums_of_list(struct simple *s);

/* What leaves the residual: what was offered; only what was offered and is in the result too. */
void simple_clear_offered(struct simple *s);
void simple_clear_offered_in_result(struct simple *s);

/* In the memory of s: sets a vector to 0; copies to or from the host. */
void simple_zero(struct simple *s, float *vector);
void simple_copy(struct simple *s, void *to, const void *from, size_t bytes);

/* ---- on the host (host.c) -------------------------------------------------------------------- */

uint32_t simple_bits(float x);      /* of the magnitude */
float simple_add(float a, float b); /* with the GPU's NaN */
int simple_chosen(struct simple_rule rule, size_t i, float value);
struct simple_rule simple_host_largest(const float *values, size_t n, size_t k);

#ifdef __cplusplus
}
#endif
#endif
