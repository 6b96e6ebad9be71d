/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks of the direct AllReduce (02_allreduce_sm/lib) agree on without asking. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "unit.h"

#include "allreduce_internal.h"

static const struct allreduce_limits LIMITS = {{264, 264, 264, 132},
                                               ALLREDUCE_LL_BYTES,
                                               ALLREDUCE_ONEHOP_BYTES,
                                               ALLREDUCE_TWOHOP_BYTES,
                                               ALLREDUCE_SLOT_BYTES};

static size_t slots_at(int n)
{
  return allreduce_lines_of(n, ALLREDUCE_PUSH).at;
}

/* Lines and escapes of the first `bytes` of a part have room in it. */
static bool has_room(struct allreduce_lines l, size_t bytes)
{
  return allreduce_escape_at(l, 0) < l.part && allreduce_escape_at(l, bytes - 16) >= bytes;
}

/* Small vectors as LL lines, larger ones as bare lines in one hop, then in two hops, the largest by
 * pushes; never more blocks than there may be, nor lines or slots than have room. */
static void test_choice(void **state)
{
  (void)state;
  for (int n = 2; n <= ALLREDUCE_MAX_RANKS; n++) {
    int last = ALLREDUCE_LL;
    for (size_t bytes = 1; bytes < (size_t)1 << 33; bytes += bytes / 7 + 1)
      for (size_t blocks = 1; blocks <= 264; blocks += 263) {
        struct allreduce_limits limits = LIMITS;
        for (int m = 0; m < ALLREDUCE_METHODS; m++) limits.blocks[m] = blocks;
        const struct allreduce_launch s = allreduce_choose(bytes, n, limits);
        assert_true(s.method >= (enum allreduce_method)last);
        last = (int)s.method;
        assert_in_range(s.blocks, 1, blocks);
        assert_true(s.threads >= 128 && s.threads <= 512 && s.threads % 32 == 0);
        assert_true(n <= s.threads);
        const struct allreduce_lines l = allreduce_lines_of(n, s.method);
        if (s.method == ALLREDUCE_LL) assert_true((bytes + 7) / 8 * 16 <= l.part);
        if (s.method == ALLREDUCE_ONEHOP) assert_true(has_room(l, (bytes + 15) / 16 * 16));
        const size_t hop = (size_t)allreduce_slice_lines(bytes, n) * ALLREDUCE_LINE;
        if (s.method == ALLREDUCE_TWOHOP)
          assert_true(hop * (size_t)n >= bytes && has_room(l, 2 * hop));
        const size_t slots = ALLREDUCE_SLOTS * (size_t)(n - 1) * (size_t)s.blocks;
        if (s.method == ALLREDUCE_PUSH)
          assert_true(s.slot >= 16384 - 127 && slots * s.slot <= ALLREDUCE_SLOT_BYTES);
      }
    assert_int_equal(last, ALLREDUCE_PUSH);
  }
}

static void test_limits(void **state)
{
  (void)state;
  const struct allreduce_limits none = {{264, 264, 264, 132}, 0, 0, 0, 2 * 2 * 128};
  const struct allreduce_limits lines = {{264, 264, 264, 132}, ALLREDUCE_LL_BYTES, 0, 0, 1 << 20};
  for (int n = 2; n <= ALLREDUCE_MAX_RANKS; n++) {
    const size_t most = allreduce_onehop_bytes(ALLREDUCE_ONEHOP_BYTES, n);
    assert_true(has_room(allreduce_lines_of(n, ALLREDUCE_ONEHOP), (most + 15) / 16 * 16));
  }
  assert_int_equal(allreduce_choose(1, 2, none).method, ALLREDUCE_PUSH);
  assert_int_equal(allreduce_choose(16 << 10, 2, LIMITS).method, ALLREDUCE_LL);
  assert_int_equal(allreduce_choose((16 << 10) + 4, 2, LIMITS).method, ALLREDUCE_ONEHOP);
  assert_int_equal(allreduce_choose(2 << 20, 2, LIMITS).method, ALLREDUCE_ONEHOP);
  assert_int_equal(allreduce_choose((2 << 20) + 4, 2, LIMITS).method, ALLREDUCE_TWOHOP);
  assert_int_equal(allreduce_choose(16 << 20, 2, LIMITS).method, ALLREDUCE_TWOHOP);
  assert_int_equal(allreduce_choose((16 << 20) + 4, 2, LIMITS).method, ALLREDUCE_PUSH);
  assert_int_equal(allreduce_choose((size_t)1 << 30, 2, LIMITS).blocks, 132); /* its own limit */
  assert_int_equal(allreduce_choose(192 << 10, 4, LIMITS).method, ALLREDUCE_ONEHOP);
  assert_int_equal(allreduce_choose(256 << 10, 4, LIMITS).method, ALLREDUCE_TWOHOP);
  assert_int_equal(allreduce_choose(16 << 20, 4, LIMITS).method, ALLREDUCE_TWOHOP);
  assert_int_equal(allreduce_choose((16 << 10) + 4, 2, lines).method, ALLREDUCE_PUSH);
  assert_int_equal(allreduce_choose(1 << 20, 2, none).slot, 256); /* a block is all there is */
  assert_int_equal(allreduce_choose(1 << 20, 2, none).blocks, 1);
}

/* The chunks of all slices, rounds and blocks are the vector, each word once. They begin at lines
 * of memory and fit into their slots, and slots do not meet. */
static void check_chunks(size_t skip, size_t bytes, int n, int blocks, size_t most)
{
  static const _Alignas(128) char vector[128] = {0};
  const struct allreduce_chunks c =
      allreduce_chunks_of(vector + skip % 128, bytes, n, blocks, most);
  const size_t words = (skip % 128 + bytes + 15) / 16;
  unsigned char times[4096] = {0};
  assert_true(c.chunk * ALLREDUCE_WORD <= most && words <= sizeof times);
  for (int p = 0; p < n; p++)
    for (uint32_t round = 0; round < c.rounds; round++)
      for (int b = 0; b < blocks; b++) {
        uint32_t many = 0;
        const size_t at = allreduce_chunk_at(c, p, round, b, blocks, &many);
        assert_true(at % 8 == 0 && many <= c.chunk);
        for (size_t i = at; i < at + many; i++) times[i]++;
      }
  for (size_t i = 0; i < words; i++) assert_int_equal(times[i], 1);
  for (size_t i = words; i < sizeof times; i++) assert_int_equal(times[i], 0);
  size_t end = slots_at(n);
  for (int i = 1; i < n; i++)
    for (int b = 0; b < blocks; b++)
      for (uint32_t round = 0; round < ALLREDUCE_SLOTS; round++) {
        assert_true(allreduce_slot_at(c, i, round, b, blocks) >= end);
        end = allreduce_slot_at(c, i, round, b, blocks) + c.chunk * ALLREDUCE_WORD;
      }
  assert_true(end <= slots_at(n) + (size_t)(n - 1) * (size_t)blocks * 2 * most);
}

static void test_chunks(void **state)
{
  (void)state;
  for (int n = 2; n <= 9; n++)
    for (size_t skip = 0; skip < 256; skip += 14)
      for (size_t bytes = 1; bytes < 60000; bytes += bytes / 3 + 1)
        for (int blocks = 1; blocks <= 5; blocks += 2)
          for (size_t most = 128; most <= 2048; most *= 4)
            check_chunks(skip, bytes, n, blocks, most);
}

/* A flag that counts shows as many chunks or more of its call, however many there are. */
static void test_counts(void **state)
{
  (void)state;
  const uint64_t tag = allreduce_tag(((uint64_t)1 << 32) + 5, 77);
  for (uint32_t chunks = 0; chunks < 200000; chunks += 13) {
    assert_true(allreduce_counts(allreduce_counted(tag, chunks), tag, chunks));
    assert_true(allreduce_counts(allreduce_counted(tag, chunks + 2), tag, chunks));
    assert_false(allreduce_counts(allreduce_counted(tag, chunks), tag, chunks + 1));
    assert_false(allreduce_counts(allreduce_counted(tag + 1, chunks), tag, chunks));
    assert_false(allreduce_counts(allreduce_counted(tag - (1 << 16), chunks + 1), tag, chunks));
  }
}

/* A tag shows number, count and type; parts of the scratch memory do not meet. */
static void test_scratch(void **state)
{
  (void)state;
  assert_true(allreduce_check(10, 7, 0) != allreduce_check(11, 7, 0));
  assert_true(allreduce_check(10, 7, 0) != allreduce_check(10, 2, 0));
  assert_true(allreduce_epoch(allreduce_tag(((uint64_t)1 << 32) + 5, 0xffff)) ==
              ((uint64_t)1 << 32) + 5);
  for (int n = 2; n <= ALLREDUCE_MAX_RANKS; n++) {
    size_t end = allreduce_flag_at(n, ALLREDUCE_ENDED, ALLREDUCE_MAX_BLOCKS - 1, n - 1) + 8;
    for (int m = ALLREDUCE_LL; m < ALLREDUCE_PUSH; m++) {
      const struct allreduce_lines l = allreduce_lines_of(n, (enum allreduce_method)m);
      assert_true(l.at >= end && l.at % 128 == 0 && l.part % 128 == 0);
      assert_true(l.half >= (size_t)n * l.part);
      end = l.at + 2 * (size_t)l.half;
    }
    assert_true(end <= slots_at(n));
  }
}

/* The numbers in allreduce.h are those of the code. */
static void header_says(const char *format, ...)
{
  static char text[1 << 16];
  char wanted[200];
  va_list args;
  FILE *file = fopen("02_allreduce_sm/lib/allreduce.h", "r"); /* from the top folder */
  assert_non_null(file);
  text[fread(text, 1, sizeof text - 1, file)] = '\0';
  fclose(file);
  va_start(args, format);
  vsnprintf(wanted, sizeof wanted, format, args);
  va_end(args);
  if (!strstr(text, wanted)) fail_msg("allreduce.h does not say: %s", wanted);
}

static void test_header(void **state)
{
  size_t least = SIZE_MAX, most = 0;
  (void)state;
  for (int n = 2; n <= ALLREDUCE_MAX_RANKS; n++) {
    const size_t mib = slots_at(n) >> 20;
    if (mib < least) least = mib;
    if (mib > most) most = mib;
  }
  header_says("takes scratch_bytes and %zu to %zu MiB more", least, most + 1);
  header_says("for pushed calls; 0: %zu MiB", ALLREDUCE_SLOT_BYTES >> 20);
  header_says("calls of up to %zu MiB are launched while", ALLREDUCE_TWOHOP_BYTES >> 20);
  header_says("is this late; 0: %d s, < 0: never", ALLREDUCE_TIMEOUT);
  header_says("The ranks compare %d bits", ALLREDUCE_CHECK_BITS);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_choice), cmocka_unit_test(test_limits),  cmocka_unit_test(test_chunks),
      cmocka_unit_test(test_counts), cmocka_unit_test(test_scratch), cmocka_unit_test(test_header),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
