/* SPDX-License-Identifier: Apache-2.0 */
/* options.c: values, and every kind of mistake. What a user reads is in tests/cli/cases/common.tsv.
 */
#include "options.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "unit.h"

#define TYPES "float double half bfloat16 int32"

static struct options opt;
static char error[512];

/* A program's own rows, two of them in the place of shared ones. */
static struct {
  bool flag;
  long number, graphs;
  double ratio;
  size_t count;
  int choice;
  const char *in, *out, *table;
} own;
static const struct option_spec rows[] = {
    {"flag", 0, OPTION_FLAG, &own.flag, NULL, "a flag", 0, 0},
    {"number", 'z', OPTION_LONG, &own.number, "N", "a number", -5, 5},
    {"ratio", 'r', OPTION_DOUBLE, &own.ratio, "R", "a ratio", 0, 1},
    {"choice", 0, OPTION_CHOICE, &own.choice, "one|two", "a word", 0, 0},
    {"in", 0, OPTION_INPUT, &own.in, "FILE", "is read", 0, 0},
    {"out", 0, OPTION_RANK_OUTPUT, &own.out, "FILE", "is written", 0, 0},
    {"count", 0, OPTION_SIZE, &own.count, "N", "elements", 1, 1LL << 40},
    {"table", 'J', OPTION_OUTPUT, &own.table, "FILE", "the table", 0, 0},
    {"minbytes", 'b', OPTION_ABSENT, NULL, NULL, NULL, 0, 0},
    {0},
};

/* Parses words separated by |. */
static int parse(const struct option_spec *table, const char *line)
{
  static char copy[8192];
  char *argv[32] = {"program"}, *rest = copy;
  int argc = 1;
  snprintf(copy, sizeof copy, "%s", line);
  while (*line && rest) argv[argc++] = strsep(&rest, "|");
  error[0] = '\0';
  memset(&own, 0, sizeof own);
  return options_parse(&opt, table, TYPES, argc, argv, error, sizeof error);
}

static void accept(const struct option_spec *table, const char *line)
{
  const int result = parse(table, line);
  if (result != 0) print_error("'%s': %s\n", line, error);
  assert_int_equal(result, 0);
}

static void refuse(const struct option_spec *table, const char *line, const char *text)
{
  const int result = parse(table, line);
  if (result != -1 || !strstr(error, text))
    print_error("'%s': %d '%s', wanted '%s'\n", line, result, error, text);
  assert_int_equal(result, -1);
  assert_non_null(strstr(error, text));
  assert_null(strchr(error, '\n'));
}

static void test_values(void **state)
{
  (void)state;
  accept(NULL, "");
  assert_string_equal(opt.type->name, "float");
  assert_true(opt.factor == 0 && opt.iterations == 20 && opt.warmup == 5 && opt.repetitions >= 11);
  assert_true(opt.count == 0 && !opt.output && opt.timeout == 120);
  accept(NULL, "--bench|-b|8|-e|2G|-f2|-n|7|-w|0|-d|half|--cudagraph=3|-J|a.b.json|-T|86400");
  assert_true(opt.bench && opt.min_bytes == 8 && opt.max_bytes == 2ULL << 30 && opt.factor == 2);
  assert_true(opt.iterations == 7 && opt.warmup == 0 && opt.graph_launches == 3 && opt.sizes);
  assert_string_equal(opt.type->name, "half");
  assert_string_equal(opt.output, "a.b.json");
  accept(NULL, "--count|2|-T|9|--help|--version");
  assert_false(opt.harness);
  for (size_t i = 0; i < 3; i++) {
    accept(rows, ((const char *[]){"--bench", "-d|float", "--count|9"})[i]); /* rows has --count */
    assert_true(opt.harness);
  }
  accept(NULL, "--help|-b|2K|-e|1K"); /* help is given whatever else is said */
  accept(rows, "--flag|-z|-5|-r|1e-3|--count|9|-J|b.csv|--choice|two|--bench");
  assert_true(own.flag && own.number == -5 && own.ratio == 1e-3 && own.count == 9);
  assert_true(own.choice == 1 && opt.count == 0 && !opt.output);
  assert_string_equal(own.table, "b.csv");
}

static void test_numbers(void **state)
{
  static const char whole[] = "; allowed: a whole number, optionally with K, M or G";
  static const char real[] = "; allowed: a number such as 0.01 or 1e-3";
  (void)state;
  refuse(NULL, "--count|0x10", whole);
  refuse(NULL, "--count|1KK", whole);
  refuse(NULL, "--count|", whole);
  refuse(NULL, "-n|5K", "--iters: cannot read '5K'; allowed: a whole number");
  refuse(rows, "-r|nan", real);
  refuse(rows, "-r|1K", real);
  refuse(rows, "-r|0", "is out of range; allowed: 1e-300 to 1");
  refuse(rows, "-r|1e999", "is out of range; allowed: 1e-300 to 1");
  refuse(NULL, "--count|0", "is out of range; allowed: 1 to 1099511627776");
  refuse(NULL, "--count|17179869185G", "is out of range");
  refuse(rows, "-z|6", "--number: 6 is out of range; allowed: -5 to 5");
}

static void test_words(void **state)
{
  static char text[5000];
  (void)state;
  refuse(NULL, "--digest|-n|3|-G|1", "--iters needs --bench");
  /* known, but not one of this program's */
  refuse(NULL, "-d|uint8", "unknown type 'uint8'; allowed: " TYPES);
  refuse(rows, "--choice|on", "unknown 'on'; allowed: one|two");
  refuse(rows, "-b|4", "option '-b' is unknown");
  refuse(NULL, "--count", "option '--count' needs an argument");
  refuse(NULL, "--|stray", "stray argument 'stray'");
  refuse(NULL, "--bench|-J|a.json.gz", "has a wrong ending");
  refuse(NULL, "--no\nsense", "'--no?sense' is unknown");
  memset(text, 'x', sizeof text - 1);
  memcpy(text, "--count|", 8);
  refuse(NULL, text, "; allowed: a whole number"); /* the reason is not cut off */
}

static void test_files(void **state)
{
  static const struct {
    const char *line, *says;
    int rank, ranks;
  } cases[] = {{"--in|in|--out|x", "one file for 2 ranks; write %r", 1, 2},
               {"--in|in|--out|in", "--out and --in are the same file: in", 0, 1},
               {"--in|in|--out|./folder/..//in", "--out and --in are the same file: ", 0, 1},
               {"--in|in|--out|hard", "--out and --in are the same file: hard", 0, 1},
               {"--out|folder/%r.csv|-J|link1/0.csv", "are the same file: ", 0, 1},
               {"--out|b%r.csv|-J|b1.csv", "--out and --table are the same file: ", 0, 2},
               {"--out|link%r/x", "the same file: link1/x (on ranks 1 and 2)", 1, 3},
               {"--out|/dev/null|--in|/dev/null", "", 0, 1},
               {"--out|folder", "cannot write folder: Is a directory", 0, 1},
               {"--out|/nowhere/%r", "cannot write /nowhere/1: No such file", 1, 2},
               {"--in|/nowhere|--out|folder/test.%r", "", 1, 2}};
  char home[] = "/tmp/test_options.XXXXXX";
  (void)state;
  assert_true(mkdtemp(home) && chdir(home) == 0);
  FILE *in = fopen("in", "w");
  assert_true(in && fclose(in) == 0 && link("in", "hard") == 0 && mkdir("folder", 0777) == 0 &&
              symlink("folder", "link1") == 0 && symlink("folder", "link2") == 0);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    accept(rows, cases[i].line);
    const int result =
        options_check_files(&opt, rows, cases[i].rank, cases[i].ranks, error, sizeof error);
    if (!strstr(error, cases[i].says)) print_error("'%s', wanted '%s'\n", error, cases[i].says);
    assert_non_null(strstr(error, cases[i].says));
    assert_int_equal(result, *cases[i].says ? -1 : 0);
  }
  assert_true(rmdir("folder") == 0); /* nothing has been left in it */
  assert_true(unlink("in") == 0 && unlink("hard") == 0 && unlink("link1") == 0 &&
              unlink("link2") == 0 && rmdir(home) == 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_values), cmocka_unit_test(test_numbers),
                                     cmocka_unit_test(test_words), cmocka_unit_test(test_files)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
