/* SPDX-License-Identifier: Apache-2.0 */
/* The operators of the sparse allreduce that have ways of their own for large vectors and long
 * lists (the local pass, selection, sums), on the device against straightforward code on the host,
 * on random and adversarial inputs. (sparse_steps has all operators, on small ones.) They are
 * local: every rank runs all cases on its own, and one is enough. Prints one line `ok - ...` or
 * `not ok - ...` per case.
 *
 *   --large    also more than 2^31 elements: 3 vectors of 8.6 GB */
#include "world.h"

#include <stdio.h>

static bool large, quick;
static long repeats = ON_GPU ? 1000 : 50;

/* ---- again and again ------------------------------------------------------------------------- */

/* A step's operators, from a state that is put back first: all launches have to give the same. */
static void enqueue_step(struct world *w, const struct sparse_state *initial)
{
  const struct sparse_memory *m = &w->m;
  struct sparse_state *s = m->state;
  const struct sparse_list offered = {m->offered, &s->offered_count, 1};
  const struct sparse_list reduced = {m->received + m->list_room, &s->reduced_count, 1};
  CUDACHECK(cudaMemcpyAsync(s, initial, sizeof *s, cudaMemcpyDeviceToDevice, w->stream));
  OPSCHECK(ops_local_pass(m, NULL, SPARSE_ABOVE_THRESHOLDS, SPARSE_REMOVE_IN_RESULT, w->stream));
  OPSCHECK(ops_search_k(m, w->stream));
  OPSCHECK(ops_select_sums(m, offered, offered, &s->selection, w->stream));
  OPSCHECK(ops_reduce(m, m->received, SPARSE_FROM_RANK_0, SPARSE_SUMS_NONZERO, reduced, w->stream));
  OPSCHECK(ops_partition(m, w->stream));
}

static void keep_copy(struct world *copy, const struct world *w)
{
  const size_t list = w->lists * sizeof *w->offered;
  memcpy(copy->state, w->state, sizeof *w->state);
  memcpy(copy->offered, w->offered, list);
  memcpy(copy->received, w->received, list);
  memcpy(copy->gathered, w->gathered, list);
}

static void test_repeats(struct test *t, bool graph)
{
  struct world w, first;
  const size_t n = 300007;
  struct sparse_state *initial;
  cudaGraph_t captured;
  cudaGraphExec_t exec = NULL;
  bool good = true;
  launcher_step(graph ? "graph replay" : "repeated launches");
  world_open(&w, t, n, n / 50, 1);
  world_open(&first, t, n, n / 50, 1);
  struct sparse_state *s = w.state;
  for (size_t i = 0; i < n; i++) w.residual[i] = element(t, RANDOM);
  s->received_counts[0] = random_list(t, w.received, w.m.capacity, 0, n, 40, RANDOM);
  s->fixed.whole[1] = s->kept.boundaries[1] = n;
  w.m.constants.raise_steps = 2;
  w.m.constants.raise_factor = 1.2;
  s->kept.local_threshold = 0.4;
  world_push(&w);
  CUDACHECK(cudaMalloc((void **)&initial, sizeof *initial));
  CUDACHECK(cudaMemcpy(initial, w.m.state, sizeof *initial, cudaMemcpyDeviceToDevice));
  if (graph) {
    CUDACHECK(cudaStreamBeginCapture(w.stream, cudaStreamCaptureModeThreadLocal));
    enqueue_step(&w, initial);
    CUDACHECK(cudaStreamEndCapture(w.stream, &captured));
    CUDACHECK(cudaGraphInstantiate(&exec, captured, 0));
    CUDACHECK(cudaGraphDestroy(captured));
  }
  for (long i = 0; i < repeats; i++) {
    if (i == repeats / 2 && ON_GPU) { /* the number of launches, which scratch begins with, wraps */
      const uint32_t epoch = 0xfffffff0u;
      CUDACHECK(
          cudaMemcpyAsync(w.m.scratch, &epoch, sizeof epoch, cudaMemcpyHostToDevice, w.stream));
    }
    if (graph)
      CUDACHECK(cudaGraphLaunch(exec, w.stream));
    else
      enqueue_step(&w, initial);
    if (i > 0 && i % 10 != 9 && i != repeats - 1) continue; /* sometimes many without a pause */
    world_pull(&w);
    if (i == 0) {
      keep_copy(&first, &w);
      continue;
    }
    good = good && same_bits(w.state, first.state, sizeof *w.state, "state") &&
           same_bits(w.offered, first.offered, s->offered_count * 8, "offered") &&
           same_bits(w.received, first.received, (w.m.list_room + s->reduced_count) * 8, "reduced");
  }
  good = good && same_number(s->offered_count, w.m.k, "entries selected");
  if (exec != NULL) CUDACHECK(cudaGraphExecDestroy(exec));
  CUDACHECK(cudaFree(initial));
  report(t, good, graph ? "graph replay gives the same bits" : "repeated launches, the same bits");
  world_close(&first);
  world_close(&w);
}

/* ---- more than 2^31 elements ----------------------------------------------------------------- */

static void test_large(struct test *t)
{
  const size_t n = ((size_t)1 << 31) + 16, k = 5000;
  static const size_t planted[] = {0,          1,        8191,           8192,
                                   0x7ffffffe, 1u << 31, (1u << 31) + 5, (1u << 31) + 15};
  enum { PLANTED = sizeof planted / sizeof *planted };
  struct sparse_memory m = {
      .n = n, .k = k, .t = k, .capacity = 2 * k, .room = 2 * k, .nranks = 1, .list_room = 2 * k};
  struct sparse_pair expected[PLANTED], got[PLANTED];
  struct sparse_state *s = calloc(1, sizeof *s);
  float *gradient, zero = 1;
  const size_t scratch = ops_scratch_bytes(n, 1, m.capacity);
  bool good = true;
  launcher_step("more than 2^31 elements");
  m.config.gradient_type = ncclFloat;
  CUDACHECK(cudaMalloc((void **)&gradient, n * sizeof(float)));
  CUDACHECK(cudaMalloc((void **)&m.residual, n * sizeof(float)));
  CUDACHECK(cudaMalloc((void **)&m.dense, (n + SPARSE_SECTOR) * sizeof(float)));
  CUDACHECK(cudaMalloc((void **)&m.offered, 3 * m.list_room * sizeof *m.offered));
  CUDACHECK(cudaMalloc((void **)&m.state, sizeof *m.state));
  CUDACHECK(cudaMalloc(&m.scratch, scratch));
  CUDACHECK(cudaMemset(m.scratch, 0, scratch));
  CUDACHECK(cudaMemset(gradient, 0x2a, n * sizeof(float))); /* 1.5e-13 */
  CUDACHECK(cudaMemset(m.residual, 0x2a, n * sizeof(float)));
  CUDACHECK(cudaMemset(m.dense, 0, n * sizeof(float)));
  m.gathered = m.offered + m.list_room;
  m.received = m.gathered + m.list_room;
  for (int i = 0; i < PLANTED; i++) {
    const float x = (float)(i + 1);
    float small;
    memset(&small, 0x2a, sizeof small);
    CUDACHECK(cudaMemcpy(gradient + planted[i], &x, sizeof x, cudaMemcpyHostToDevice));
    expected[i] = (struct sparse_pair){(uint32_t)planted[i], added(x, small)};
  }
  s->kept.guess = sparse_level(0.5);
  s->search_from = s->keep_from = SPARSE_FROM_RESIDUAL;
  s->wanted = PLANTED;
  s->fixed.whole[1] = s->kept.boundaries[1] = n;
  CUDACHECK(cudaMemcpy(m.state, s, sizeof *s, cudaMemcpyHostToDevice));
  const struct sparse_list offered = {m.offered, &m.state->offered_count, 1};
  const struct sparse_list kept = {m.received, &m.state->received_counts[0], 1};
  const struct sparse_list result = {m.gathered, &m.state->result_count, 1};
  OPSCHECK(ops_local_pass(&m, gradient, SPARSE_GAUSSIAN_GUESS, SPARSE_REMOVE_IN_RESULT, t->stream));
  OPSCHECK(ops_select_sums(&m, offered, kept, &m.state->selection, t->stream));
  OPSCHECK(ops_reduce(&m, m.received, SPARSE_FROM_RANK_0, SPARSE_SUMS_NONZERO, result, t->stream));
  OPSCHECK(ops_apply(&m, result, SPARSE_THRESHOLDS_STAY, t->stream));
  OPSCHECK(ops_clear_pending(&m, t->stream));
  CUDACHECK(cudaStreamSynchronize(t->stream));
  CUDACHECK(cudaMemcpy(s, m.state, sizeof *s, cudaMemcpyDeviceToHost));
  good = same_number(s->offered_count, PLANTED, "candidates") &&
         same_number(s->received_counts[0], PLANTED, "kept") &&
         same_number(s->result_count, PLANTED, "summed");
  struct sparse_pair *const lists[] = {m.offered, m.received, m.gathered};
  for (int i = 0; i < 3 && good; i++) {
    CUDACHECK(cudaMemcpy(got, lists[i], sizeof got, cudaMemcpyDeviceToHost));
    good = same_bits(got, expected, sizeof got, "planted entries");
  }
  for (int i = 0; i < PLANTED; i++) {
    CUDACHECK(cudaMemcpy(&zero, m.residual + planted[i], sizeof zero, cudaMemcpyDeviceToHost));
    good &= zero == 0;
    CUDACHECK(cudaMemcpy(&zero, m.dense + planted[i], sizeof zero, cudaMemcpyDeviceToHost));
    good &= zero == expected[i].value;
  }
  OPSCHECK(ops_apply(&m, (struct sparse_list){m.gathered, &m.state->reduced_count, 1},
                     SPARSE_THRESHOLDS_STAY, t->stream)); /* of no entries */
  CUDACHECK(cudaStreamSynchronize(t->stream));
  CUDACHECK(cudaMemcpy(&zero, m.dense + planted[PLANTED - 1], sizeof zero, cudaMemcpyDeviceToHost));
  good &= zero == 0 && scratch < n / 8 + (16 << 20);
  report(t, good, "more than 2^31 elements");
  CUDACHECK(cudaFree(gradient));
  CUDACHECK(cudaFree(m.residual));
  CUDACHECK(cudaFree(m.dense));
  CUDACHECK(cudaFree(m.offered));
  CUDACHECK(cudaFree(m.state));
  CUDACHECK(cudaFree(m.scratch));
  free(s);
}

static int run(const struct rank *me, const struct options *opt)
{
  (void)opt;
  struct test t = {.me = me, .random = 88172645463325252ULL, .code = EXIT_VERIFIED};
  CUDACHECK(cudaSetDevice(me->device));
  CUDACHECK(cudaStreamCreate(&t.stream));
  OPSCHECK(ops_load());
  test_reduce(&t);
  test_guess(&t);
  test_repeats(&t, false);
  test_repeats(&t, true);
  if (!quick) test_local_pass(&t);
  test_selection(&t, quick);
  if (large) test_large(&t);
  CUDACHECK(cudaStreamDestroy(t.stream));
  return t.code;
}

int main(int argc, char **argv)
{
  static const struct option_spec options[] = {
      {"large", 0, OPTION_FLAG, &large, NULL, "also more than 2^31 elements", 0, 0},
      {"quick", 0, OPTION_FLAG, &quick, NULL, "small cases only", 0, 0},
      {"repeats", 0, OPTION_LONG, &repeats, "N", "launches of the same (1000)", 2, 1 << 20},
      {0},
  };
  static const struct program program = {
      .name = "sparse",
      .summary = "test cases of the operators of the sparse allreduce",
      .options = options,
      .types = "float",
      .run = run,
  };
  return launcher_main(argc, argv, &program);
}
