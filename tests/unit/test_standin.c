/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the CPU stand-in: does it behave as CUDA and NCCL do where the examples rely on it?
 *
 * Ranks are threads of this process; for ranks as processes, and for settings that are read once
 * per process, the program starts itself again with the name of a part as its first argument.
 * A failed check in any thread ends the program at once, so that no other rank waits for ever. */
#include "standin.h"

static void nothing_body(struct rank *me)
{
  REQUIRE(sum_over(me->comm, me->stream, 1) == me->n);
}

static void test_no_leaks(void **state)
{
  (void)state;
  int before = descriptors();
  for (int i = 0; i < 20; i++) run_ranks(3, nothing_body);
  REQUIRE(descriptors() == before);
}

int main(int argc, char **argv)
{
  make_patterns();
  if (argc == 5) {
    static const struct {
      const char *name;
      int (*run)(struct rank *me);
    } parts[] = {{"process", process_part},
                 {"hanging", hanging_part},
                 {"no-devices", no_devices_part},
                 {"settings", settings_part},
                 {"init", init_part}};
    struct rank me = {.rank = atoi(argv[2]), .n = atoi(argv[3])};
    for (int i = 0; i < NCCL_UNIQUE_ID_BYTES && argv[4][0] != '\0'; i++) {
      unsigned byte = 0;
      REQUIRE(sscanf(argv[4] + 2 * i, "%2x", &byte) == 1);
      me.id.internal[i] = (char)byte;
    }
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
      if (strcmp(parts[i].name, argv[1]) == 0) return parts[i].run(&me);
    return 98;
  }
  setenv("CPU_STANDIN_QUIET", "1", 0);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_processes), /* these three first: they start children */
      cmocka_unit_test(test_killed),
      cmocka_unit_test(test_settings),
      cmocka_unit_test(test_devices),
      cmocka_unit_test(test_memory),
      cmocka_unit_test(test_asynchrony),
      cmocka_unit_test(test_events),
      cmocka_unit_test(test_capture_errors),
      cmocka_unit_test(test_collectives),
      cmocka_unit_test(test_rank_order),
      cmocka_unit_test(test_rounding),
      cmocka_unit_test(test_groups),
      cmocka_unit_test(test_one_thread_for_all_ranks),
      cmocka_unit_test(test_two_streams),
      cmocka_unit_test(test_split),
      cmocka_unit_test(test_windows),
      cmocka_unit_test(test_registration),
      cmocka_unit_test(test_graphs),
      cmocka_unit_test(test_errors),
      cmocka_unit_test(test_failures),
      cmocka_unit_test(test_many_calls),
      cmocka_unit_test(test_many_ranks),
      cmocka_unit_test(test_no_leaks),
  };
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  return cmocka_run_group_tests_name("standin", tests, NULL, NULL);
}
