/* SPDX-License-Identifier: Apache-2.0 */
/* Where ranks end differently, the exit code is the one that README.md puts first. Each run is a
 * process of its own. */
#include <sys/wait.h>
#include <unistd.h>

#include "launcher.h"
#include "unit.h"

static int codes[3]; /* of the ranks */

static int end_with_code(const struct rank *me, const struct options *opt)
{
  (void)opt;
  return codes[me->rank];
}

static int in_a_process(const struct program *program, int argc, char **argv)
{
  int status;
  pid_t pid = fork();
  if (pid == 0) _exit(launcher_main(argc, argv, program));
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_true(WIFEXITED(status));
  return WEXITSTATUS(status);
}

static int exit_code(int first, int second, int third)
{
  static const struct program program = {.name = "test", .summary = "ends", .run = end_with_code};
  codes[0] = first, codes[1] = second, codes[2] = third;
  return in_a_process(&program, 1, (char *[]){"test", NULL});
}

static void test_first_in_the_order_wins(void **state)
{
  (void)state;
  static const int order[] = {3, 4, 1, 2, 77, 0};
  for (int i = 0; i < 6; i++)
    for (int later = i; later < 6; later++) {
      assert_int_equal(exit_code(order[i], order[later], 0), order[i]);
      assert_int_equal(exit_code(order[later], 0, order[i]), order[i]);
    }
}

/* A job that makes progress may take longer than its timeout. */
static int take_steps(const struct rank *me, const struct options *opt)
{
  (void)me;
  for (int i = 0; i < 40; i++) {
    launcher_step("one of many");
    usleep((useconds_t)opt->timeout * 50000);
  }
  return EXIT_VERIFIED;
}

static void test_progress(void **state)
{
  (void)state;
  static const struct program program = {.name = "test", .summary = "goes on", .run = take_steps};
  char *argv[] = {"test", "--timeout", "3", NULL};
  assert_int_equal(in_a_process(&program, 3, argv), EXIT_VERIFIED);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_first_in_the_order_wins),
                                     cmocka_unit_test(test_progress)};
  setenv("NTHREADS", "3", 1);
  setenv("CPU_STANDIN_QUIET", "1", 1);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
