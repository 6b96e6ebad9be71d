/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel of the AlltoAllV with 2 to 8 and with 40 ranks on one GPU, against plain C, byte for
 * byte: hundreds of exchanges after each other with counts that change, on the host or on the
 * device, pairs of all sizes and alignments, some whose counts disagree, and delays at random, so
 * that ranks and blocks meet in every order. Prints one line `ok - ...` or `not ok - ...` per case.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "launcher.h"
#include "ranks.h"

enum { LL_LIMIT = 3 * ALLTOALLV_GROUP_BYTES, MOST = 40 << 10, INPUT = 1 << 20 };

static long most_exchanges = 60, rounds = 3, seed = 1, most_ranks = RANKS_MAX;

/* Of a rank's receive buffer. */
static size_t buffer_bytes(int n)
{
  return (size_t)n * (MOST + 64);
}

static uint64_t state;
static uint32_t next_random(uint32_t below)
{
  state = state * 6364136223846793005ULL + 1442695040888963407ULL;
  return (uint32_t)(state >> 33) % below;
}

/* Nothing, a few bytes, around a border of the kernel, or anything. */
static uint64_t some_bytes(bool small)
{
  static const uint32_t borders[] = {48, 1024, 1536, 2048, LL_LIMIT};
  const uint32_t border = borders[next_random(5)], most = small ? LL_LIMIT : MOST;
  uint64_t bytes = 0;
  switch (next_random(4)) {
  case 0:
    break;
  case 1:
    bytes = next_random(200);
    break;
  case 2:
    bytes = border - 17 + next_random(35);
    break;
  default:
    bytes = next_random(most);
    break;
  }
  return bytes < most ? bytes : most;
}

static void make_exchange(struct ranks_exchange *x, int n, bool mismatches, bool quiet)
{
  const bool small = next_random(3) == 0;
  uint64_t ends[RANKS_MAX] = {0};
  memset(x, 0, sizeof *x);
  x->kind = next_random(2)   ? ALLTOALLV_KIND_HOST
            : next_random(2) ? ALLTOALLV_KIND_PACKED
                             : ALLTOALLV_KIND_SLOTS;
  for (int to = 0; to < n; to++)
    for (int i = 0; i < n; i++) {
      /* in another order on each rank, and slots in the order of ranks */
      const int from = x->kind == ALLTOALLV_KIND_HOST ? (to * 3 + i) % n : i;
      const uint64_t bytes = quiet && from != to ? 0 : some_bytes(small);
      struct alltoallv_pair *out = &x->pairs[from][to], *in = &x->pairs[to][from];
      out->sends = in->gets = bytes;
      out->sends_at = next_random(INPUT - MOST);
      if (x->kind == ALLTOALLV_KIND_SLOTS) ends[to] = buffer_bytes(n) / (size_t)n * (size_t)from;
      in->gets_at = ends[to] += x->kind == ALLTOALLV_KIND_HOST ? next_random(40) : 0;
      ends[to] += bytes;
    }
  if (mismatches && x->kind == ALLTOALLV_KIND_HOST && next_random(2)) {
    const int from = (int)next_random((uint32_t)n), to = (int)next_random((uint32_t)n);
    uint64_t *sent = &x->pairs[from][to].sends;
    *sent = *sent > 0 && next_random(2) ? *sent - 1 : *sent / 2 + LL_LIMIT;
  }
}

/* What `rank` has to have after the exchange. */
static void expect(const struct ranks_exchange *x, int n, int rank, const char *input,
                   char *expected)
{
  memset(expected, RANKS_GUARD, buffer_bytes(n));
  for (int from = 0; from < n; from++) {
    const struct alltoallv_pair *out = &x->pairs[from][rank], *in = &x->pairs[rank][from];
    if (out->sends == in->gets) memcpy(expected + in->gets_at, input + out->sends_at, in->gets);
  }
}

/* Whether the buffers are right. Where counts disagree, anything is in the part of that pair. */
static bool check_exchange(const struct ranks_case *c, int e, int rank, char *expected,
                           bool *disagrees)
{
  const struct ranks_exchange *x = &c->exchange[e];
  const size_t at = (size_t)(e * c->ranks + rank);
  char *received = c->received + at * c->buffer_bytes;
  bool good = true;
  expect(x, c->ranks, rank, c->input, expected);
  for (int p = 0; p < c->ranks; p++) {
    const struct alltoallv_pair *in = &x->pairs[rank][p];
    if (x->pairs[p][rank].sends != in->gets) {
      *disagrees = true;
      memset(received + in->gets_at, RANKS_GUARD, in->gets);
    }
    if (x->pairs[rank][p].sends != x->pairs[p][rank].gets) *disagrees = true;
    if (x->kind != ALLTOALLV_KIND_HOST) good &= c->counts[at][p] == in->gets;
  }
  return good && memcmp(received, expected, c->buffer_bytes) == 0;
}

/* One launch. `columns` x `teams` blocks a rank. */
static bool run_case(int n, int columns, int teams, uint32_t first_epoch, bool mismatches,
                     const char *input)
{
  const long exchanges = n > 8 ? (most_exchanges + 7) / 8 : most_exchanges;
  const size_t all = (size_t)(n * exchanges);
  struct ranks_exchange *x = calloc((size_t)exchanges, sizeof *x);
  struct ranks_case c = {.ranks = n,
                         .columns = columns,
                         .teams = teams,
                         .first_epoch = first_epoch,
                         .stale = first_epoch != 1,
                         .seed = next_random(1 << 30),
                         .exchanges = (int)exchanges,
                         .exchange = x,
                         .input = input,
                         .input_bytes = INPUT,
                         .buffer_bytes = buffer_bytes(n),
                         .ll_bytes = LL_LIMIT,
                         .received = malloc(all * buffer_bytes(n)),
                         .counts = malloc(all * sizeof *c.counts)};
  char *expected = malloc(buffer_bytes(n));
  bool good = true;
  if (!x || !c.received || !c.counts || !expected)
    launcher_fail(__FILE__, __LINE__, "malloc", "out of memory", NULL);
  /* in every third group of four nobody has anything for others: only headers hold them together */
  for (long e = 0; e < exchanges; e++) make_exchange(&x[e], n, mismatches, e / 4 % 3 == 2);
  CUDACHECK(ranks_run(&c));
  for (int rank = 0; rank < n; rank++) {
    bool disagrees = false;
    for (int e = 0; e < exchanges; e++)
      if (!check_exchange(&c, e, rank, expected, &disagrees)) {
        launcher_error("exchange %d of %ld, rank %d of %d, %d x %d blocks: wrong data", e,
                       exchanges, rank, n, columns, teams);
        good = false;
      }
    if (c.errors[rank].timeout.kind != ALLTOALLV_ERROR_NONE ||
        (c.errors[rank].counts.kind == ALLTOALLV_ERROR_MISMATCH) != disagrees) {
      launcher_error("rank %d of %d, %d x %d blocks: kinds of errors %d and %d", rank, n, columns,
                     teams, c.errors[rank].counts.kind, c.errors[rank].timeout.kind);
      good = false;
    }
  }
  free(x), free(c.received), free(c.counts), free(expected);
  return good;
}

static int run(const struct rank *me, const struct options *opt)
{
  int code = EXIT_VERIFIED;
  (void)opt;
  if (me->rank != 0) return EXIT_VERIFIED; /* one has all others on its GPU */
  CUDACHECK(cudaSetDevice(me->device));
  char *input = malloc(INPUT);
  if (!input) launcher_fail(__FILE__, __LINE__, "malloc", "out of memory", NULL);
  state = (uint64_t)seed;
  for (int i = 0; i < INPUT; i++) input[i] = (char)next_random(256);
  for (int n = 2; n <= most_ranks; n = n == 8 ? RANKS_MAX : n + 1) {
    const int most = ranks_blocks(n) / n; /* of each rank */
    const int teams = most < n ? most : n;
    if (most < 2) break; /* a small GPU */
    bool good = true;
    for (long round = 0; round < rounds; round++) {
      launcher_step("ranks on one GPU");
      /* as many blocks as there are; a control block and another one; fewer teams than ranks */
      good &= run_case(n, most / teams, teams, 1, false, input);
      good &= run_case(n, 1, 2, 1, false, input);
      good &= run_case(n, most / 2, 2, 1, true, input);
      /* the numbers of the exchanges wrap around */
      good &= run_case(n, most / teams, teams, 0xfffffffcu, true, input);
    }
    launcher_print(me, "%s - %d ranks on one GPU\n", good ? "ok" : "not ok", n);
    if (!good) code = EXIT_WRONG_DATA;
  }
  free(input);
  return code;
}

int main(int argc, char **argv)
{
  static const struct option_spec options[] = {
      {"exchanges", 0, OPTION_LONG, &most_exchanges, "N", "exchanges after each other (60)", 2,
       10000},
      {"rounds", 0, OPTION_LONG, &rounds, "N", "launches of each kind (3)", 1, 1 << 20},
      {"ranks", 0, OPTION_LONG, &most_ranks, "N", "at most so many (40)", 2, RANKS_MAX},
      {"seed", 0, OPTION_LONG, &seed, "N", "for counts and delays (1)", 0, 1 << 30},
      {0},
  };
  static const struct program program = {
      .name = "alltoallv_ranks",
      .summary = "the kernel of the AlltoAllV with several ranks on one GPU",
      .options = options,
      .types = "uint8",
      .run = run,
  };
  return launcher_main(argc, argv, &program);
}
