/* SPDX-License-Identifier: Apache-2.0 */
/* options.c: defaults, every kind of argument, every kind of mistake. */
#include "options.h"

#include <stdio.h>

#include "unit.h"

#define TYPES "float double half bfloat16 int32"

static bool own_flag;
static long own_number;
static const struct option_spec own[] = {
    {"own-flag", 0, OPTION_FLAG, &own_flag, NULL, "a flag", 0, 0},
    {"own-number", 'z', OPTION_LONG, &own_number, "N", "a number", -5, 5},
    {0},
};

static struct options opt;
static char error[512];

/* Parses words separated by single blanks; an argument in a test has none. */
static int parse(const char *line)
{
  static char copy[256];
  char *argv[32] = {"program"};
  int argc = 1;
  snprintf(copy, sizeof copy, "%s", line);
  for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
  error[0] = '\0';
  own_flag = false;
  own_number = 0;
  return options_parse(&opt, own, TYPES, argc, argv, error, sizeof error);
}

static void accept(const char *line)
{
  int result = parse(line);
  if (result != 0) print_error("'%s': %s\n", line, error);
  assert_int_equal(result, 0);
  assert_string_equal(error, "");
}

/* One line that contains `text`. */
static void refuse(const char *line, const char *text)
{
  int result = parse(line);
  if (result != -1 || !strstr(error, text))
    print_error("'%s': %d '%s', wanted '%s'\n", line, result, error, text);
  assert_int_equal(result, -1);
  assert_non_null(strstr(error, text));
  assert_null(strchr(error, '\n'));
}

static void test_defaults(void **state)
{
  (void)state;
  accept("");
  assert_false(opt.help || opt.version || opt.bench || opt.digest);
  assert_string_equal(opt.type->name, "float");
  assert_int_equal(opt.count, 0);
  assert_in_range(opt.min_bytes, 1, 1024);
  assert_in_range(opt.max_bytes, 1 << 20, 1 << 30); /* less on the stand-in */
  assert_int_equal(opt.factor, 4);
  assert_int_equal(opt.iterations, 20);
  assert_int_equal(opt.warmup, 5);
  assert_true(opt.repetitions >= 11);
  assert_int_equal(opt.graph_launches, 0);
  assert_null(opt.output);
  assert_int_equal(opt.timeout, 120);
}

static void test_values(void **state)
{
  (void)state;
  accept("--bench -b 8 -e 2G -f 2 -n 7 -w 0 -d half -G 3 -J a.json -T 9 --repetitions 21");
  assert_true(opt.bench);
  assert_int_equal(opt.min_bytes, 8);
  assert_int_equal(opt.max_bytes, 2LL << 30);
  assert_int_equal(opt.factor, 2);
  assert_int_equal(opt.iterations, 7);
  assert_int_equal(opt.warmup, 0);
  assert_int_equal(opt.graph_launches, 3);
  assert_int_equal(opt.repetitions, 21);
  assert_int_equal(opt.timeout, 9);
  assert_string_equal(opt.type->name, "half");
  assert_string_equal(opt.output, "a.json");
  accept("--bench --minbytes=1k --maxbytes=1m --stepfactor=8 --iters=1 --warmup_iters=2 "
         "--datatype=int32 --cudagraph=1 --output=x.y.csv --timeout=86400");
  assert_int_equal(opt.min_bytes, 1 << 10);
  assert_int_equal(opt.max_bytes, 1 << 20);
  assert_string_equal(opt.output, "x.y.csv");
  assert_true(opt.sizes);
  accept("--bench -n 3 -G 1");
  assert_false(opt.sizes);
  accept("--count 3 --digest");
  assert_int_equal(opt.count, 3);
  assert_true(opt.digest);
  accept("--count 1023G");
  assert_int_equal(opt.count, 1023LL << 30);
  accept("--count 2 --count 5"); /* the last one counts */
  assert_int_equal(opt.count, 5);
  accept("--bench -b1K -e1K -d bfloat16"); /* no blank behind a letter */
  assert_int_equal(opt.min_bytes, 1024);
}

static void test_own_options(void **state)
{
  (void)state;
  accept("--own-flag -z -5");
  assert_true(own_flag);
  assert_int_equal(own_number, -5);
  refuse("-z 6", "--own-number: 6 is out of range; allowed: -5 to 5");
  refuse("--own-number -6", "allowed: -5 to 5");
  assert_int_equal(options_parse(&opt, NULL, TYPES, 1, (char *[]){"p", NULL}, error, 9), 0);
}

static void test_doubles(void **state)
{
  static const char *const no_numbers[] = {"x",     "1x",  "0x1p-3", "nan", "inf", "+1",
                                           "%20.5", "1,5", "",       ".",   "-",   "1K"};
  double ratio = 0.5;
  const struct option_spec real[] = {
      {"ratio", 'r', OPTION_DOUBLE, &ratio, "R", "a ratio", 0, 1},
      {0},
  };
  char *argv[] = {"p", "-r", "0.01", NULL};
  (void)state;
  assert_int_equal(options_parse(&opt, real, TYPES, 1, argv, error, sizeof error), 0);
  assert_true(ratio == 0.5);
  assert_int_equal(options_parse(&opt, real, TYPES, 3, argv, error, sizeof error), 0);
  assert_true(ratio == 0.01);
  argv[2] = "1e-3";
  assert_int_equal(options_parse(&opt, real, TYPES, 3, argv, error, sizeof error), 0);
  assert_true(ratio == 1e-3);
  argv[2] = "1";
  assert_int_equal(options_parse(&opt, real, TYPES, 3, argv, error, sizeof error), 0);
  assert_true(ratio == 1);
  for (size_t i = 0; i < sizeof no_numbers / sizeof *no_numbers; i++) {
    argv[2] = (char *)no_numbers[i];
    assert_int_equal(options_parse(&opt, real, TYPES, 3, argv, error, sizeof error), -1);
    assert_non_null(strstr(error, "is not a number; allowed: one such as 0.01 or 1e-3"));
  }
  static const char *const outside[] = {"0",      "-0.5",   "1.0001", "1e300", "1e999",
                                        "-1e999", "1e-301", "1e-320", "1e-999"};
  for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
    argv[2] = (char *)outside[i];
    assert_int_equal(options_parse(&opt, real, TYPES, 3, argv, error, sizeof error), -1);
    assert_non_null(strstr(error, "is out of range; allowed: 1e-300 to 1"));
  }
  assert_true(ratio == 1);
  argv[2] = "1e-300";
  assert_int_equal(options_parse(&opt, real, TYPES, 3, argv, error, sizeof error), 0);
}

/* A program's own rows take the place of shared ones. */
static void test_replaced_options(void **state)
{
  static size_t count = 7;
  static const char *pattern, *file;
  static long graphs;
  static const struct option_spec rows[] = {
      {"count", 0, OPTION_SIZE, &count, "N", "elements", 1, 100},
      {"output", 0, OPTION_STRING, &pattern, "PATTERN", "results", 0, 0},
      {"table", 'J', OPTION_STRING, &file, "FILE", "the table", 0, 0},
      {"minbytes", 0, OPTION_ABSENT, NULL, NULL, NULL, 0, 0},
      {"cudagraph", 'G', OPTION_LONG, &graphs, "N", "graphs", 0, 1},
      {0},
  };
  char *sweep[] = {"p", "-G", "1", NULL}, *own_output[] = {"p", "--output", "a", "-J", "b", NULL};
  char *good[] = {"p", "--count", "9", "--output", "a", "-J", "b", "--bench", NULL};
  char *large[] = {"p", "--count", "101", NULL}, *absent[] = {"p", "-b", "4", NULL};
  char *name[] = {"p", "--minbytes", "4", NULL};
  (void)state;
  assert_int_equal(options_parse(&opt, rows, TYPES, 8, good, error, sizeof error), 0);
  assert_int_equal(count, 9);
  assert_int_equal(opt.count, 0);
  assert_string_equal(pattern, "a");
  assert_string_equal(file, "b");
  assert_null(opt.output);
  assert_int_equal(options_parse(&opt, rows, TYPES, 3, large, error, sizeof error), -1);
  assert_non_null(strstr(error, "allowed: 1 to 100"));
  assert_int_equal(options_parse(&opt, rows, TYPES, 3, absent, error, sizeof error), -1);
  assert_non_null(strstr(error, "option '-b' is unknown"));
  assert_int_equal(options_parse(&opt, rows, TYPES, 3, name, error, sizeof error), -1);
  assert_non_null(strstr(error, "option '--minbytes' is unknown"));
  /* what is for --bench only is so by its name, but another --output is not */
  assert_int_equal(options_parse(&opt, rows, TYPES, 3, sweep, error, sizeof error), -1);
  assert_non_null(strstr(error, "--cudagraph is for --bench only"));
  assert_int_equal(options_parse(&opt, rows, TYPES, 5, own_output, error, sizeof error), 0);
}

static void test_numbers(void **state)
{
  static const char *const no_numbers[] = {"x",  "1x", "1.0", "1e6", "0x10", "1KK",
                                           "1T", "K",  "-",   "+1",  "--1",  "1-"};
  char line[64];
  (void)state;
  for (size_t i = 0; i < sizeof no_numbers / sizeof *no_numbers; i++) {
    snprintf(line, sizeof line, "--count %s", no_numbers[i]);
    refuse(line, "is not a number; allowed: a whole number with an optional suffix K, M or G");
  }
  refuse("-n 5K", "--iters: '5K' is not a number; allowed: a whole number");
  refuse("--count=", "is not a number");
  refuse("--count 0", "--count: 0 is out of range; allowed: 1 to 1024G");
  refuse("--count -1", "out of range");
  refuse("--count -1K", "out of range");
  refuse("--count 1025G", "out of range");
  refuse("--count 9223372036854775807", "out of range");
  refuse("--count 9223372036854775808", "out of range");
  refuse("--count 18446744073709551617", "out of range");
  refuse("--count 17179869185G", "out of range"); /* 2^64 + 1G after the shift */
  refuse("--count -99999999999999999999", "out of range");
  refuse("-f 1", "--stepfactor: 1 is out of range; allowed: 2 to");
  refuse("-n 0", "--iters: 0 is out of range; allowed: 1 to");
  refuse("-w -1", "--warmup_iters: -1 is out of range; allowed: 0 to");
  refuse("-G 1001", "--cudagraph: 1001 is out of range; allowed: 0 to 1000");
  refuse("-T 0", "--timeout: 0 is out of range; allowed: 1 to 86400");
  refuse("-T 86401", "out of range");
  refuse("-b 0", "--minbytes: 0 is out of range");
  refuse("--repetitions 0", "out of range");
}

static void test_blank_is_no_number(void **state)
{
  static const char *const texts[] = {"",    " 5",  "\t5", "\n5", "\v5",  "5 ",
                                      "5\t", "5K ", "5 K", "5\n", "5K\n", " "};
  char *argv[] = {"p", "--count", NULL, NULL};
  (void)state;
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    argv[2] = (char *)texts[i];
    assert_int_equal(options_parse(&opt, NULL, TYPES, 3, argv, error, sizeof error), -1);
    assert_non_null(strstr(error, "is not a number; allowed: a whole number with"));
    assert_null(strchr(error, '\n'));
  }
}

static void test_types(void **state)
{
  static const char *const names[] = {"float", "double", "half", "bfloat16", "int32"};
  char line[64];
  (void)state;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    snprintf(line, sizeof line, "-d %s", names[i]);
    accept(line);
    assert_string_equal(opt.type->name, names[i]);
  }
  refuse("-d quad", "--datatype: unknown type 'quad'; allowed: " TYPES);
  refuse("-d Float", "unknown type");
  refuse("-d floa", "unknown type");
  refuse("-d float16", "unknown type");
  refuse("-d loat", "unknown type");
  refuse("-d uint8", "unknown type"); /* known, but not one of this program's */
  refuse("-d=float", "unknown type");
  refuse("--datatype=", "unknown type");
}

static void test_unknown_and_stray(void **state)
{
  (void)state;
  refuse("--nonsense", "option '--nonsense' is unknown");
  refuse("--nonsense=5", "option '--nonsense=5' is unknown");
  refuse("-x", "option '-x' is unknown");
  refuse("--bench=1", "option '--bench' takes no argument");
  refuse("--count", "option '--count' needs an argument");
  refuse("-d", "option '-d' needs an argument");
  refuse("stray", "stray argument 'stray'");
  refuse("--digest stray", "stray argument 'stray'");
  refuse("stray --digest", "stray argument 'stray'");
  refuse("-- stray", "stray argument 'stray'");
  refuse("-", "stray argument '-'");
  refuse("--m 5", "is unknown or ambiguous"); /* minbytes, maxbytes */
  accept("--dig");                            /* a unique beginning will do, as with nccl-tests */
  assert_true(opt.digest);
}

static void test_together(void **state)
{
  (void)state;
  refuse("--bench -b 2K -e 1K", "--minbytes 2048 is larger than --maxbytes 1024");
  refuse("--bench -b 2G", "is larger than --maxbytes");
  static const char *const for_bench[][2] = {
      {"-b 2G", "minbytes"}, {"-e 2G", "maxbytes"},    {"-f 2", "stepfactor"},
      {"-n 3", "iters"},     {"-w 0", "warmup_iters"}, {"--repetitions 3", "repetitions"},
      {"-G 0", "cudagraph"}, {"-J a.json", "output"},  {"--digest -n 3 -G 1", "iters"},
  };
  for (size_t i = 0; i < sizeof for_bench / sizeof *for_bench; i++) {
    char text[96], with_bench[96];
    snprintf(text, sizeof text, "--%s is for --bench only; allowed: both together",
             for_bench[i][1]);
    refuse(for_bench[i][0], text);
    snprintf(with_bench, sizeof with_bench, "%s --bench -e 4G", for_bench[i][0]);
    if (!strstr(with_bench, "digest")) accept(with_bench);
  }
  refuse("--bench --count 4", "--count is not for --bench");
  refuse("--bench -J a.txt", "'a.txt' has a wrong ending; allowed: .json and .csv");
  refuse("--bench -J json", "has a wrong ending");
  refuse("--bench -J a.json.gz", "has a wrong ending");
  accept("--help -b 2K -e 1K"); /* help is given whatever else is said */
  assert_true(opt.help);
  accept("--version");
  assert_true(opt.version);
}

static void test_newlines_do_not_break_the_line(void **state)
{
  static char *const arguments[] = {"--no\nsense", "stray\n", "--count=a\nb", "-d\nx",
                                    "--iters=\n",  "-\n",     "--output=a\nb"};
  (void)state;
  for (size_t i = 0; i < sizeof arguments / sizeof *arguments; i++) {
    char *argv[] = {"p", arguments[i], "--bench", NULL};
    assert_int_equal(options_parse(&opt, NULL, TYPES, 3, argv, error, sizeof error), -1);
    assert_null(strchr(error, '\n'));
  }
}

/* The rows of files, in the table's order; a shared one behind the program's own. */
static void test_files(void **state)
{
  static const char *in, *out, *none, *word;
  static const struct option_spec rows[] = {
      {"in", 0, OPTION_INPUT, &in, "FILE", "is read", 0, 0},
      {"out", 'o', OPTION_RANK_OUTPUT, &out, "FILE", "is written", 0, 0},
      {"none", 0, OPTION_RANK_INPUT, &none, "FILE", "not given", 0, 0},
      {"word", 0, OPTION_STRING, &word, "WORD", "no file", 0, 0},
      {0},
  };
  char *argv[] = {"p", "--in", "a", "-o", "b%r", "--word", "c", "--bench", "-J", "d.csv", NULL};
  struct file_option files[MAX_FILES];
  (void)state;
  assert_int_equal(options_parse(&opt, rows, TYPES, 10, argv, error, sizeof error), 0);
  assert_int_equal(options_files(&opt, rows, files), 3);
  assert_string_equal(files[0].option, "--in");
  assert_string_equal(files[0].pattern, "a");
  assert_false(files[0].output || files[0].per_rank);
  assert_string_equal(files[1].option, "--out (-o)");
  assert_true(files[1].output && files[1].per_rank);
  assert_string_equal(files[2].option, "--output (-J)");
  assert_string_equal(files[2].pattern, "d.csv");
  assert_true(files[2].output && !files[2].per_rank);
}

static void test_long_text_does_not_overflow(void **state)
{
  static char text[5000], option[5010];
  char *argv[] = {"p", "--count", text, NULL}, *unknown[] = {"p", option, NULL};
  char small[16];
  (void)state;
  memset(text, 'x', sizeof text - 1);
  snprintf(option, sizeof option, "--%s", text);
  assert_int_equal(options_parse(&opt, own, TYPES, 3, argv, error, sizeof error), -1);
  assert_true(strlen(error) < sizeof error);
  assert_non_null(
      strstr(error, "is not a number; allowed: a whole number")); /* the reason is left */
  assert_int_equal(options_parse(&opt, own, TYPES, 2, unknown, error, sizeof error), -1);
  assert_int_equal(options_parse(&opt, own, TYPES, 3, argv, small, sizeof small), -1);
  assert_true(strlen(small) < sizeof small);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_defaults),
      cmocka_unit_test(test_values),
      cmocka_unit_test(test_own_options),
      cmocka_unit_test(test_doubles),
      cmocka_unit_test(test_replaced_options),
      cmocka_unit_test(test_numbers),
      cmocka_unit_test(test_blank_is_no_number),
      cmocka_unit_test(test_types),
      cmocka_unit_test(test_unknown_and_stray),
      cmocka_unit_test(test_together),
      cmocka_unit_test(test_newlines_do_not_break_the_line),
      cmocka_unit_test(test_files),
      cmocka_unit_test(test_long_text_does_not_overflow),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
