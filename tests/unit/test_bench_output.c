/* SPDX-License-Identifier: Apache-2.0 */
/* bench_output.c: the table and the files, with times that are there and times that are not. */
#include "bench_output.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "unit.h"

static const struct rank me = {.nranks = 4};  /* as the table shows it, */
static const struct rank job = {.nranks = 1}; /* and who really is here */
static const struct bench_variant variants[] = {{.name = "plain"}, {.name = "registered"}};

static double moved(const struct bench *what, const struct rank *rank, struct bench_size size)
{
  (void)what, (void)rank;
  return 1.5 * (double)size.bytes;
}

static const char *const patterns[] = {"uniform", "skewed"};
static const struct bench bench = {
    .title = "A title", .variants = variants, .nvariants = 2, .rate = "busbw", .moved = moved};
static const struct bench_row rows[] = {
    {{.bytes = 4000, .count = 1000},
     {{8.0, 7.5, 7.75, 9.0, 10.0, 0}, {4.0, 3.5, 3.75, 4.5, 5.0, 0}}},
    {{.series = 1, .bytes = 8000, .count = 2000},
     {{NAN, NAN, NAN, NAN, NAN, 3}, {16.0, 15.0, 15.5, 16.5, 17.0, 0}}},
};
static char folder[] = "/tmp/test_bench_output.XXXXXX";
static char path[64];

/* Writes a file of the rows and returns its text. */
static const char *write_file(const char *name, const struct bench *what)
{
  static char text[8192];
  struct options opt = {.type = datatype_find("float"),
                        .output = path,
                        .graph_launches = 2,
                        .iterations = 20,
                        .warmup = 5,
                        .repetitions = 11};
  struct bench_output out = {.bench = what, .opt = &opt, .me = &me};
  snprintf(path, sizeof path, "%s/%s", folder, name);
  assert_int_equal(bench_output_start(&out), 0);
  assert_int_equal(access(path, F_OK), -1); /* not before it is complete */
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) bench_output_row(&out, &rows[i]);
  bench_output_finish(&out);
  assert_int_equal(output_files_publish(&job, &(struct output_file *){&out.file}, 1),
                   EXIT_VERIFIED);

  FILE *file = fopen(path, "r");
  assert_non_null(file);
  text[fread(text, 1, sizeof text - 1, file)] = '\0';
  fclose(file);
  assert_int_equal(unlink(path), 0);
  return text;
}

static void test_csv(void **state)
{
  (void)state;
  assert_string_equal(
      write_file("out.csv", &bench),
      "bytes,count,type,ranks,graph,variant,us,us_min,us_q1,us_q3,us_max,algbw,busbw,ratio,limit,"
      "wrong\n"
      "4000,1000,float,4,2,plain,8.0000,7.5000,7.7500,9.0000,10.0000,0.5000,0.7500,1.0000,,0\n"
      "4000,1000,float,4,2,registered,4.0000,3.5000,3.7500,4.5000,5.0000,1.0000,1.5000,2.0000,,0\n"
      "8000,2000,float,4,2,plain,,,,,,,,,,3\n"
      "8000,2000,float,4,2,registered,16.0000,15.0000,15.5000,16.5000,17.0000,0.5000,0.7500,,,0\n");
}

static void test_json(void **state)
{
  (void)state;
  const char *text = write_file("out.json", &bench);
  assert_non_null(strstr(text, "\"title\": \"A title\""));
  assert_non_null(strstr(text, "\"ranks\": 4,"));
  assert_non_null(strstr(
      text, "{\"bytes\": 4000, \"count\": 1000, \"variant\": \"registered\", \"us\": 4.0000, "
            "\"us_min\": 3.5000, \"us_q1\": 3.7500, \"us_q3\": 4.5000, \"us_max\": 5.0000, "
            "\"algbw\": 1.0000, \"busbw\": 1.5000, \"ratio\": 2.0000, \"wrong\": 0}"));
  assert_non_null(strstr(text,
                         "\"variant\": \"plain\", \"us\": null, \"us_min\": null, \"us_q1\": null, "
                         "\"us_q3\": null, \"us_max\": null, \"algbw\": null, \"busbw\": null, "
                         "\"ratio\": null, \"wrong\": 3}"));
  assert_null(strstr(text, "nan"));
  assert_null(strstr(text, ",\n  ]"));
}

static void test_series_have_a_column(void **state)
{
  struct bench with_series = bench;
  (void)state;
  with_series.series = patterns;
  with_series.nseries = 2;
  with_series.series_name = "pattern";
  with_series.rate = "wire";
  with_series.limit = 2;
  const char *text = write_file("out.csv", &with_series);
  assert_non_null(strstr(text, "pattern,bytes,count,type,ranks,graph,variant,us,us_min,us_q1,us_q3,"
                               "us_max,algbw,wire,ratio,limit,wrong\n"));
  assert_non_null(strstr(text, "uniform,4000,1000,float,4,2,plain,8.0000,"));
  assert_non_null(strstr(text, "skewed,8000,2000,float,4,2,plain,,"));
  text = write_file("out.json", &with_series);
  assert_non_null(strstr(text, "{\"pattern\": \"skewed\", \"bytes\": 8000, "));
  assert_non_null(strstr(text, "\"wire\": 0.7500"));
}

static void test_unwritable(void **state)
{
  struct options opt = {.type = datatype_find("float"), .output = "/nowhere/out.csv"};
  struct bench_output out = {.bench = &bench, .opt = &opt, .me = &me};
  (void)state;
  assert_int_equal(bench_output_start(&out), -1);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_csv),
      cmocka_unit_test(test_json),
      cmocka_unit_test(test_series_have_a_column),
      cmocka_unit_test(test_unwritable),
  };
  if (!mkdtemp(folder)) return 1;
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  rmdir(folder);
  return failed;
}
