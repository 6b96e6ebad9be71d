/* SPDX-License-Identifier: Apache-2.0 */
/* The largest sums of all ranks. And steps of Ok-Topk without messages, of several ranks on one
 * GPU: each has memory of its own there, and they take turns, so that whatever a kernel waits for
 * is there already. (A rank whose list is too long sends its entries when it is about to add up; so
 * there is one of them at most, and it adds up first.) They are compared with the reference. */
#include <stddef.h>

#include "tests/unit/reference.h"
#include "sparse_world.h"

enum { MOST = 5, SPARE = 4096, SAMPLE = 1 << 20, CLUSTER = 40000 };

/* How many elements the threshold of a step chooses. Crowded: so many that they cannot be offered
 * as candidates, but the raised threshold chooses few of them, out of the list or, if that has no
 * room for all, out of the residual. Overflowing: too many even then. */
enum crowd { FEW, NONE, RAISES, CROWDED, CROWDED_NO_ROOM, OVERFLOWS, OVERFLOWS_NO_ROOM, CROWDS };

struct team {
  struct world members[MOST];
  struct reference *ref;
};

/* ---- memory -------------------------------------------------------------------------------- */

/* One allocation, as a handle has it. */
static void member_open(struct world *w, struct test *t, const struct reference *ref, int rank,
                        ncclComm_t comm)
{
  struct sparse_memory *m = &w->m;
  world_open(w, t, ref->n, ref->k, ref->nranks);
  CUDACHECK(cudaFree(m->offered));
  CUDACHECK(cudaFree(m->received));
  CUDACHECK(cudaFree(m->gathered));
  m->rank = rank;
  m->comm = comm;
  m->t = ref->t;
  m->list_room = (m->capacity + 1 + 3) / 4 * 4;
  m->room = m->capacity + SPARE;
  const size_t bytes = sparse_lists_bytes(m, 3, SPARE);
  CUDACHECK(cudaMalloc((void **)&m->lists, bytes));
  CUDACHECK(cudaMemset(m->lists, 0, bytes));
  sparse_lay_out_lists(m, 3, SPARE);
  m->offered = m->received + sparse_list_place(m, rank, rank);
  m->config = ref->config;
  m->constants = ref->constants;
  CUDACHECK(cudaMemset(m->dense, 0, m->n * sizeof(float)));
  CUDACHECK(cudaMemset(m->residual, 0, m->n * sizeof(float)));
}

/* A reference whose steps all reuse thresholds and regions. */
static struct reference *reference_of_reuse(struct test *t, size_t n, int nranks,
                                            sparse_result_t result)
{
  sparse_allreduce_config_t config = sparse_allreduce_config(SPARSE_PRESET_VGG);
  config.algorithm = SPARSE_OKTOPK;
  config.density = 0.025;
  config.timeout_seconds = 20;
  config.warmup_steps = 0;
  config.result = result;
  struct reference *ref = reference_create(&config, n, nranks, NULL);
  if (ref == NULL) launcher_fail(__FILE__, __LINE__, "reference_create", "no memory", NULL);
  struct sparse_constants *c = &ref->constants;
  c->local_interval = c->global_interval = c->repartition_interval = 1 << 30;
  ref->step = 1; /* the first one would be exact */
  ref->boundaries[nranks] = n;
  for (int p = 1; p < nranks; p++) { /* some regions are empty, some begin with a warp's elements */
    const uint64_t kind = next_random(t) % 8, random = next_random(t) % n;
    const uint64_t at = kind < 2 ? 0 : kind == 2 ? n : kind < 5 ? random / 1024 * 1024 : random;
    ref->boundaries[p] = at > ref->boundaries[p - 1] ? at : ref->boundaries[p - 1];
  }
  return ref;
}

static void team_open(struct team *team, struct test *t, size_t n, int nranks,
                      sparse_result_t result, ncclComm_t comm)
{
  const struct reference *ref = team->ref = reference_of_reuse(t, n, nranks, result);
  for (int r = 0; r < nranks; r++) member_open(&team->members[r], t, ref, r, comm);
  for (int r = 0; r < nranks; r++) {
    struct world *w = &team->members[r];
    for (int p = 0; p < nranks; p++) {
      const struct sparse_memory *peer = &team->members[p].m;
      w->state->peers[p] = peer->lists;
      w->state->list_at[p] = peer->received + sparse_list_place(peer, p, r);
      w->state->list_displs[p] = sparse_list_place(&w->m, r, p);
    }
    memcpy(w->state->boundaries, ref->boundaries, ((size_t)nranks + 1) * sizeof *ref->boundaries);
    CUDACHECK(cudaMemcpy(w->m.state, w->state, sizeof *w->state, cudaMemcpyHostToDevice));
  }
}

static void team_close(struct team *team)
{
  for (int r = 0; r < team->ref->nranks; r++) {
    struct world *w = &team->members[r];
    CUDACHECK(cudaStreamSynchronize(w->stream));
    CUDACHECK(cudaFree(w->m.lists));
    w->m.offered = w->m.received = w->m.gathered = NULL;
    world_close(w);
  }
  reference_destroy(team->ref);
}

/* ---- a step -------------------------------------------------------------------------------- */

static int by_magnitude(const void *a, const void *b)
{
  const sparse_level_t x = *(const sparse_level_t *)a, y = *(const sparse_level_t *)b;
  return (x < y) - (x > y);
}

/* A threshold that about so many elements of residual + gradient exceed, by a sample of them. */
static double threshold_for(const struct sparse_memory *m, const float *residual,
                            const float *gradient, enum crowd crowd)
{
  const size_t wanted[CROWDS] = {
      m->k, 0, 2 * m->k - m->k / 4, m->k / 2, m->k / 2, m->room - m->room / 16, 3 * m->room};
  const size_t stride = m->n / SAMPLE + 1, count = (m->n - 1) / stride + 1;
  sparse_level_t *sorted = malloc(count * sizeof *sorted);
  for (size_t i = 0; i < count; i++)
    sorted[i] = sparse_magnitude(added(residual[i * stride], gradient[i * stride]));
  qsort(sorted, count, sizeof *sorted, by_magnitude);
  const size_t at = wanted[crowd] / stride < count ? wanted[crowd] / stride : count - 1;
  const double threshold = (double)sparse_from_magnitude(sorted[at]);
  free(sorted);
  return threshold;
}

/* Many elements that exceed the threshold, but not for long if it is raised. */
static void make_crowd(const struct sparse_memory *m, const float *residual, float *gradient,
                       enum crowd crowd, double threshold)
{
  const size_t list = crowd == CROWDED ? m->capacity : m->room, many = list + list / 8 + 1;
  const size_t stride = m->n / many;
  if (stride == 0 || (crowd != CROWDED && crowd != CROWDED_NO_ROOM)) return;
  for (size_t i = 0; i < many; i++)
    gradient[i * stride] = (float)(1.05 * threshold) - residual[i * stride];
}

static void run_step(struct team *team, int first)
{
  const int nranks = team->ref->nranks;
  for (int r = 0; r < nranks; r++) {
    const struct world *w = &team->members[r];
    OPSCHECK(ops_pass_and_send(&w->m, w->gradient, SPARSE_REMOVE_IN_RESULT, w->stream));
  }
  for (int i = 0; i < nranks; i++) {
    const int r = (first + i) % nranks;
    const struct world *w = &team->members[r];
    OPSCHECK(ops_reduce_sent(&w->m, SPARSE_SUMS_ABOVE, w->stream));
  }
  for (int r = 0; r < nranks; r++) {
    const struct world *w = &team->members[r];
    OPSCHECK(ops_apply_sums(&w->m, SPARSE_COUNT_ADAPT_BOTH, w->stream));
  }
}

/* Where entries are asked for, the vector is what it was at first. */
static bool same_dense(const struct world *w, const struct reference *ref)
{
  if (w->m.config.result == SPARSE_RESULT_DENSE)
    return same_bits(w->dense, ref->result, w->m.n * sizeof(float), "result");
  float *zeros = calloc(w->m.n, sizeof *zeros);
  const bool same = same_bits(w->dense, zeros, w->m.n * sizeof *zeros, "result, not asked for");
  free(zeros);
  return same;
}

static bool check_member(struct world *w, const struct reference *ref, int r)
{
  const struct reference_rank *expected = &ref->ranks[r];
  const size_t n = w->m.n, bytes = n * sizeof(float);
  struct sparse_state *s = w->state;
  CUDACHECK(cudaMemcpy(s, w->m.state, sizeof *s, cudaMemcpyDeviceToHost));
  CUDACHECK(cudaMemcpy(w->residual, w->m.residual, bytes, cudaMemcpyDeviceToHost));
  CUDACHECK(cudaMemcpy(w->dense, w->m.dense, bytes, cudaMemcpyDeviceToHost));
  CUDACHECK(cudaMemcpy(w->gathered, w->m.gathered, ref->nglobal * sizeof *w->gathered,
                       cudaMemcpyDeviceToHost));
  for (int p = 0; p < ref->nranks; p++)
    if (!same_number(s->received_counts[p], ref->ranks[p].region_counts[r], "received_counts"))
      return false;
  for (size_t i = 0; i < ref->nglobal; i++)
    sparse_settle_element(s, w->residual, ref->global[i].index);
  return same_number(s->late, 0, "waited in vain") &&
         same_number(s->offered_count, expected->noffered, "offered_count") &&
         same_number(s->result_count - s->result_flags, ref->nglobal, "global_count") &&
         same_bits(&s->local_threshold, &expected->local_threshold, sizeof(double), "threshold") &&
         same_bits(&s->global_threshold, &ref->global_threshold, sizeof(double), "global one") &&
         same_dense(w, ref) && same_bits(w->residual, expected->residual, bytes, "residual") &&
         same_bits(w->gathered, ref->global, ref->nglobal * sizeof *ref->global, "entries") &&
         same_bits(s->region_counts, expected->region_counts,
                   (size_t)ref->nranks * sizeof *s->region_counts, "region_counts");
}

static bool direct_step(struct test *t, struct team *team, enum kind kind, enum crowd of_first)
{
  struct reference *ref = team->ref;
  float *gradients[MOST];
  enum crowd crowd[MOST];
  const int first = (int)(next_random(t) % (uint64_t)ref->nranks);
  for (int r = 0; r < ref->nranks; r++) {
    const struct sparse_memory *m = &team->members[r].m;
    struct sparse_state *s = m->state;
    double *threshold = &ref->ranks[r].local_threshold;
    gradients[r] = malloc(m->n * sizeof(float));
    for (size_t i = 0; i < m->n; i++) gradients[r][i] = element(t, kind);
    for (size_t i = 0; i < CLUSTER && m->n > SAMPLE; i++) /* all of them go together */
      gradients[r][m->n / 3 + i] *= 64;
    crowd[r] = r == first ? of_first : (enum crowd)(next_random(t) % CROWDED);
    *threshold = threshold_for(m, ref->ranks[r].residual, gradients[r], crowd[r]);
    make_crowd(m, ref->ranks[r].residual, gradients[r], crowd[r], *threshold);
    if (r == 0) ref->global_threshold = *threshold;
    CUDACHECK(cudaMemcpy(team->members[r].gradient, gradients[r], m->n * sizeof(float),
                         cudaMemcpyHostToDevice));
    CUDACHECK(cudaMemcpy(&s->local_threshold, threshold, 8, cudaMemcpyHostToDevice));
    CUDACHECK(cudaMemcpy(&s->global_threshold, &ref->global_threshold, 8, cudaMemcpyHostToDevice));
  }
  reference_step(ref, (const float *const *)gradients, NULL);
  run_step(team, first);
  CUDACHECK(cudaStreamSynchronize(t->stream));
  bool good = of_first < CROWDED || of_first >= OVERFLOWS ||
              same_number(ref->ranks[first].overflowed, false, "overflow, though raised");
  for (int r = 0; r < ref->nranks; r++) {
    if (good && !check_member(&team->members[r], ref, r)) {
      launcher_error("rank %d of %d, n %zu, kind %d, crowd %d", r, ref->nranks, ref->n, kind,
                     crowd[r]);
      good = false;
    }
    free(gradients[r]);
  }
  return good;
}

static bool direct_steps(struct test *t, size_t n, int nranks, sparse_result_t result,
                         ncclComm_t comm)
{
  struct team team;
  bool good = true;
  team_open(&team, t, n, nranks, result, comm);
  for (int crowd = 0; crowd < CROWDS && good; crowd++)
    good = direct_step(t, &team, (nranks + crowd) % 3 == 2 ? TIES : RANDOM, (enum crowd)crowd);
  team_close(&team);
  return good;
}

/* ---- the largest sums ------------------------------------------------------------------------ */

static int by_size(const void *a, const void *b) /* largest first, of equal ones the first */
{
  const struct sparse_pair *x = a, *y = b;
  const sparse_level_t m = sparse_magnitude(x->value), n = sparse_magnitude(y->value);
  return m != n ? (m < n) - (m > n) : (x->index > y->index) - (x->index < y->index);
}

static int by_index(const void *a, const void *b)
{
  const struct sparse_pair *x = a, *y = b;
  return (x->index > y->index) - (x->index < y->index);
}

/* Of the sums of a single rank, whose region is not all of the vector. */
static bool largest_sums(struct test *t, struct team *team, enum kind kind, uint64_t wanted)
{
  struct world *w = &team->members[0];
  const struct sparse_memory *m = &w->m;
  struct sparse_state *s = w->state;
  const size_t units = SPARSE_UNITS(m->n), bytes = m->list_room * sizeof *m->reduced;
  const uint64_t begin = next_random(t) % m->n, end = begin + next_random(t) % (m->n - begin + 1);
  struct sparse_pair *sums = malloc(bytes), *got = malloc(bytes);
  uint32_t *begins = malloc(units * sizeof *begins);
  memset(s, 0, offsetof(struct sparse_state, number));
  s->boundaries[0] = begin;
  s->boundaries[1] = end;
  s->number++;
  s->global_threshold = 3;
  s->wanted = wanted;
  s->near = sparse_magnitude(element(t, kind)) - 5000;
  s->reduced_count = random_list(t, sums, m->list_room, begin, end, 1 + next_random(t) % 40, kind);
  CUDACHECK(cudaMemcpy(m->reduced, sums, bytes, cudaMemcpyHostToDevice));
  CUDACHECK(cudaMemcpy(m->state, s, sizeof *s, cudaMemcpyHostToDevice));
  OPSCHECK(ops_select_sums(m, w->stream));
  CUDACHECK(cudaStreamSynchronize(w->stream));
  CUDACHECK(cudaMemcpy(s, m->state, sizeof *s, cudaMemcpyDeviceToHost));
  CUDACHECK(cudaMemcpy(got, m->reduced, bytes, cudaMemcpyDeviceToHost));
  CUDACHECK(cudaMemcpy(begins, m->unit_begins, units * sizeof *begins, cudaMemcpyDeviceToHost));

  const uint64_t count = s->reduced_count, chosen = wanted < count ? wanted : count;
  qsort(sums, count, sizeof *sums, by_size);
  const double threshold =
      chosen > 0 ? (double)sparse_from_magnitude(sparse_magnitude(sums[chosen - 1].value)) : 3;
  qsort(sums, chosen, sizeof *sums, by_index);
  bool good = same_number(s->late, 0, "waited in vain") &&
              same_number(s->chosen_count, chosen, "chosen") &&
              same_number(s->gathered_total, count, "gathered_total") &&
              same_bits(got, sums, chosen * sizeof *sums, "sums") &&
              same_bits(&s->global_threshold, &threshold, sizeof threshold, "threshold");
  for (uint64_t u = 0, at = 0; ON_GPU && good && u < units; u++) { /* twins search instead */
    while (at < chosen && sums[at].index < u * SPARSE_UNIT) at++;
    if (u * SPARSE_UNIT >= begin && u * SPARSE_UNIT < end)
      good = same_number(begins[u], at, "begin of a unit");
  }
  if (!good)
    launcher_error("kind %d, wanted %llu of %llu, n %zu", kind, (unsigned long long)wanted,
                   (unsigned long long)count, m->n);
  free(sums);
  free(got);
  free(begins);
  return good;
}

/* The other rank's histogram does not come. */
static bool missed_histogram(struct team *team)
{
  struct world *w = &team->members[0];
  struct sparse_memory m = w->m;
  m.config.timeout_seconds = 0.5;
  w->state->number = 1; /* memory is full of notes of step 0 */
  CUDACHECK(cudaMemcpy(m.state, w->state, sizeof *w->state, cudaMemcpyHostToDevice));
  OPSCHECK(ops_select_sums(&m, w->stream));
  CUDACHECK(cudaStreamSynchronize(w->stream));
  CUDACHECK(cudaMemcpy(w->state, m.state, sizeof *w->state, cudaMemcpyDeviceToHost));
  return same_number(w->state->late, 2, "late");
}

static bool sums_of_ranks(struct test *t, bool quick, ncclComm_t comm)
{
  static const size_t sizes[] = {1, 1023, 70001, 2000003};
  struct team team;
  bool good = true;
  for (int i = quick ? 2 : 0; i < 4 - (quick || !ON_GPU); i++) {
    team_open(&team, t, sizes[i], 1, SPARSE_RESULT_DENSE, comm);
    for (int kind = 0; kind < (quick ? 2 : KINDS) && good; kind++) {
      const uint64_t wanted[] = {1, sizes[i] / 100 + 1, sizes[i] / 7, UINT64_MAX};
      for (int j = 0; j < 4 && good; j++) good = largest_sums(t, &team, (enum kind)kind, wanted[j]);
    }
    team_close(&team);
  }
  team_open(&team, t, 5000, 2, SPARSE_RESULT_DENSE, comm);
  good = good && missed_histogram(&team);
  team_close(&team);
  return good;
}

void test_direct(struct test *t, bool quick)
{
  static const size_t sizes[] = {1, 5000, 70001, 700003};
  bool good = true;
  ncclUniqueId id;
  ncclComm_t comm = NULL;
  launcher_step("steps without messages");
  if (!ON_GPU) { /* the twins need one to wake those who wait */
    NCCLCHECK(ncclGetUniqueId(&id));
    NCCLCHECK(ncclCommInitRank(&comm, 1, id, 0));
  }
  const sparse_result_t dense = SPARSE_RESULT_DENSE, entries = SPARSE_RESULT_ENTRIES;
  if (quick) good = direct_steps(t, sizes[2], 3, dense, comm);
  if (quick) good = good && direct_steps(t, sizes[2], 3, entries, comm);
  for (int i = 0; i < 4 && !quick; i++)
    for (int nranks = 1; nranks <= MOST; nranks++) {
      good = good && direct_steps(t, sizes[i], nranks, dense, comm);
      good = good && direct_steps(t, sizes[i], nranks, entries, comm);
    }
  /* Where tiles become large, some too full for that, and warps take several units. */
  for (int nranks = 1; nranks <= 2 && ON_GPU && !quick; nranks++)
    good = good && direct_steps(t, 9000011, nranks, nranks == 1 ? dense : entries, comm);
  report(t, good, "steps without messages");
  launcher_step("largest sums");
  report(t, sums_of_ranks(t, quick, comm), "largest sums of all ranks");
  if (!ON_GPU) NCCLCHECK(ncclCommDestroy(comm));
}
