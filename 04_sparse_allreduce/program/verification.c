/* SPDX-License-Identifier: Apache-2.0 */
#include "verification.h"

#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "gradient.h"
#include "reference/parallel.h"
#include "program.h"
#include "update.h"

enum {
  SAMPLE = 8,
  CHUNK = 64 << 20,  /* elements that travel between the hosts at a time */
  MOST_THREADS = 16, /* of a rank */
};

/* ---- the host: its memory and its cores ------------------------------------------------------ */

/* Bytes that this host still has, as Linux estimates it; a lot where it does not tell. */
static double available_bytes(void)
{
  double kilobytes = 1e15;
  char line[128];
  FILE *file = fopen("/proc/meminfo", "r");
  while (file && fgets(line, sizeof line, file))
    if (sscanf(line, "MemAvailable: %lf kB", &kilobytes) == 1) break;
  if (file) fclose(file);
  return kilobytes * 1024;
}

/* Who is on this rank's host. */
struct crowd {
  int ranks, processes, ranks_of_process;
};

static struct crowd crowd_here(const struct rank *me)
{
  struct {
    char host[64];
    int first; /* rank of its process */
  } mine = {"", launcher_first_here(me)}, all[me->nranks];
  struct crowd here = {0};
  gethostname(mine.host, sizeof mine.host - 1);
  launcher_allgather(me, &mine, all, sizeof mine);
  for (int r = 0; r < me->nranks; r++) {
    const bool same_host = strcmp(all[r].host, mine.host) == 0;
    here.ranks += same_host;
    here.processes += same_host && all[r].first == r;
    here.ranks_of_process += all[r].first == mine.first;
  }
  return here;
}

/* Whether the references of all processes fit: of every emulated rank the gradient, acc and
 * residual, and a few vectors. Asked first, because Linux promises memory that it does not have. */
static bool host_memory_suffices(const struct rank *me, const struct crowd *here,
                                 const sparse_allreduce_config_t *config, size_t count)
{
  const double own = config->result == SPARSE_RESULT_ENTRIES ? 4 : 3;
  const double vectors = here->processes * (3.0 * me->nranks + 4) + here->ranks * own;
  return vectors * sizeof(float) * (double)count < available_bytes();
}

/* The threads that this process may have: as many cores as it would get if all here took the same,
 * up to so many that more of them would get in each other's way. Where mpirun binds a process to
 * one core, that is all it has. Vectors that are short are done before others have woken up. */
static int team_size(const struct crowd *here, size_t count)
{
  const long most = (long)MOST_THREADS * here->ranks_of_process;
  cpu_set_t allowed;
  long cores = sysconf(_SC_NPROCESSORS_ONLN);
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) cores = CPU_COUNT(&allowed);
  cores /= here->processes;
  return range_count(count) == 1 ? 1 : cores < most ? (int)cores : (int)most;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Pinned memory, from which and to which copies are fast. NULL if there is none. */
static void *pinned(size_t bytes)
{
  void *memory = NULL;
  if (cudaMallocHost(&memory, bytes) == cudaSuccess) return memory;
  cudaGetLastError(); /* it has been dealt with */
  return NULL;
}

/* What the ranks of a process have together. */
static void init_shared(struct verification *v, const sparse_allreduce_config_t *config,
                        size_t count, const struct crowd *here)
{
  const int ranks = v->me->nranks;
  if (!host_memory_suffices(v->me, here, config, count)) return;
  v->ref = reference_create(config, count, ranks);
  if (!v->ref) return;
  v->invariants = invariants_create(v->ref);
  v->gradients = pinned((size_t)ranks * count * sizeof *v->gradients);
  v->team = v->ref->team = team_create(team_size(here, count));
}

int verification_init(struct verification *v, const struct rank *me,
                      const sparse_allreduce_config_t *config, size_t count, int level)
{
  char error[160] = "";
  struct verification all[me->nranks];
  *v = (struct verification){.me = me, .level = level};
  if (level == VERIFY_OFF) return EXIT_VERIFIED;
  const struct crowd here = crowd_here(me);
  const int first = launcher_first_here(me);
  v->is_first = me->rank == first;
  v->one_process = here.ranks_of_process == me->nranks;
  if (v->is_first) init_shared(v, config, count, &here);
  launcher_allgather(me, v, all, sizeof *v);
  v->team = all[first].team;
  v->ref = all[first].ref;
  v->invariants = all[first].invariants;
  v->gradients = all[first].gradients;
  if (v->ref) {
    v->host = pinned(count * sizeof *v->host);
    v->residual = malloc(count * sizeof *v->residual);
    v->pairs = malloc((size_t)me->nranks * (v->ref->capacity + 1) * sizeof *v->pairs);
  }
  const bool updates = config->result == SPARSE_RESULT_ENTRIES;
  if (v->ref && updates) v->weights = calloc(count, sizeof *v->weights);
  if (!v->invariants || !v->gradients || !v->host || !v->residual || !v->pairs ||
      (updates && !v->weights))
    snprintf(error, sizeof error,
             "no memory on the host for a reference of %zu elements and %d ranks; allowed: fewer, "
             "or --verify off",
             count, me->nranks);
  return launcher_refuse(me, error);
}

void verification_free(struct verification *v)
{
  if (v->level == VERIFY_OFF) return;
  cudaFreeHost(v->host);
  free(v->weights);
  free(v->residual);
  free(v->pairs);
  launcher_barrier(v->me); /* nobody looks at the reference any more */
  if (!v->is_first) return;
  team_destroy(v->team);
  invariants_destroy(v->invariants);
  reference_destroy(v->ref);
  cudaFreeHost(v->gradients);
}

/* ---- messages -------------------------------------------------------------------------------- */

/* A step that is being compared. */
struct comparison {
  const struct verification *v;
  const struct reference_rank *mine; /* of the reference */
  const char *path;
  unsigned long long step;
};

/* All return whether the values are the same, and say so if not. */

static bool same_integer(const struct comparison *c, const char *what, int64_t got,
                         int64_t expected)
{
  if (got == expected) return true;
  launcher_error("%s, step %llu: %s is %lld, expected %lld", c->path, c->step, what, (long long)got,
                 (long long)expected);
  return false;
}

static bool same_double(const struct comparison *c, const char *what, double got, double expected)
{
  if (memcmp(&got, &expected, sizeof got) == 0) return true;
  launcher_error("%s, step %llu: %s is %.17g, expected %.17g", c->path, c->step, what, got,
                 expected);
  return false;
}

static bool wrong_element(const struct comparison *c, const char *what, size_t i, float got,
                          float expected)
{
  uint32_t bits[2];
  memcpy(&bits[0], &got, sizeof got);
  memcpy(&bits[1], &expected, sizeof expected);
  launcher_error("%s, step %llu: %s: element %zu is %.9g (0x%08x), expected %.9g (0x%08x)", c->path,
                 c->step, what, i, (double)got, bits[0], (double)expected, bits[1]);
  return false;
}

/* ---- comparisons ----------------------------------------------------------------------------- */

static void to_host(void *host, const void *device, size_t bytes, cudaStream_t stream)
{
  CUDACHECK(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream));
  CUDACHECK(cudaStreamSynchronize(stream));
}

/* A comparison of vectors, which several cores share. */
struct vectors {
  const struct comparison *c;
  const float *got, *expected;
  bool (*differ)(const struct vectors *vectors, size_t i); /* asked where their bits do */
  atomic_size_t first;                                     /* that differs, or n */
};

static void compare_range(void *context, size_t range)
{
  struct vectors *vectors = context;
  const struct range elements = range_of(vectors->c->v->ref->n, range);
  const size_t bytes = (elements.end - elements.first) * sizeof(float);
  size_t i = elements.first, first = vectors->first;
  if (memcmp(vectors->got + i, vectors->expected + i, bytes) == 0) return; /* nearly always */
  while (i < elements.end && !vectors->differ(vectors, i)) i++;
  if (i == elements.end) return;
  while (i < first && !atomic_compare_exchange_weak(&vectors->first, &first, i)) continue;
}

/* The first element that differs, or n. */
static size_t first_difference(struct vectors *vectors)
{
  const struct reference *ref = vectors->c->v->ref;
  vectors->first = ref->n;
  parallel_for(ref->team, range_count(ref->n), compare_range, vectors);
  return vectors->first;
}

/* A dense result that was made of entries has 0 where the average is -0: it began as zeros. */
static bool bits_differ(const struct vectors *vectors, size_t i)
{
  const float got = vectors->got[i], expected = vectors->expected[i];
  if (vectors->c->v->weights && got == 0 && expected == 0) return false;
  return memcmp(&got, &expected, sizeof got) != 0;
}

static bool same_floats(const struct comparison *c, const char *what, const float *got,
                        const float *expected)
{
  struct vectors vectors = {c, got, expected, bits_differ, 0};
  const size_t i = first_difference(&vectors);
  return i == c->v->ref->n || wrong_element(c, what, i, got[i], expected[i]);
}

/* The sum over ranks of a gradient's element, and of its size. */
struct dense_sum {
  double sum, size;
};

static struct dense_sum dense_sum(const struct verification *v, size_t i)
{
  struct dense_sum s = {0, 0};
  for (int r = 0; r < v->me->nranks; r++) {
    const double element = (double)v->gradients[(size_t)r * v->ref->n + i];
    s.sum += element;
    s.size += fabs(element);
  }
  return s;
}

/* A sum of P floats in any order is off by (P - 1) * 2^-23 * sum of sizes at most, and its average
 * by one more rounding. What overflows, and NaN and infinity, are NCCL's to add. */
static bool far_from_dense(const struct vectors *vectors, size_t i)
{
  const struct verification *v = vectors->c->v;
  const int ranks = v->me->nranks;
  const struct dense_sum s = dense_sum(v, i);
  const double got = (double)vectors->got[i], expected = s.sum / ranks;
  const double bound = (ranks - 1) * 0x1p-23 * s.size / ranks + 0x1p-23 * fabs(expected) + 0x1p-149;
  const bool overflows = !isfinite((float)(s.size * (1 + 0x1p-20))); /* somewhere on the way */
  const bool right = fabs(got - expected) <= bound || (overflows && !isfinite(got));
  return !right;
}

static bool near_dense(const struct comparison *c, const float *result)
{
  const struct verification *v = c->v;
  struct vectors vectors = {c, result, v->ref->result, far_from_dense, 0};
  const size_t i = first_difference(&vectors);
  return i == v->ref->n ||
         wrong_element(c, "result", i, result[i], (float)(dense_sum(v, i).sum / v->me->nranks));
}

static bool same_result(const struct comparison *c, const float *result)
{
  const struct reference *ref = c->v->ref;
  if (ref->dense) return near_dense(c, result);
  return same_floats(c, "result", result, ref->result);
}

/* What --result entries has updated. `result`: on the host. */
static bool same_weights(const struct comparison *c, const struct step_left *left,
                         const float *result, cudaStream_t stream)
{
  const struct verification *v = c->v;
  if (!left->weights) return true;
  update_expect(v->weights, v->ref, result);
  to_host(v->host, left->weights, v->ref->n * sizeof *v->host, stream);
  return same_floats(c, "weights", v->host, v->weights);
}

/* The entries of the result before the division, without the places that hold none. */
static bool same_entries(const struct comparison *c, const struct step_left *left,
                         cudaStream_t stream)
{
  const struct reference *ref = c->v->ref;
  const struct sparse_pair *expected = ref->global;
  struct sparse_pair *got = c->v->pairs;
  uint64_t entries = 0;
  const bool none = ref->dense || ref->fell_back;
  if (none || !left->entries)
    return same_integer(c, "number of sparse results", left->entries != NULL, !none);
  if (left->count > (ref->capacity + 1) * (uint64_t)ref->nranks)
    return same_integer(c, "number of entries", (int64_t)left->count, (int64_t)ref->nglobal);
  to_host(got, left->entries, left->count * sizeof *got, stream);
  for (uint64_t e = 0; e < left->count; e++)
    if (got[e].index != SPARSE_NO_INDEX) got[entries++] = got[e];
  for (uint64_t e = 0; e < entries && e < ref->nglobal; e++) {
    if (got[e].index != expected[e].index)
      return same_integer(c, "index of an entry", got[e].index, expected[e].index);
    if (memcmp(&got[e].value, &expected[e].value, sizeof got[e].value) != 0)
      return wrong_element(c, "sum", got[e].index, got[e].value, expected[e].value);
  }
  return same_integer(c, "number of entries", (int64_t)entries, (int64_t)ref->nglobal);
}

static bool same_regions(const struct comparison *c, const uint64_t *boundaries)
{
  const struct reference *ref = c->v->ref;
  for (int j = 0; j <= ref->nranks; j++)
    if (!same_integer(c, "boundary of a region", (int64_t)boundaries[j],
                      (int64_t)ref->boundaries[j]))
      return false;
  return true;
}

/* mean + z * deviation in two orders of additions: NaN equals NaN here. */
static bool near_threshold(const struct comparison *c, double got, double expected)
{
  if (isnan(expected) ? isnan(got) : fabs(got - expected) <= 1e-6 * fabs(expected)) return true;
  return same_double(c, "Gaussian threshold", got, expected);
}

static bool same_statistics(const struct comparison *c, const sparse_allreduce_statistics_t *s)
{
  const struct reference *ref = c->v->ref;
  const struct reference_rank *mine = c->mine;
  const sparse_allreduce_algorithm_t a = ref->config.algorithm;
  const bool follows = a == SPARSE_OKTOPK || a == SPARSE_TOPKAOPT;
  const bool gaussian = a == SPARSE_GAUSSIANK || a == SPARSE_GAUSSIANKCONCAT ||
                        (a == SPARSE_GAUSSIANKSA && ref->config.gaussian_sa_threshold);
  bool same =
      same_integer(c, "number of the step", (int64_t)s->step, (int64_t)c->step) &&
      same_integer(c, "k", (int64_t)s->k, (int64_t)ref->k) &&
      same_integer(c, "capacity", (int64_t)s->capacity, (int64_t)ref->capacity) &&
      same_integer(c, "'dense'", s->dense, ref->dense) &&
      same_integer(c, "'exact global'", s->exact_global, ref->exact_global) &&
      same_integer(c, "'repartitioned'", s->repartitioned, ref->repartitioned) &&
      same_integer(c, "words sent", (int64_t)s->words_sent, (int64_t)mine->words_sent) &&
      same_integer(c, "words received", (int64_t)s->words_received, (int64_t)mine->words_received);
  if (!same || ref->dense) return same;
  same = same_integer(c, "number of offered entries", (int64_t)s->local, (int64_t)mine->noffered) &&
         same_integer(c, "'overflowed'", s->overflowed, mine->overflowed) &&
         same_integer(c, "'fell back'", s->fell_back, ref->fell_back) &&
         same_integer(c, "magnitude of selection", s->selected_above, mine->selected_above) &&
         same_integer(c, "tie of selection", s->selected_tie, mine->selected_tie);
  if (same && !ref->fell_back)
    same = same_integer(c, "entries of the result", (int64_t)s->global, (int64_t)ref->nglobal);
  if (same && follows) same = same_integer(c, "'exact local'", s->exact_local, ref->exact_local);
  if (same && (follows || gaussian))
    same = same_double(c, "local threshold", s->local_threshold, mine->local_threshold);
  if (same && a == SPARSE_OKTOPK)
    same = same_double(c, "global threshold", s->global_threshold, ref->global_threshold);
  if (same && gaussian) same = near_threshold(c, s->gaussian_threshold, mine->gaussian_threshold);
  return same;
}

static bool same_step(const struct comparison *c, const struct step_left *left, cudaStream_t stream)
{
  const struct reference *ref = c->v->ref;
  const bool has_residual = ref->config.algorithm != SPARSE_DENSE;
  launcher_step("STEP 6: comparing with the reference");
  if (!same_statistics(c, &left->statistics) || !same_entries(c, left, stream)) return false;
  if (has_residual && !same_regions(c, left->boundaries)) return false;
  to_host(c->v->host, left->result, ref->n * sizeof *c->v->host, stream);
  if (!same_result(c, c->v->host) || !same_weights(c, left, c->v->host, stream)) return false;
  return !has_residual || same_floats(c, "residual", left->residual, c->mine->residual);
}

/* ---- the reference's step -------------------------------------------------------------------- */

/* This rank's gradient from the device, the others' from their processes; as float. */
static void gather_gradients(struct verification *v, const void *gradient, cudaStream_t stream)
{
  const size_t n = v->ref->n;
  const ncclDataType_t type = v->ref->config.gradient_type;
  float *mine = v->gradients + (size_t)v->me->rank * n;
  if (type == ncclFloat) {
    to_host(mine, gradient, n * sizeof *mine, stream);
  } else {
    to_host(v->host, gradient, n * 2, stream);
    gradient_widen(mine, v->host, n, type);
  }
  if (v->one_process) return;
  for (int root = 0; root < v->me->nranks; root++)
    for (size_t at = 0; at < n; at += CHUNK) {
      const size_t count = n - at < CHUNK ? n - at : CHUNK;
      launcher_broadcast(v->me, v->gradients + (size_t)root * n + at, count * sizeof *mine, root);
    }
}

static bool obeys_invariants(const struct comparison *c)
{
  char text[LAUNCHER_TEXT] = "";
  if (!invariants_after(c->v->invariants, c->v->ref, text, sizeof text)) return true;
  text[strcspn(text, "\n")] = '\0'; /* the first is enough */
  launcher_error("%s: invariant violated in %s", c->path, text);
  return false;
}

static void add_xi(struct verification *v)
{
  struct reference *ref = v->ref;
  const bool oktopk = ref->config.algorithm == SPARSE_OKTOPK;
  if (ref->dense ||
      (oktopk && (ref->exact_global || 4 * ref->nglobal <= ref->t || ref->nglobal >= 3 * ref->t)))
    return;
  v->xi += reference_xi(ref);
  v->xi_steps++;
}

/* Whether the next step is compared, and not only done by the reference as well. */
static bool compares_next(const struct verification *v)
{
  return v->level == VERIFY_FULL || (v->level == VERIFY_SAMPLE && v->ref->step % SAMPLE == 0);
}

float *verification_residual(const struct verification *v)
{
  if (!compares_next(v) || v->ref->config.algorithm == SPARSE_DENSE) return NULL;
  return v->residual;
}

int verification_step(struct verification *v, const struct step_left *left, const void *gradient,
                      cudaStream_t stream)
{
  if (v->level == VERIFY_OFF) return EXIT_VERIFIED;
  const int ranks = v->me->nranks;
  const uint64_t step = v->ref->step;
  const bool compare = compares_next(v);
  /* all references are the same, so one rank can look at what all of them did, another one at xi */
  const bool my_turn = (int)(step % (uint64_t)ranks) == v->me->rank;
  const bool xi_turn = (int)((step + 1) % (uint64_t)ranks) == v->me->rank;
  const struct comparison c = {v, &v->ref->ranks[v->me->rank],
                               sparse_allreduce_name(v->ref->config.algorithm), step};
  const float *gradients[ranks];
  double thresholds[ranks];

  launcher_step("STEP 6: the reference's step");
  gather_gradients(v, gradient, stream);
  launcher_allgather(v->me, &left->statistics.gaussian_threshold, thresholds, sizeof *thresholds);
  for (int r = 0; r < ranks; r++) gradients[r] = v->gradients + (size_t)r * v->ref->n;
  if (v->is_first) {
    invariants_before(v->invariants, v->ref);
    reference_step(v->ref, gradients, thresholds);
  }
  launcher_barrier(v->me);

  int code = EXIT_VERIFIED;
  if (compare && !same_step(&c, left, stream)) code = EXIT_WRONG_DATA;
  if (code == EXIT_VERIFIED && compare && my_turn && !obeys_invariants(&c)) code = EXIT_WRONG_DATA;
  if (!compare && left->weights)
    to_host(v->weights, left->weights, v->ref->n * sizeof *v->weights, stream);
  if (xi_turn) add_xi(v);
  v->compared += compare;
  return code;
}

/* ---- what goes to files ---------------------------------------------------------------------- */

/* Of the step that was the last one. */
static struct comparison last_step(const struct verification *v)
{
  return (struct comparison){v, &v->ref->ranks[v->me->rank],
                             sparse_allreduce_name(v->ref->config.algorithm), v->ref->step - 1};
}

int verification_of_result(const struct verification *v, const float *copy)
{
  if (v->level == VERIFY_OFF) return EXIT_VERIFIED;
  const struct comparison c = last_step(v);
  return same_result(&c, copy) ? EXIT_VERIFIED : EXIT_WRONG_DATA;
}

int verification_of_residual(const struct verification *v, const float *copy)
{
  if (v->level == VERIFY_OFF || v->ref->config.algorithm == SPARSE_DENSE) return EXIT_VERIFIED;
  const struct comparison c = last_step(v);
  return same_floats(&c, "residual", copy, c.mine->residual) ? EXIT_VERIFIED : EXIT_WRONG_DATA;
}
