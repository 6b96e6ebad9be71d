/* SPDX-License-Identifier: Apache-2.0 */
/* What the test cases of the operators have in common: the memory of a handle without a handle, its
 * copy on the host, and data of several kinds. */
#ifndef SPARSE_WORLD_H
#define SPARSE_WORLD_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "ops.h"

#ifdef CPU_STANDIN
enum { ON_GPU = false };
#else
enum { ON_GPU = true };
#endif

/* Device memory in `m`, and what the host believes to be there. The operators run on the device;
 * the cases apply straightforward code to the host's side and compare. */
struct world {
  struct sparse_memory m;
  cudaStream_t stream;
  char *gradient; /* device, room for n + 16 floats */
  struct sparse_state *state;
  float *residual, *dense;
  struct sparse_pair *offered, *received, *gathered;
  size_t lists; /* pairs in each of the three */
};

struct test {
  const struct rank *me;
  cudaStream_t stream;
  uint64_t random;
  int code;
};

enum kind { RANDOM, TIES, EQUAL, ZERO, DENORMAL, NONFINITE, KINDS };

uint32_t next_random(struct test *t);
float element(struct test *t, enum kind kind);

void world_open(struct world *w, struct test *t, size_t n, size_t k, int nranks);
void world_close(struct world *w);

/* All of the host's side to the device; and back, after which the host's side is what the device
 * had. push and pull wait. */
void world_push(struct world *w);
void world_pull(struct world *w);

/* A list of ascending indices in [begin, end), about one of `gap`; returns how many. */
size_t random_list(struct test *t, struct sparse_pair *pairs, size_t most, uint64_t begin,
                   uint64_t end, uint32_t gap, enum kind kind);

/* What is pending in the residual of a world whose gathered list has `count` entries. */
void expect_cleared(const struct world *w, size_t count, float *residual);

bool same_bits(const void *a, const void *b, size_t bytes, const char *what);
bool same_number(uint64_t got, uint64_t expected, const char *what);

/* Prints `ok - what` or `not ok - what`, the same on all ranks. Collective. */
void report(struct test *t, bool good, const char *what);

/* For adds: the one NaN that GPUs make. */
float added(float a, float b);

#define OPSCHECK(call) NCCLCHECK(call)

/* ---- the cases ------------------------------------------------------------------------------ */

void test_local_pass(struct test *t); /* selection.c */
void test_guess(struct test *t);
void test_selection(struct test *t, bool quick);
void test_reduce(struct test *t); /* sums.c */

#endif
