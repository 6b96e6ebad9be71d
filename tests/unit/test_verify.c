/* SPDX-License-Identifier: Apache-2.0 */
/* The verifier must find what is wrong and nothing else: a test of the test. */
#include "verify.h"

#include <stdio.h>

#include "check.h"
#include <cpu_kernel.h>
#include "unit.h"
#include "verify_kernels.h"

enum { COUNT = 1000 };

static const char *const type_names[] = {"int8",   "uint8", "int32",    "uint32", "int64",
                                         "uint64", "half",  "bfloat16", "float",  "double"};
enum { TYPES = sizeof type_names / sizeof *type_names };

/* The device's memory, and the verifier of one rank. */
struct bench {
  struct rank me;
  struct verifier verifier;
  cudaStream_t stream;
  char *buffer, *output;
  const struct datatype *type;
};

/* The bits of a whole number by way of the compiler's own types. */
static uint64_t bits_of(const struct datatype *type, uint64_t number)
{
  uint64_t bits = 0;
  float single = (float)number;
  double twice = (double)number;
  switch (type->nccl) {
  case ncclFloat:
    memcpy(&bits, &single, 4);
    return bits;
  case ncclDouble:
    memcpy(&bits, &twice, 8);
    return bits;
  case ncclBfloat16:
    memcpy(&bits, &single, 4);
    assert_int_equal(bits & 0xFFFF, 0); /* else it is not exact */
    return bits >> 16;
  case ncclHalf:
    for (bits = 0; bits < 0x7C00; bits++)
      if (datatype_value(type, bits) == twice) return bits;
    fail();
    return 0;
  default:
    return number;
  }
}

static void open_bench(struct bench *b, const char *type, int rank, int nranks)
{
  *b = (struct bench){.me = {.rank = rank, .nranks = nranks}, .type = datatype_find(type)};
  CUDACHECK(cudaSetDevice(0));
  CUDACHECK(cudaStreamCreate(&b->stream));
  CUDACHECK(cudaMalloc((void **)&b->buffer, COUNT * 8));
  CUDACHECK(cudaMalloc((void **)&b->output, COUNT * 8));
  verifier_init(&b->verifier, &b->me, b->type, b->stream);
}

static void close_bench(struct bench *b)
{
  verifier_free(&b->verifier);
  CUDACHECK(cudaFree(b->buffer));
  CUDACHECK(cudaFree(b->output));
  CUDACHECK(cudaStreamDestroy(b->stream));
}

/* The stand-in's device memory is the host's, once the stream has done its work. */
static uint64_t read_bits(struct bench *b, const char *buffer, size_t i)
{
  uint64_t bits = 0;
  CUDACHECK(cudaStreamSynchronize(b->stream));
  memcpy(&bits, buffer + i * b->type->size, b->type->size);
  return bits;
}

static void write_bits(struct bench *b, char *buffer, size_t i, uint64_t bits)
{
  CUDACHECK(cudaStreamSynchronize(b->stream));
  memcpy(buffer + i * b->type->size, &bits, b->type->size);
}

static bool is_wide(const struct datatype *type)
{
  return type->nccl == ncclInt64 || type->nccl == ncclUint64;
}

/* The sums that an AllReduce would have made, from what the verifiers of all ranks fill in. */
static void all_reduce(struct bench *b)
{
  uint64_t sums[COUNT] = {0};
  for (int rank = 0; rank < b->me.nranks; rank++) {
    struct rank me = {.rank = rank, .nranks = b->me.nranks};
    struct verifier peer;
    verifier_init(&peer, &me, b->type, b->stream);
    verifier_fill(&peer, b->buffer, NULL, COUNT);
    for (size_t i = 0; i < COUNT; i++) {
      const uint64_t bits = read_bits(b, b->buffer, i);
      sums[i] += is_wide(b->type) ? bits : (uint64_t)datatype_value(b->type, bits);
    }
    verifier_free(&peer);
  }
  verifier_fill(&b->verifier, b->buffer, b->output, COUNT);
  for (size_t i = 0; i < COUNT; i++) {
    const uint64_t bits = bits_of(b->type, sums[i]);
    /* exact in the type: the order of additions cannot matter */
    assert_true(is_wide(b->type) || datatype_value(b->type, bits) == (double)sums[i]);
    assert_true(b->type->nccl != ncclInt64 || (int64_t)sums[i] >= 0);
    write_bits(b, b->output, i, bits);
  }
}

/* Calls `find` with stderr in `text`; returns the number of wrong elements. */
static unsigned long long caught(struct bench *b, unsigned long long (*find)(struct bench *b),
                                 char *text, size_t size)
{
  FILE *saved = stderr;
  *text = '\0';
  stderr = fmemopen(text, size, "w");
  assert_non_null(stderr);
  unsigned long long wrong = find(b);
  fclose(stderr);
  stderr = saved;
  return wrong;
}

static unsigned long long compare(struct bench *b)
{
  verifier_compare(&b->verifier, b->output, COUNT);
  return verifier_report(&b->verifier, "test");
}

static unsigned long long check(struct bench *b, char *text, size_t size)
{
  return caught(b, compare, text, size);
}

static void test_right_results_pass(void **state)
{
  static const int ranks[] = {1, 2, 3, 4, 7, 64};
  char text[512];
  (void)state;
  for (size_t t = 0; t < TYPES; t++)
    for (size_t r = 0; r < sizeof ranks / sizeof *ranks; r++) {
      struct bench b;
      open_bench(&b, type_names[t], ranks[r] - 1, ranks[r]);
      all_reduce(&b);
      assert_int_equal(check(&b, text, sizeof text), 0);
      assert_string_equal(text, "");
      close_bench(&b);
    }
}

/* One element after the other is made wrong: every one has to be found, by its place. */
static void find(struct bench *b, size_t i, uint64_t bits)
{
  char text[512], wanted[64];
  uint64_t right = read_bits(b, b->output, i);
  write_bits(b, b->output, i, bits);
  assert_int_equal(check(b, text, sizeof text), 1);
  snprintf(wanted, sizeof wanted, "test: element %zu is ", i);
  if (!strstr(text, wanted)) print_error("%s: '%s'\n", b->type->name, text);
  assert_non_null(strstr(text, wanted));
  write_bits(b, b->output, i, right);
  assert_int_equal(check(b, text, sizeof text), 0); /* the count starts over */
}

static void test_wrong_elements_are_found(void **state)
{
  (void)state;
  for (size_t t = 0; t < TYPES; t++) {
    struct bench b;
    open_bench(&b, type_names[t], 1, 3);
    all_reduce(&b);
    const uint64_t ones = ~0ULL >> (64 - 8 * b.type->size);
    const size_t places[] = {0, 1, COUNT / 2, COUNT - 2, COUNT - 1};
    for (size_t p = 0; p < sizeof places / sizeof *places; p++) {
      uint64_t right = read_bits(&b, b.output, places[p]);
      find(&b, places[p], ones); /* never written: NaN or -1 */
      for (size_t bit = 0; bit < 8 * b.type->size; bit++)
        find(&b, places[p], right ^ 1ULL << bit); /* the sign and the last place too */
    }
    close_bench(&b);
  }
}

static void swap(struct bench *b, size_t i, size_t j)
{
  const uint64_t first = read_bits(b, b->output, i);
  write_bits(b, b->output, i, read_bits(b, b->output, j));
  write_bits(b, b->output, j, first);
}

static void test_rounds_and_ranks_differ(void **state)
{
  struct bench b, other;
  size_t same = 0;
  char text[512];
  (void)state;
  open_bench(&b, "int32", 0, 2);
  open_bench(&other, "int32", 1, 2);
  verifier_fill(&b.verifier, b.buffer, NULL, COUNT);
  verifier_fill(&other.verifier, other.buffer, NULL, COUNT);
  for (size_t i = 0; i < COUNT; i++)
    same += read_bits(&b, b.buffer, i) == read_bits(&other, other.buffer, i);
  assert_true(same < 10);
  all_reduce(&b);
  verifier_next_round(&b.verifier);
  assert_true(check(&b, text, sizeof text) > COUNT - 10); /* results of the round before */
  close_bench(&b);
  close_bench(&other);
}

/* Everything outside [0, count) is left alone and not looked at. */
static void test_only_count_elements(void **state)
{
  struct bench b;
  (void)state;
  open_bench(&b, "half", 0, 1);
  CUDACHECK(cudaMemsetAsync(b.buffer, 0x11, COUNT * 2, b.stream));
  CUDACHECK(cudaMemsetAsync(b.output, 0x11, COUNT * 2, b.stream));
  verifier_fill(&b.verifier, b.buffer, b.output, 3);
  assert_int_not_equal(read_bits(&b, b.buffer, 2), 0x1111);
  assert_int_equal(read_bits(&b, b.output, 2), 0xFFFF);
  assert_int_equal(read_bits(&b, b.buffer, 3), 0x1111);
  assert_int_equal(read_bits(&b, b.output, 3), 0x1111);
  verifier_compare(&b.verifier, b.buffer, 3);
  assert_int_equal(verifier_report(&b.verifier, "test"), 0);
  close_bench(&b);
}

static unsigned long long digest(struct bench *b)
{
  const unsigned long long before = b->verifier.device->digest;
  verifier_digest(&b->verifier, b->output, COUNT);
  CUDACHECK(cudaStreamSynchronize(b->stream));
  return b->verifier.device->digest - before;
}

static void test_digest_sees_values_and_places(void **state)
{
  struct bench b;
  (void)state;
  open_bench(&b, "float", 0, 2);
  all_reduce(&b);
  const unsigned long long good = digest(&b);
  swap(&b, 4, 5);
  const unsigned long long swapped = digest(&b);
  write_bits(&b, b.output, COUNT - 1, 0);
  const unsigned long long wrong = digest(&b);
  assert_true(good != swapped && swapped != wrong && good != wrong);
  close_bench(&b);
}

/* What is said to have been wrong is what was compared, not what stands there later; all digits. */
static unsigned long long compare_and_mend(struct bench *b)
{
  verifier_compare(&b->verifier, b->output, COUNT);
  CUDACHECK(cudaMemsetAsync(b->output, 0, COUNT * 8, b->stream));
  return verifier_report(&b->verifier, "test");
}

static void test_what_was_compared_is_said(void **state)
{
  char text[512], wanted[512];
  struct bench b;
  (void)state;
  open_bench(&b, "int64", 0, 1);
  all_reduce(&b);
  snprintf(wanted, sizeof wanted,
           "test: element 3 is 1234567890123456789, expected %llu (2 elements wrong)\n",
           (unsigned long long)read_bits(&b, b.output, 3));
  write_bits(&b, b.output, 5, 8);
  write_bits(&b, b.output, 3, 1234567890123456789);
  assert_int_equal(caught(&b, compare_and_mend, text, sizeof text), 2);
  assert_string_equal(text, wanted);
  close_bench(&b);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_right_results_pass),
      cmocka_unit_test(test_wrong_elements_are_found),
      cmocka_unit_test(test_rounds_and_ranks_differ),
      cmocka_unit_test(test_only_count_elements),
      cmocka_unit_test(test_what_was_compared_is_said),
      cmocka_unit_test(test_digest_sees_values_and_places),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
