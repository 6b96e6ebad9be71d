/* SPDX-License-Identifier: Apache-2.0 */
/* The reference on gradients made to break it, with the outcome each of them must have. The
 * invariants are checked after every step, too. */
#include <math.h>
#include <stdio.h>

#include "reference_job.h"
#include "unit.h"

static void fill(struct job *job, float value)
{
  for (int r = 0; r < job->nranks; r++)
    for (size_t i = 0; i < job->n; i++) job->gradients[r][i] = value;
}

/* A job of `steps` steps with heavy-tailed gradients. */
static void fill_heavy(struct job *job, uint64_t *seed)
{
  for (int r = 0; r < job->nranks; r++)
    for (size_t i = 0; i < job->n; i++)
      job->gradients[r][i] = (float)(exp(1.5 * job_normal(seed)) * (job_below(seed, 2) ? 1 : -1));
}

static bool sends_exactly_k(int algorithm)
{
  return algorithm == SPARSE_TOPKA || algorithm == SPARSE_TOPKA2 || algorithm == SPARSE_GTOPK ||
         algorithm == SPARSE_TOPKSA;
}

/* ---- values -----------------------------------------------------------------------------------*/

static void test_all_zeros(void **state)
{
  (void)state;
  for (int a = SPARSE_TOPKA; a < SPARSE_ALGORITHMS; a++) {
    struct job job;
    sparse_allreduce_config_t config = job_config(a, SPARSE_PRESET_VGG, 0.1);
    job_open(&job, &config, 103, 4);
    for (int step = 0; step < 70; step++) {
      fill(&job, step % 2 ? -0.0f : 0.0f);
      job_step(&job);
      for (size_t i = 0; i < job.n; i++) assert_true(job.ref->result[i] == 0);
      for (int r = 0; r < 4; r++)
        assert_int_equal(job.ref->ranks[r].noffered, sends_exactly_k(a) ? 10 : 0);
      assert_int_equal(job.ref->nglobal, a == SPARSE_GTOPK ? 10 : 0);
      assert_int_equal(job.ref->boundaries[1], 25);
      assert_true(job.ref->global_threshold == 0);
    }
    job_close(&job);
  }
}

/* The published code alternates between sending nothing and sending everything. Where gradients
 * grow, a raised threshold selects everything, too; else raising goes beyond all in the end. */
static void test_all_equal(void **state)
{
  (void)state;
  for (int i = 2 * SPARSE_TOPKA; i < 2 * SPARSE_ALGORITHMS; i++) {
    struct job job;
    bool grows = i % 2;
    sparse_allreduce_algorithm_t a = i / 2;
    sparse_allreduce_config_t config = job_config(a, SPARSE_PRESET_VGG, 0.01);
    job_open(&job, &config, 10000, 3);
    for (int step = 0; step < 20; step++) {
      fill(&job, grows ? (float)(1 << step) : 1);
      job_step(&job);
      if (a == SPARSE_OKTOPK && step == 19 && !grows)
        assert_int_equal(job.ref->ranks[0].noffered, 0);
      if (a == SPARSE_OKTOPK && step > 0 && grows) {
        assert_true(job.ref->ranks[0].overflowed);
        assert_int_equal(job.ref->ranks[0].noffered, 100);
        /* those that were left out longest, then the lowest */
        assert_int_equal(job.ref->ranks[0].offered[0], 100 * (step - 1));
      }
    }
    job_check_nothing_lost(&job);
    job_close(&job);
  }
}

static void test_one_nonzero(void **state)
{
  (void)state;
  for (int a = SPARSE_TOPKA; a < SPARSE_ALGORITHMS; a++) {
    struct job job;
    sparse_allreduce_config_t config = job_config(a, SPARSE_PRESET_VGG, 0.02);
    job_open(&job, &config, 200, 4);
    job.gradients[2][77] = -8;
    job_step(&job);
    /* the 4-th largest is 0, so the threshold is 0 and lets the one through */
    assert_true(job.ref->result[77] == -2);
    assert_true(job.ref->ranks[2].residual[77] == 0);
    job_close(&job);
  }
}

/* The k-th largest has equals: the lowest indices win, with exact selection everywhere. */
static void test_ties(void **state)
{
  (void)state;
  static const float values[12] = {3, 1, -3, 5, 3, -5, 3, 0, 3, 5, -3, 1};
  static const uint32_t chosen[5] = {0, 2, 3, 5, 9}; /* three fives, the first two threes */
  static const int algorithms[] = {SPARSE_TOPKA, SPARSE_TOPKA2, SPARSE_GTOPK, SPARSE_TOPKSA};
  for (size_t a = 0; a < sizeof algorithms / sizeof *algorithms; a++)
    for (int nranks = 1; nranks <= 4; nranks++) {
      struct job job;
      sparse_allreduce_config_t config = job_config(algorithms[a], SPARSE_PRESET_VGG, 5 / 12.0);
      job_open(&job, &config, 12, nranks);
      for (int r = 0; r < nranks; r++) memcpy(job.gradients[r], values, sizeof values);
      job_step(&job);
      assert_int_equal(job.ref->k, 5);
      for (int r = 0; r < nranks; r++) {
        assert_memory_equal(job.ref->ranks[r].offered, chosen, sizeof chosen);
        assert_int_equal(job.ref->ranks[r].selected_tie, 2);
        assert_int_equal(job.ref->ranks[r].selected_above, 0x40400000);
      }
      assert_int_equal(job.ref->nglobal, 5);
      for (size_t e = 0; e < 5; e++) assert_int_equal(job.ref->global[e].index, chosen[e]);
      job_close(&job);
    }
}

/* OKTOPK's exact global selection: of equal sums those with the lowest indices. */
static void test_ties_of_sums(void **state)
{
  (void)state;
  struct job job;
  sparse_allreduce_config_t config = job_config(SPARSE_OKTOPK, SPARSE_PRESET_VGG, 0.25);
  job_open(&job, &config, 12, 3);
  /* each rank offers its two nines; t = 3 of the six sums are kept */
  for (int r = 0; r < 3; r++) {
    job.gradients[r][r] = job.gradients[r][11 - r] = r == 1 ? -9 : 9;
    job.gradients[r][5] = 1;
  }
  job_step(&job);
  assert_int_equal(job.ref->nglobal, 3);
  for (uint32_t e = 0; e < 3; e++) assert_int_equal(job.ref->global[e].index, e);
  assert_true(job.ref->global_threshold == 9);
  assert_true(job.ref->ranks[0].residual[0] == 0 && job.ref->ranks[0].residual[11] == 9);
  job_close(&job);
}

static void test_denormals(void **state)
{
  (void)state;
  for (int a = SPARSE_TOPKA; a < SPARSE_ALGORITHMS; a++) {
    struct job job;
    uint64_t seed = 21;
    sparse_allreduce_config_t config = job_config(a, SPARSE_PRESET_VGG, 0.1);
    job_open(&job, &config, 200, 4);
    for (int step = 0; step < 40; step++) {
      for (int r = 0; r < 4; r++)
        for (size_t i = 0; i < 200; i++)
          job.gradients[r][i] = ldexpf((float)job_below(&seed, 100) - 50, -149);
      job_step(&job);
    }
    job_check_nothing_lost(&job); /* sums of denormals are exact */
    job_close(&job);
  }
}

static void test_cancellation(void **state)
{
  (void)state;
  for (int a = SPARSE_TOPKA; a < SPARSE_ALGORITHMS; a++) {
    struct job job;
    sparse_allreduce_config_t config = job_config(a, SPARSE_PRESET_VGG, 0.1);
    job_open(&job, &config, 50, 2);
    for (int r = 0; r < 2; r++) {
      job.gradients[r][7] = r ? 100 : -100;
      job.gradients[r][30] = 50;
      for (size_t i = 40; i < 50; i++) job.gradients[r][i] = 1;
    }
    job_step(&job);
    bool keeps = a == SPARSE_OKTOPK || a == SPARSE_TOPKA2;
    assert_true(job.ref->result[7] == 0 && job.ref->result[30] == 50);
    if (a != SPARSE_GTOPK)
      for (size_t e = 0; e < job.ref->nglobal; e++) assert_true(job.ref->global[e].index != 7);
    /* both lose it where all that is offered is zeroed, which is right: 100 - 100 arrived */
    if (a != SPARSE_GTOPK) assert_true(job.ref->ranks[0].residual[7] == (keeps ? -100 : 0));
    job_check_nothing_lost(&job);
    job_close(&job);
  }
}

/* ---- what is not finite -----------------------------------------------------------------------*/

static void test_nonfinite_is_dropped(void **state)
{
  (void)state;
  static const float bad[3] = {NAN, INFINITY, -INFINITY};
  for (int a = SPARSE_TOPKA; a < SPARSE_ALGORITHMS; a++)
    for (int policy = SPARSE_NONFINITE_ERROR; policy <= SPARSE_NONFINITE_DROP; policy++) {
      struct job job, clean;
      uint64_t seed = 31;
      sparse_allreduce_config_t config = job_config(a, SPARSE_PRESET_VGG, 0.1);
      config.nonfinite = policy;
      job_open(&job, &config, 150, 3);
      job_open(&clean, &config, 150, 3);
      for (int step = 0; step < 12; step++) {
        fill_heavy(&job, &seed);
        for (int r = 0; r < 3; r++) {
          memcpy(clean.gradients[r], job.gradients[r], 150 * sizeof(float));
          if (r != 1 || step % 3 == 0) continue;
          for (size_t i = 0; i < 3; i++) job.gradients[r][10 * i] = bad[i];
          for (size_t i = 0; i < 3; i++) clean.gradients[r][10 * i] = 0;
        }
        job_step(&job);
        job_step(&clean);
        assert_int_equal(job.ref->nonfinite, policy == SPARSE_NONFINITE_ERROR && step % 3 > 0);
        assert_false(clean.ref->nonfinite);
        assert_true(job_same_bits(job.ref->result, clean.ref->result, 150));
        for (int r = 0; r < 3; r++)
          assert_true(job_same_bits(job.ref->ranks[r].residual, clean.ref->ranks[r].residual, 150));
      }
      job_close(&job);
      job_close(&clean);
    }
}

/* Finite gradients whose sums are not. */
static void test_sums_overflow(void **state)
{
  (void)state;
  for (int a = SPARSE_TOPKA; a < SPARSE_ALGORITHMS; a++) {
    struct job job;
    uint64_t seed = 35;
    sparse_allreduce_config_t config = job_config(a, SPARSE_PRESET_VGG, 0.1);
    job_open(&job, &config, 60, 4);
    fill_heavy(&job, &seed);
    for (int r = 0; r < 4; r++) job.gradients[r][9] = 3e38f;
    for (int step = 0; step < 5; step++) job_step(&job);
    job_close(&job);
  }
}

/* ---- where entries are ------------------------------------------------------------------------*/

static void test_disjoint_and_identical(void **state)
{
  (void)state;
  for (int identical = 0; identical < 2; identical++)
    for (int a = SPARSE_TOPKA; a < SPARSE_ALGORITHMS; a++) {
      struct job job;
      sparse_allreduce_config_t config = job_config(a, SPARSE_PRESET_VGG, 0.01);
      job_open(&job, &config, 1000, 8);
      for (int r = 0; r < 8; r++)
        for (size_t i = 0; i < 10; i++)
          job.gradients[r][i * 8 + (identical ? 3 : (size_t)r)] = (float)(20 + i);
      job_step(&job);
      size_t offered = job.ref->ranks[0].noffered;
      size_t wanted = identical ? offered : 8 * offered; /* fill-in */
      if (a == SPARSE_TOPKA2 || a == SPARSE_GTOPK || a == SPARSE_OKTOPK)
        wanted = wanted > 10 ? 10 : wanted;
      assert_true(offered >= 9);
      assert_int_equal(job.ref->nglobal, wanted);
      job_check_nothing_lost(&job);
      job_close(&job);
    }
}

/* TOPKSA gathers whole regions where entries would take more: here from 10 sums on. */
static void test_dense_gather(void **state)
{
  (void)state;
  for (int sums = 9; sums <= 10; sums++) {
    struct job job;
    sparse_allreduce_config_t config = job_config(SPARSE_TOPKSA, SPARSE_PRESET_VGG, 5 / 30.0);
    job_open(&job, &config, 30, 2);
    for (size_t i = 0; i < 5; i++) {
      job.gradients[0][i] = 1;
      job.gradients[1][(size_t)sums - 5 + i] = 1;
    }
    job_step(&job);
    assert_int_equal(job.ref->nglobal, sums);
    assert_int_equal(job.ref->fell_back, sums == 10);
    /* rank 1 sends its 5 entries to rank 0, and of its region all elements or the sums: none */
    assert_int_equal(job.ref->ranks[1].words_sent, 10 + (sums == 10 ? 15 : 0));
    job_close(&job);
  }
}

/* All that is large lies in one region, and in each step in another one. */
static void test_hot_spot_moves(void **state)
{
  (void)state;
  for (int a = SPARSE_TOPKA; a < SPARSE_ALGORITHMS; a++) {
    struct job job;
    uint64_t seed = 41;
    sparse_allreduce_config_t config = job_config(a, SPARSE_PRESET_LSTM, 0.05);
    job_open(&job, &config, 400, 4);
    for (int step = 0; step < 140; step++) {
      size_t hot = (size_t)step % 4 * 100;
      for (int r = 0; r < 4; r++)
        for (size_t i = 0; i < 400; i++)
          job.gradients[r][i] =
              (float)job_below(&seed, 5) + (i / 100 == hot / 100 && i % 4 == 0 ? 1000.0f : 0);
      job_step(&job);
    }
    job_check_nothing_lost(&job);
    job_close(&job);
  }
}

/* One rank without any gradient; another that has all that is large. */
static void test_one_rank_empty(void **state)
{
  (void)state;
  for (int a = SPARSE_TOPKA; a < SPARSE_ALGORITHMS; a++) {
    struct job job;
    uint64_t seed = 43;
    sparse_allreduce_config_t config = job_config(a, SPARSE_PRESET_VGG, 0.1);
    job_open(&job, &config, 301, 3);
    for (int step = 0; step < 70; step++) {
      for (size_t i = 0; i < 301; i++) {
        job.gradients[0][i] = 0;
        job.gradients[1][i] = (float)job_below(&seed, 9) - 4;
        job.gradients[2][i] = 1000 * ((float)job_below(&seed, 9) - 4);
      }
      job_step(&job);
      if (a == SPARSE_OKTOPK) assert_int_equal(job.ref->ranks[0].noffered, 0);
      if (a == SPARSE_OKTOPK) assert_int_equal(job.ref->boundaries[1], 100); /* uniform */
    }
    job_check_nothing_lost(&job);
    job_close(&job);
  }
}

/* Boundaries by hand: the averages of where each rank's entries fall in equal parts. */
static void test_regions(void **state)
{
  (void)state;
  struct job job;
  sparse_allreduce_config_t config = job_config(SPARSE_OKTOPK, SPARSE_PRESET_VGG, 0.08);
  job_open(&job, &config, 100, 3);
  job.ref->constants.local_interval = job.ref->constants.repartition_interval = 1;
  /* t = 8, so 7 are above the 8-th: 7 / 3 = 2, cuts at the entries number 2 and 4 */
  for (int r = 0; r < 3; r++)
    for (size_t e = 0; e < 8; e++)
      job.gradients[r][(size_t)(r + 1) * 3 * e + (r == 2 ? 4 : 0)] = e == 7 ? 1 : 2;
  job_step(&job);
  assert_int_equal(job.ref->boundaries[0], 0);
  assert_int_equal(job.ref->boundaries[1], 13); /* (6 + 12 + 22) / 3, rounded down */
  assert_int_equal(job.ref->boundaries[2], 25); /* (12 + 24 + 40) / 3 */
  assert_int_equal(job.ref->boundaries[3], 100);

  /* three entries left, enough for three ranks; 1, 1, ... are not above the 8-th, which is 0 */
  for (int r = 0; r < 3; r++) {
    for (size_t i = 0; i < 100; i++) job.gradients[r][i] = -job.ref->ranks[r].residual[i];
    for (size_t e = 0; e < 3; e++) job.gradients[r][40 + 20 * e] += 1;
  }
  job_step(&job);
  assert_int_equal(job.ref->ranks[0].noffered, 3);
  assert_int_equal(job.ref->boundaries[1], 60);
  assert_int_equal(job.ref->boundaries[2], 80);

  /* and two on one of them, which are not: regions of equal size */
  for (int r = 0; r < 3; r++) {
    memset(job.gradients[r], 0, 100 * sizeof(float));
    for (size_t e = r == 1 ? 1 : 0; e < 3; e++) job.gradients[r][40 + 20 * e] = 1;
  }
  job_step(&job);
  assert_int_equal(job.ref->boundaries[1], 33);
  assert_int_equal(job.ref->boundaries[2], 66);
  job_close(&job);
}

/* ---- sizes ------------------------------------------------------------------------------------*/

static void test_derived_sizes(void **state)
{
  (void)state;
  static const struct {
    size_t n;
    double density;
    uint64_t k, t, capacity;
  } cases[] = {{10, 0.01, 1, 0, 10},          {100, 0.02, 2, 2, 100},
               {10000, 0.01, 100, 100, 4096}, {100000, 0.03, 3000, 3000, 6000},
               {5000, 0.9, 4500, 4500, 5000}, {4097, 1, 4097, 4097, 4097}};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    struct job job;
    sparse_allreduce_config_t config =
        job_config(SPARSE_OKTOPK, SPARSE_PRESET_VGG, cases[c].density);
    job_open(&job, &config, cases[c].n, 2);
    assert_int_equal(job.ref->k, cases[c].k);
    assert_int_equal(job.ref->t, cases[c].t);
    assert_int_equal(job.ref->capacity, cases[c].capacity);
    job_close(&job);
  }
}

static void test_sizes(void **state)
{
  (void)state;
  uint64_t seed = 51;
  static const double densities[] = {1e-6, 0.02, 0.5, 1}; /* k = 1 and t = 0; ...; k = n */
  for (int a = 0; a < SPARSE_ALGORITHMS; a++)
    for (int nranks = 1; nranks <= 8; nranks++) {
      const int sizes[] = {1, nranks - 1, nranks, nranks + 1, nranks * nranks - 1, 251};
      for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t d = 0; d < sizeof densities / sizeof *densities; d++) {
          struct job job;
          sparse_allreduce_config_t config = job_config(a, SPARSE_PRESET_VGG, densities[d]);
          if (sizes[s] == 0) continue;
          job_open(&job, &config, (size_t)sizes[s], nranks);
          job.ref->constants.global_interval = 4;
          job.ref->constants.local_interval = job.ref->constants.topkaopt_interval =
              job.ref->constants.repartition_interval = 3;
          for (int step = 0; step < 8; step++) {
            fill_heavy(&job, &seed);
            job_step(&job);
          }
          job_close(&job);
        }
    }
}

/* The oldest check of all: one rank gets its own top-k. */
static void test_single_rank(void **state)
{
  (void)state;
  for (int a = SPARSE_TOPKA; a < SPARSE_ALGORITHMS; a++) {
    struct job job;
    uint64_t seed = 53;
    sparse_allreduce_config_t config = job_config(a, SPARSE_PRESET_VGG, 0.1);
    job_open(&job, &config, 100, 1);
    for (int step = 0; step < 10; step++) {
      fill_heavy(&job, &seed);
      job_step(&job);
      const struct reference_rank *rank = &job.ref->ranks[0];
      assert_int_equal(rank->words_sent + rank->words_received, 0);
      for (size_t i = 0; i < 100; i++)
        assert_true(job.ref->result[i] + rank->residual[i] == rank->acc[i]);
    }
    job_close(&job);
  }
}

/* Large enough for the capacity to matter. */
static void test_beyond_capacity(void **state)
{
  (void)state;
  uint64_t seed = 55;
  bool overflowed = false;
  for (int number = 0; number < 36; number++) {
    struct job job;
    sparse_allreduce_config_t config =
        job_config(SPARSE_TOPKA + number % (SPARSE_ALGORITHMS - 1), number % 3, 0.003);
    config.gaussian_sa_threshold = 1;
    job_open(&job, &config, 7000, 1 + number % 4);
    for (int step = 0; step < 12; step++) {
      int scale = (int)job_below(&seed, 2) ? 1 : 60;
      for (int r = 0; r < job.nranks; r++)
        for (size_t i = 0; i < job.n; i++)
          job.gradients[r][i] =
              (float)(scale * ((int)job_below(&seed, 40) - (number % 2 ? 90 : 8)));
      job_step(&job);
      for (int r = 0; r < job.nranks; r++) overflowed |= job.ref->ranks[r].overflowed;
    }
    job_check_nothing_lost(&job);
    job_close(&job);
  }
  assert_true(overflowed);
}

/* ---- steps ------------------------------------------------------------------------------------*/

static void check_dense_step(const struct job *job)
{
  const struct reference_rank *rank = &job->ref->ranks[job->nranks - 1];
  for (size_t i = 0; i < job->n; i++) assert_true(rank->residual[i] == 0);
  for (int j = 0; j < job->nranks; j++) assert_int_equal(rank->region_counts[j], 0);
  assert_int_equal(rank->noffered + job->ref->nglobal, 0);
  assert_int_equal(rank->selected_above, 0x7fffffff);
  assert_int_equal(rank->selected_tie, -1);
  assert_true(reference_xi(job->ref) == 0);
}

static void test_kinds_of_steps(void **state)
{
  (void)state;
  for (long warmup = -1; warmup < 40; warmup = warmup < 1 ? warmup + 1 : warmup + 19) {
    struct job job;
    uint64_t seed = 61;
    sparse_allreduce_config_t config = job_config(SPARSE_OKTOPK, SPARSE_PRESET_VGG, 0.05);
    config.warmup_steps = warmup;
    job_open(&job, &config, 900, 4);
    job.ref->constants.global_interval = 16;
    for (long c = 0; c < 130; c++) {
      bool first = c == (warmup < 0 ? 0 : warmup), sparse = c >= warmup;
      fill_heavy(&job, &seed);
      job_step(&job);
      assert_int_equal(job.ref->dense, !sparse);
      assert_int_equal(job.ref->exact_local, first || (sparse && c % 32 == 0));
      assert_int_equal(job.ref->exact_global, first || (sparse && c % 16 == 0));
      assert_int_equal(job.ref->repartitioned, first || (sparse && c % 64 == 0));
      if (!sparse) check_dense_step(&job);
      if (job.ref->exact_local) assert_int_equal(job.ref->ranks[0].noffered, 44);
      if (job.ref->exact_global) assert_int_equal(job.ref->nglobal, 45);
    }
    job_close(&job);
  }
}

/* 130 steps of each algorithm with each job's constants: five exact steps, three repartitions. */
static void test_long_jobs(void **state)
{
  (void)state;
  for (int a = SPARSE_TOPKA; a < SPARSE_ALGORITHMS; a++)
    for (int preset = SPARSE_PRESET_VGG; preset <= SPARSE_PRESET_BERT; preset++) {
      struct job job;
      uint64_t seed = 63;
      sparse_allreduce_config_t config = job_config(a, preset, 0.02);
      job_open(&job, &config, 2500, 4);
      for (int step = 0; step < 130; step++) {
        fill_heavy(&job, &seed);
        job_step(&job);
        assert_true(reference_xi(job.ref) >= 0);
      }
      job_close(&job);
    }
}

/* Another density is another handle that goes on with the residuals. */
static void test_density_changes(void **state)
{
  (void)state;
  for (int a = SPARSE_TOPKA; a < SPARSE_ALGORITHMS; a++) {
    struct job job, thinner;
    sparse_allreduce_config_t config = job_config(a, SPARSE_PRESET_VGG, 0.1);
    job_open(&job, &config, 500, 3);
    config.density = 0.02;
    job_open(&thinner, &config, 500, 3);
    uint64_t seed = 65;
    for (int step = 0; step < 10; step++) {
      struct job *now = step < 5 ? &job : &thinner;
      for (int r = 0; r < 3; r++)
        for (size_t i = 0; i < 500; i++) now->gradients[r][i] = (float)job_below(&seed, 41) - 20;
      job_step(now);
      if (step != 4) continue;
      for (int r = 0; r < 3; r++)
        memcpy(thinner.ref->ranks[r].residual, job.ref->ranks[r].residual, 500 * sizeof(float));
      memcpy(thinner.outstanding, job.outstanding, 500 * sizeof(double));
    }
    assert_int_equal(thinner.ref->k, 10);
    job_check_nothing_lost(&thinner);
    job_close(&job);
    job_close(&thinner);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_all_zeros),       cmocka_unit_test(test_all_equal),
      cmocka_unit_test(test_one_nonzero),     cmocka_unit_test(test_ties),
      cmocka_unit_test(test_ties_of_sums),    cmocka_unit_test(test_denormals),
      cmocka_unit_test(test_cancellation),    cmocka_unit_test(test_nonfinite_is_dropped),
      cmocka_unit_test(test_sums_overflow),   cmocka_unit_test(test_disjoint_and_identical),
      cmocka_unit_test(test_dense_gather),    cmocka_unit_test(test_hot_spot_moves),
      cmocka_unit_test(test_one_rank_empty),  cmocka_unit_test(test_regions),
      cmocka_unit_test(test_derived_sizes),   cmocka_unit_test(test_sizes),
      cmocka_unit_test(test_single_rank),     cmocka_unit_test(test_beyond_capacity),
      cmocka_unit_test(test_kinds_of_steps),  cmocka_unit_test(test_long_jobs),
      cmocka_unit_test(test_density_changes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
