/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of --bench, from times that are known: divided by the calls, of the slowest rank,
 * their median and quartiles, and what is calculated from them. Here stands the test's own
 * cudaEventElapsedTime and cudaGraphLaunch. */
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "bench.h"
#include "unit.h"

enum { REPETITIONS = 11, LAUNCHES = 5, RANKS = 2, VARIANTS = 2, SIZES = 14 };

static _Thread_local int calls, me_now;

/* Repetition i of the one that is timed takes i + 1 ms, in a mixed order; on one of the two ranks
 * it takes longer. A graph's first launch is not one of them. */
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t stop)
{
  (void)start, (void)stop;
  /* of each size the first launch of the graphs, and then the repetitions */
  const int variant = calls % 2, i = calls / 2 % (1 + REPETITIONS) - 1;
  const int order = (i * 7 + 3) % REPETITIONS;
  *ms = (float)((order + 1) * (variant + 1)) / (order % 2 == me_now ? 1 : 2);
  calls++;
  return cudaSuccess;
}

static atomic_int launched;

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream)
{
  (void)graph, (void)stream;
  launched++;
  return cudaSuccess;
}

static void nothing(void *state, struct bench_size size, long slot, cudaStream_t stream)
{
  (void)state, (void)size, (void)slot, (void)stream;
}

static void fill(void *state, struct bench_size size)
{
  (void)state, (void)size;
}

static unsigned long long right(void *state, struct bench_size size)
{
  return (void)state, (void)size, 0;
}

static double moved(const struct bench *bench, const struct rank *me, struct bench_size size)
{
  return (void)bench, (void)me, 2.0 * (double)size.bytes;
}

static int run(const struct rank *me, const struct options *opt)
{
  const struct bench_variant variants[] = {
      {.name = "one", .call = nothing, .fill = fill, .check = right},
      {.name = "two", .call = nothing, .fill = fill, .check = right}};
  const struct bench bench = {.title = "test",
                              .variants = variants,
                              .nvariants = 2,
                              .rate = "busbw",
                              .moved = moved,
                              .limit = 100};
  cudaStream_t stream;
  me_now = me->rank;
  return cudaSetDevice(me->device) || cudaStreamCreate(&stream)
             ? EXIT_FAILED_CALL
             : bench_run(me, opt, &bench, stream);
}

/* The sorted times are 1 to 11 ms for 20 calls, 50 to 550 us each; of the other variant they are
 * twice as long. Above 64 MiB there are 5 calls. The sizes are those of a sweep without -f. */
static void test_numbers(void **state)
{
  static const char *const first[] = {
      "2048,512,float,2,5,one,300,50,150,450,550,0.00682667,0.0136533,1,100,0\n",
      "2048,512,float,2,5,two,600,100,300,900,1100,0.00341333,0.00682667,0.5,100,0\n"};
  static const struct program program = {
      .name = "test", .summary = "times", .types = "float", .run = run};
  char *argv[] = {"test", "--bench", "-b2K", "-e1023M", "-n4", "-G5", "-J", "test_bench.csv", NULL};
  char folder[] = "/tmp/test_bench.XXXXXX", line[256], sizes[256] = "";
  (void)state;
  assert_true(mkdtemp(folder) && chdir(folder) == 0);
  bench_shows_times = true;
  assert_int_equal(launcher_main(8, argv, &program), EXIT_VERIFIED);
  FILE *file = fopen("test_bench.csv", "r");
  assert_non_null(file);
  assert_non_null(fgets(line, sizeof line, file)); /* the names of the columns */
  for (int i = 0; fgets(line, sizeof line, file); i++) {
    if (i < 2) assert_string_equal(line, first[i]);
    if (i % 2) snprintf(sizes + strlen(sizes), 16, " %ld", atol(line));
  }
  assert_string_equal(sizes, " 2048 8192 32768 131072 262144 524288 1048576 2097152 4194304 8388608"
                             " 16777216 33554432 67108864 268435456");
  assert_non_null(strstr(line, ",two,2400,"));
  assert_int_equal(launched, RANKS * VARIANTS * SIZES * (1 + REPETITIONS) * LAUNCHES);
  fclose(file);
  assert_true(unlink("test_bench.csv") == 0 && rmdir(folder) == 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_numbers)};
  setenv("NTHREADS", "2", 1);
  setenv("CPU_STANDIN_QUIET", "1", 1);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
