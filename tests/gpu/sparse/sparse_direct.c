/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of Ok-Topk without messages, of several ranks on one GPU: each has memory of its own there,
 * and they take turns, so that whatever a kernel waits for is there already. What the host computes
 * has none of the operators' structure: no lists, no notes. */
#include "sparse_world.h"

enum { MOST = 5, STEPS = 4, SPARE = 4096 };

/* How many elements the threshold of a step chooses: what a list of candidates is good for. */
enum crowd { FEW, NONE, RAISES, OVERFLOWS, BEYOND_ROOM, CROWDS };

struct member {
  struct world w;
  float *acc;    /* residual + gradient of the step */
  bool *offered; /* by element */
  uint64_t count;
  double threshold; /* of the step, and then of the next one */
};

struct team {
  struct member members[MOST];
  int nranks;
  uint64_t boundaries[MOST + 1];
  float *result; /* sums above the global threshold, not yet averaged; 0: none */
  double global_threshold;
};

/* ---- memory -------------------------------------------------------------------------------- */

static size_t slot_of(const struct sparse_memory *m, int owner, int p)
{
  return (size_t)((p - owner - 1 + m->nranks) % m->nranks) * m->slot;
}

/* One allocation, as a handle has it, and the constants of the algorithm. */
static void member_open(struct member *one, struct test *t, size_t n, int rank, int nranks,
                        ncclComm_t comm)
{
  struct sparse_memory *m = &one->w.m;
  world_open(&one->w, t, n, n / 40 + 1, nranks);
  CUDACHECK(cudaFree(m->offered));
  CUDACHECK(cudaFree(m->received));
  CUDACHECK(cudaFree(m->gathered));
  m->rank = rank;
  m->comm = comm;
  m->slot = (m->capacity + 1 + 3) / 4 * 4;
  m->room = m->capacity + SPARE;
  const size_t list = (size_t)nranks * m->slot, all = 3 * list + SPARE;
  const size_t bytes = all * sizeof *m->offered + sizeof *m->notes;
  CUDACHECK(cudaMalloc((void **)&m->lists, bytes));
  CUDACHECK(cudaMemset(m->lists, 0, bytes));
  m->reduced = (struct sparse_pair *)m->lists;
  m->gathered = m->reduced + list;
  m->received = m->gathered + list;
  m->offered = m->received + slot_of(m, rank, rank);
  m->notes = (struct sparse_notes *)(m->reduced + all);
  m->direct = true;
  m->config.algorithm = SPARSE_OKTOPK;
  m->config.timeout_seconds = 20;
  m->config.raise_steps = 3;
  m->config.raise_factor = 1.1;
  m->config.raise_above = (sparse_fraction_t){4, 3};
  m->config.local_band = (sparse_band_t){{2, 3}, {5, 4}, 1.012, 1.012};
  m->config.global_band = m->config.local_band;
  CUDACHECK(cudaMemset(m->dense, 0, n * sizeof(float)));
  CUDACHECK(cudaMemset(m->residual, 0, n * sizeof(float)));
  one->acc = calloc(n, sizeof *one->acc);
  one->offered = calloc(n, sizeof *one->offered);
}

static void team_open(struct team *team, struct test *t, size_t n, int nranks, ncclComm_t comm)
{
  memset(team, 0, sizeof *team);
  team->nranks = nranks;
  team->result = calloc(n, sizeof *team->result);
  team->boundaries[nranks] = n;
  for (int p = 1; p < nranks; p++) { /* some regions are empty */
    const uint64_t at = next_random(t) % 4 == 0 ? 0 : next_random(t) % n;
    team->boundaries[p] = at > team->boundaries[p - 1] ? at : team->boundaries[p - 1];
  }
  for (int r = 0; r < nranks; r++) member_open(&team->members[r], t, n, r, nranks, comm);
  for (int r = 0; r < nranks; r++) {
    struct world *w = &team->members[r].w;
    for (int p = 0; p < nranks; p++) {
      const struct sparse_memory *peer = &team->members[p].w.m;
      w->state->peers[p] = peer->lists;
      w->state->slots[p] = peer->received + slot_of(peer, p, r);
      w->state->slot_displs[p] = slot_of(&w->m, r, p);
    }
    memcpy(w->state->boundaries, team->boundaries, sizeof team->boundaries);
    CUDACHECK(cudaMemcpy(w->m.state, w->state, sizeof *w->state, cudaMemcpyHostToDevice));
  }
}

static void team_close(struct team *team)
{
  for (int r = 0; r < team->nranks; r++) {
    struct member *one = &team->members[r];
    CUDACHECK(cudaStreamSynchronize(one->w.stream));
    CUDACHECK(cudaFree(one->w.m.lists));
    one->w.m.offered = one->w.m.received = one->w.m.gathered = NULL;
    world_close(&one->w);
    free(one->acc);
    free(one->offered);
  }
  free(team->result);
}

/* ---- what is expected ---------------------------------------------------------------------- */

static int by_magnitude(const void *a, const void *b)
{
  const sparse_level_t x = *(const sparse_level_t *)a, y = *(const sparse_level_t *)b;
  return (x < y) - (x > y);
}

static uint64_t count_above(const struct member *one, double threshold)
{
  uint64_t count = 0;
  for (size_t i = 0; i < one->w.m.n; i++)
    count += sparse_magnitude(one->acc[i]) > sparse_level(threshold);
  return count;
}

/* A threshold that about so many elements exceed. */
static double threshold_for(const struct member *one, enum crowd crowd)
{
  const struct sparse_memory *m = &one->w.m;
  const size_t wanted[CROWDS] = {m->k, 0, 2 * m->k, m->capacity + m->capacity / 8 + 1,
                                 m->room + m->room / 8 + 1};
  sparse_level_t *sorted = malloc(m->n * sizeof *sorted);
  for (size_t i = 0; i < m->n; i++) sorted[i] = sparse_magnitude(one->acc[i]);
  qsort(sorted, m->n, sizeof *sorted, by_magnitude);
  const size_t at = wanted[crowd] < m->n ? wanted[crowd] : m->n - 1;
  const double threshold = (double)sparse_from_magnitude(sorted[at]);
  free(sorted);
  return threshold;
}

/* The k largest, of equal ones those with the lowest indices. */
static void offer_largest(struct member *one)
{
  const struct sparse_memory *m = &one->w.m;
  sparse_level_t *sorted = malloc(m->n * sizeof *sorted);
  for (size_t i = 0; i < m->n; i++) sorted[i] = sparse_magnitude(one->acc[i]);
  qsort(sorted, m->n, sizeof *sorted, by_magnitude);
  const sparse_level_t kth = sorted[m->k - 1];
  uint64_t left = m->k;
  for (size_t i = 0; i < m->n; i++) left -= sparse_magnitude(one->acc[i]) > kth;
  for (size_t i = 0; i < m->n; i++) {
    const sparse_level_t magnitude = sparse_magnitude(one->acc[i]);
    one->offered[i] = magnitude > kth || (magnitude == kth && left > 0);
    if (magnitude == kth && left > 0) left--;
  }
  one->count = m->k;
  one->threshold = (double)sparse_from_magnitude(kth);
  free(sorted);
}

static void expect_offer(struct member *one)
{
  const struct sparse_memory *m = &one->w.m;
  one->count = count_above(one, one->threshold);
  if (one->count > m->capacity) {
    offer_largest(one);
  } else {
    for (int j = 0; j < m->config.raise_steps && 3 * one->count > 4 * m->t; j++)
      one->count = count_above(one, one->threshold *= m->config.raise_factor);
    for (size_t i = 0; i < m->n; i++)
      one->offered[i] = sparse_magnitude(one->acc[i]) > sparse_level(one->threshold);
  }
  sparse_adapt(&one->threshold, one->count, m->t, m->config.local_band);
}

/* Of each element the values offered, in the order of its owner. */
static uint64_t expect_result(struct team *team)
{
  const size_t n = team->members[0].w.m.n;
  uint64_t kept = 0;
  int owner = 0;
  for (size_t i = 0; i < n; i++) {
    float sum = 0;
    while (i >= team->boundaries[owner + 1]) owner++;
    for (int j = 0; j < team->nranks; j++) {
      const struct member *one = &team->members[(owner - j + team->nranks) % team->nranks];
      if (one->offered[i]) sum = added(sum, one->acc[i]);
    }
    const bool keep = fabsf(sum) > (float)team->global_threshold;
    team->result[i] = keep ? sum : 0;
    kept += keep;
    for (int r = 0; r < team->nranks && keep; r++)
      if (team->members[r].offered[i]) team->members[r].acc[i] = 0; /* the residual */
  }
  return kept;
}

/* ---- a step -------------------------------------------------------------------------------- */

static void run_step(struct team *team)
{
  for (int r = 0; r < team->nranks; r++) {
    struct world *w = &team->members[r].w;
    OPSCHECK(ops_local_pass(&w->m, w->gradient, SPARSE_PASS_OFFERS, SPARSE_THRESHOLD_LEVELS,
                            SPARSE_THRESHOLD_CHOOSE, w->stream));
    OPSCHECK(ops_offer(&w->m, SPARSE_THRESHOLD_OVERFLOW, w->stream));
  }
  for (int r = 0; r < team->nranks; r++) {
    const struct world *w = &team->members[r].w;
    struct sparse_state *s = w->m.state;
    const struct sparse_list sums = {w->m.reduced, &s->reduced_count, 1};
    OPSCHECK(ops_reduce(&w->m, NULL, s->slot_displs, s->received_counts, r, -1, s->boundaries + r,
                        SPARSE_SUMS_ABOVE, sums, SPARSE_THEN_NOTHING, w->stream));
  }
  for (int r = 0; r < team->nranks; r++) {
    const struct world *w = &team->members[r].w;
    OPSCHECK(ops_undo(&w->m, w->stream));
    OPSCHECK(ops_apply(&w->m, (struct sparse_list){NULL, NULL, 0}, SPARSE_BOTH_ADAPT, w->stream));
  }
}

static bool check_member(struct team *team, int r, uint64_t kept)
{
  struct member *one = &team->members[r];
  struct world *w = &one->w;
  const size_t n = w->m.n, bytes = n * sizeof(float);
  struct sparse_state *s = w->state;
  CUDACHECK(cudaMemcpy(s, w->m.state, sizeof *s, cudaMemcpyDeviceToHost));
  CUDACHECK(cudaMemcpy(w->residual, w->m.residual, bytes, cudaMemcpyDeviceToHost));
  CUDACHECK(cudaMemcpy(w->dense, w->m.dense, bytes, cudaMemcpyDeviceToHost));
  float *average = malloc(bytes);
  for (size_t i = 0; i < n; i++) average[i] = team->result[i] / (float)team->nranks;
  for (size_t i = 0; i < n; i++)
    if (team->result[i] != 0) sparse_settle_element(s, w->residual, (uint32_t)i);
  bool good = same_number(s->late, 0, "waited in vain") &&
              same_number(s->offered_count, one->count, "offered_count") &&
              same_number(s->global_count, kept, "global_count") &&
              same_bits(&s->local_threshold, &one->threshold, sizeof(double), "threshold") &&
              same_bits(w->dense, average, bytes, "result") &&
              same_bits(w->residual, one->acc, bytes, "residual");
  for (int p = 0; p < team->nranks && good; p++) {
    uint64_t count = 0;
    for (uint64_t i = team->boundaries[p]; i < team->boundaries[p + 1]; i++)
      count += one->offered[i];
    good = same_number(s->region_counts[p], count, "region_counts");
  }
  free(average);
  return good;
}

static bool direct_step(struct test *t, struct team *team, enum kind kind)
{
  const size_t n = team->members[0].w.m.n;
  float *gradient = malloc(n * sizeof *gradient);
  enum crowd crowd[MOST];
  for (int r = 0; r < team->nranks; r++) {
    struct member *one = &team->members[r];
    struct sparse_state *s = one->w.m.state;
    for (size_t i = 0; i < n; i++) {
      gradient[i] = element(t, kind);
      one->acc[i] = added(one->acc[i], gradient[i]);
    }
    crowd[r] = (enum crowd)(next_random(t) % CROWDS);
    one->threshold = threshold_for(one, crowd[r]);
    team->global_threshold = r == 0 ? one->threshold : team->global_threshold;
    CUDACHECK(cudaMemcpy(one->w.gradient, gradient, n * sizeof *gradient, cudaMemcpyHostToDevice));
    CUDACHECK(cudaMemcpy(&s->local_threshold, &one->threshold, 8, cudaMemcpyHostToDevice));
    CUDACHECK(cudaMemcpy(&s->global_threshold, &team->global_threshold, 8, cudaMemcpyHostToDevice));
    expect_offer(one);
  }
  const uint64_t kept = expect_result(team);
  run_step(team);
  CUDACHECK(cudaStreamSynchronize(t->stream));
  bool good = true;
  for (int r = 0; r < team->nranks && good; r++) {
    good = check_member(team, r, kept);
    if (!good)
      launcher_error("rank %d of %d, n %zu, kind %d, crowd %d", r, team->nranks, n, kind, crowd[r]);
  }
  free(gradient);
  return good;
}

static bool direct_steps(struct test *t, size_t n, int nranks, ncclComm_t comm)
{
  struct team team;
  bool good = true;
  team_open(&team, t, n, nranks, comm);
  for (int step = 0; step < STEPS && good; step++)
    good = direct_step(t, &team, (nranks + step) % 3 == 0 ? TIES : RANDOM);
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
  if (quick) good = direct_steps(t, sizes[2], 3, comm);
  for (int i = 0; i < 4 && !quick; i++)
    for (int nranks = 1; nranks <= MOST; nranks++)
      good = good && direct_steps(t, sizes[i], nranks, comm);
  if (!ON_GPU) NCCLCHECK(ncclCommDestroy(comm));
  report(t, good, "steps without messages");
}
