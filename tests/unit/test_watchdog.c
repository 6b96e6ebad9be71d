/* SPDX-License-Identifier: Apache-2.0 */
/* watchdog.c: each test in a process of its own, since the watchdog ends the process. */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "launcher_backend.h"
#include "unit.h"

struct result {
  int code;
  long seconds;
  char text[1024]; /* of stderr */
};

static struct result run_beside(void (*child)(void), void (*beside)(pid_t))
{
  struct result result;
  FILE *errors = tmpfile();
  int status;
  time_t start = time(NULL);
  assert_non_null(errors);
  pid_t pid = fork();
  if (pid == 0) {
    dup2(fileno(errors), STDERR_FILENO);
    child();
    _exit(0);
  }
  if (beside) beside(pid);
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_true(WIFEXITED(status));
  rewind(errors);
  result.text[fread(result.text, 1, sizeof result.text - 1, errors)] = '\0';
  fclose(errors);
  result.code = WEXITSTATUS(status);
  result.seconds = time(NULL) - start;
  return result;
}

static struct result run(void (*child)(void))
{
  return run_beside(child, NULL);
}

static void rank_without_progress(void)
{
  watchdog_start(2);
  watchdog_watch(0, 3, "start");
  watchdog_progress(1, "STEP 7: something");
  for (;;) { /* two ranks go on, one does not */
    watchdog_progress(0, "STEP 8: going on");
    watchdog_progress(2, "STEP 8: going on");
    usleep(100000);
  }
}

static void test_one_stuck_rank_is_enough(void **state)
{
  (void)state;
  struct result result = run(rank_without_progress);
  assert_int_equal(result.code, EXIT_TIMEOUT);
  assert_non_null(strstr(result.text, "[rank 1] no progress for 2 s in step: STEP 7: something\n"));
  assert_non_null(strstr(result.text, "[rank 0] "));
  assert_non_null(strstr(result.text, "[rank 2] "));
  assert_in_range(result.seconds, 2, 8);
}

static void other_process(void)
{
  watchdog_start(1);
  watchdog_watch(5, 1, "start"); /* not the process of rank 0: it gives that one time to speak */
  pause();
}

static void test_without_rank_0(void **state)
{
  (void)state;
  struct result result = run(other_process);
  assert_int_equal(result.code, EXIT_TIMEOUT);
  assert_non_null(strstr(result.text, "[rank 5] no progress for "));
  assert_in_range(result.seconds, 5, 12);
}

static void steady_progress(void)
{
  watchdog_start(3);
  watchdog_watch(0, 3, "start");
  watchdog_watch(0, 1, "end"); /* two have ended */
  /* the limit is more than a busy machine lets a thread wait */
  for (int i = 0; i < 45; i++) {
    watchdog_progress(0, "on and on");
    usleep(100000);
  }
  watchdog_stop();
  sleep(4); /* nobody watches any more */
}

static void test_progress_is_left_alone(void **state)
{
  (void)state;
  struct result result = run(steady_progress);
  assert_int_equal(result.code, 0);
  assert_string_equal(result.text, "");
}

static void stop_at_once(void)
{
  watchdog_start(86400);
  watchdog_watch(0, 1, "start");
  watchdog_progress(-1, "a thread that is no rank");
  watchdog_progress(1, "a rank of another process");
  watchdog_stop();
}

static void test_stop_does_not_wait(void **state)
{
  (void)state;
  struct result result = run(stop_at_once);
  assert_int_equal(result.code, 0);
  assert_in_range(result.seconds, 0, 1);
}

/* Ctrl-Z for longer than the limit. */
static void stop_and_continue(pid_t pid)
{
  sleep(1);
  kill(pid, SIGSTOP);
  sleep(5);
  kill(pid, SIGCONT);
}

static void slow_but_steady(void)
{
  watchdog_start(3);
  watchdog_watch(0, 1, "start");
  sleep(2); /* the stop comes after the first second, and is longer than the second one */
  sleep(1);
  watchdog_stop();
}

static void test_stopped_job_is_left_alone(void **state)
{
  (void)state;
  struct result result = run_beside(slow_but_steady, stop_and_continue);
  assert_int_equal(result.code, 0);
  assert_string_equal(result.text, "");
}

/* A rank that waits in stdio, for a pipe that nobody reads, has its locks. */
static void full_pipe(void)
{
  int ends[2];
  if (pipe(ends) != 0) _exit(99);
  dup2(ends[1], STDOUT_FILENO);
  dup2(ends[1], STDERR_FILENO);
  watchdog_start(1);
  watchdog_watch(0, 1, "start");
  for (;;) fprintf(stderr, "%01000d", 0), printf("%01000d", 0);
}

static void test_full_pipe_does_not_hold_it_up(void **state)
{
  (void)state;
  struct result result = run(full_pipe);
  assert_int_equal(result.code, EXIT_TIMEOUT);
  assert_in_range(result.seconds, 1, 8);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_one_stuck_rank_is_enough),
      cmocka_unit_test(test_without_rank_0),
      cmocka_unit_test(test_progress_is_left_alone),
      cmocka_unit_test(test_stop_does_not_wait),
      cmocka_unit_test(test_stopped_job_is_left_alone),
      cmocka_unit_test(test_full_pipe_does_not_hold_it_up),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
