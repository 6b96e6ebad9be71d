/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks of the direct AllReduce (02_allreduce_sm/lib) agree on without asking. */
#include "unit.h"

#include "allreduce_internal.h"

static const struct allreduce_limits LIMITS = {
    {264, 264, 264, 132}, ALLREDUCE_LL_BYTES, ALLREDUCE_WIDE_BYTES};

/* Small vectors as lines, larger ones as wide lines, the largest by two-shot; never more blocks
 * than there may be, nor lines than have room. */
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
        const struct allreduce_lines l = allreduce_lines_of(n, s.method != ALLREDUCE_LL);
        const size_t wide = (((bytes + 7) / 8 + 14) / 15 + 3) / 4 * 4;
        if (s.method == ALLREDUCE_LL) assert_true((bytes + 7) / 8 * 16 <= l.part);
        if (s.method == ALLREDUCE_WIDE) assert_true(wide * 128 <= l.part);
        const size_t slice = allreduce_hop_lines(wide, n);
        if (s.method == ALLREDUCE_TWOHOP)
          assert_true(n > 2 && slice * (size_t)n >= wide && 2 * slice * 128 <= l.part);
      }
    assert_int_equal(last, ALLREDUCE_TWOSHOT);
  }
}

static void test_limits(void **state)
{
  (void)state;
  const struct allreduce_limits none = {{264, 264, 264, 132}, 0, 0};
  const struct allreduce_limits lines = {{264, 264, 264, 132}, ALLREDUCE_LL_BYTES, 0};
  assert_int_equal(allreduce_choose(1, 2, none).method, ALLREDUCE_TWOSHOT);
  assert_int_equal(allreduce_choose(16 << 10, 2, LIMITS).method, ALLREDUCE_LL);
  assert_int_equal(allreduce_choose((16 << 10) + 4, 2, LIMITS).method, ALLREDUCE_WIDE);
  assert_int_equal(allreduce_choose(4 << 20, 2, LIMITS).method, ALLREDUCE_WIDE);
  assert_int_equal(allreduce_choose((4 << 20) + 4, 2, LIMITS).method, ALLREDUCE_TWOSHOT);
  assert_int_equal(allreduce_choose((size_t)1 << 30, 2, LIMITS).blocks, 132); /* its own limit */
  assert_int_equal(allreduce_choose(256 << 10, 4, LIMITS).method, ALLREDUCE_WIDE);
  assert_int_equal(allreduce_choose((256 << 10) + 4, 4, LIMITS).method, ALLREDUCE_TWOHOP);
  assert_int_equal(allreduce_choose(4 << 20, 4, LIMITS).method, ALLREDUCE_TWOSHOT);
  assert_int_equal(allreduce_choose((16 << 10) + 4, 2, lines).method, ALLREDUCE_TWOSHOT);
}

/* The slices, head and tail are the vector, each element once; slices begin at lines of memory. */
static void test_slices(void **state)
{
  (void)state;
  for (int n = 2; n <= 9; n++)
    for (size_t size = 2; size <= 8; size *= 2)
      for (size_t from = 0; from < 32; from += size)
        for (size_t to = 0; to < 16; to += size)
          for (size_t count = 0; count < 70; count++) {
            const char *base = NULL;
            unsigned char times[70] = {0};
            for (int rank = 0; rank < n; rank++) {
              const struct allreduce_slice s =
                  allreduce_slice_of(base + from, base + to, count, size, rank, n);
              const size_t word = s.misaligned ? 1 : ALLREDUCE_WORD / size;
              assert_int_equal(s.misaligned, from % 16 != to);
              if (!s.misaligned && s.first < s.end)
                assert_int_equal((to + s.head * size + s.first * ALLREDUCE_WORD) % 128, 0);
              for (size_t i = s.first * word; i < s.end * word; i++) times[s.head + i]++;
              for (size_t i = 0; s.has_edges && i < s.head; i++) times[i]++;
              for (size_t i = s.tail; s.has_edges && i < count; i++) times[i]++;
            }
            for (size_t i = 0; i < count; i++) assert_int_equal(times[i], 1);
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
  for (uint32_t check = 0; check < 1 << ALLREDUCE_CHECK_BITS; check++) { /* marks show its bits */
    const uint64_t tag = allreduce_tag(1000 + check, check);
    uint32_t shown = 0;
    for (int k = 0; k < ALLREDUCE_WIDE_PIECES; k++) {
      assert_in_range(allreduce_mark(tag, k), 1, 255);
      assert_true(allreduce_mark(tag, k) != allreduce_mark(tag + allreduce_tag(2, 0), k));
      for (int bit = 0; bit < ALLREDUCE_CHECK_BITS; bit++)
        if (allreduce_mark(tag, k) != allreduce_mark(tag ^ (1u << bit), k)) shown |= 1u << bit;
    }
    assert_int_equal(shown, (1 << ALLREDUCE_CHECK_BITS) - 1);
  }
  for (int n = 2; n <= ALLREDUCE_MAX_RANKS; n++) {
    size_t end = allreduce_flag_at(n, ALLREDUCE_ENDED, ALLREDUCE_MAX_BLOCKS - 1, n - 1) + 8;
    for (int wide = 0; wide < 2; wide++) {
      const struct allreduce_lines l = allreduce_lines_of(n, wide);
      for (uint64_t number = 2; number < 4; number++)
        for (int source = 0; source < n; source++) {
          assert_true(allreduce_lines_at(l, n, number, source) >= end);
          end = allreduce_lines_at(l, n, number, source) + l.part;
          assert_int_equal(l.part % 16, 0);
        }
      assert_int_equal(l.at % 128, 0);
      assert_int_equal(l.part % 128, 0);
    }
    assert_true(end <= allreduce_scratch_bytes(n));
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_choice),
      cmocka_unit_test(test_limits),
      cmocka_unit_test(test_slices),
      cmocka_unit_test(test_scratch),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
