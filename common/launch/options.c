/* SPDX-License-Identifier: Apache-2.0 */
/* One table row per option; getopt_long does the splitting, this file the checking. */
#include "options.h"

#include <ctype.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "output_file.h"

#define FAIL(...) (snprintf(error, error_size, __VA_ARGS__), -1)

enum { MAX_OPTIONS = 64, FIRST_VALUE = 256 }; /* getopt's value of row i is FIRST_VALUE + i */

#define LEAST_DOUBLE 1e-300 /* below, doubles lose digits, and 1 / d may be infinite */

#ifdef CPU_STANDIN /* has less memory and less time */
#define DEFAULT_MAX_BYTES (1 << 20)
#define DEFAULT_MAX_TEXT "1M"
#else
#define DEFAULT_MAX_BYTES (1 << 30)
#define DEFAULT_MAX_TEXT "1G"
#endif

/* Whether a row of the program replaces this shared one. A row "bench" replaces all of --bench. */
static bool replaced(const struct option_spec *shared, const struct option_spec *own)
{
  for (; own && own->name; own++)
    if (strcmp(own->name, shared->name) == 0 || (own->letter && own->letter == shared->letter) ||
        (strcmp(own->name, "bench") == 0 && strncmp(shared->help, "--bench:", 8) == 0))
      return true;
  return false;
}

/* The program's own rows and then the shared ones, ended by a row without a name. */
static void build_table(struct option_spec *table, struct options *opt,
                        const struct option_spec *own)
{
  const struct option_spec shared[] = {
      {"count", 0, OPTION_SIZE, &opt->count, "SIZE",
       "elements per rank (1M; alltoallv_sm: 2K); not with --bench", 1, 1LL << 40},
      {"datatype", 'd', OPTION_TYPE, &opt->type, "TYPE", "data type (float)", 0, 0},
      {"bench", 0, OPTION_FLAG, &opt->bench, NULL, "measure a sweep of sizes", 0, 0},
      {"minbytes", 'b', OPTION_SIZE, &opt->min_bytes, "SIZE", "--bench: smallest size (16)", 1,
       1LL << 40},
      {"maxbytes", 'e', OPTION_SIZE, &opt->max_bytes, "SIZE",
       "--bench: largest size (" DEFAULT_MAX_TEXT ")", 1, 1LL << 40},
      {"stepfactor", 'f', OPTION_LONG, &opt->factor, "N",
       "--bench: next size = size * N (2 from 64K to 64M, else 4)", 2, 1 << 20},
      {"iters", 'n', OPTION_LONG, &opt->iterations, "N",
       "--bench: calls in one repetition, above 64M a quarter of them (20)", 1, 1000000},
      {"warmup_iters", 'w', OPTION_LONG, &opt->warmup, "N", "--bench: calls before timing (5)", 0,
       1000000},
      {"repetitions", 0, OPTION_LONG, &opt->repetitions, "N",
       "--bench: timed repetitions; their median is shown (11)", 1, 10001},
      {"cudagraph", 'G', OPTION_LONG, &opt->graph_launches, "N",
       "--bench: launch the calls as a CUDA graph, N times per repetition (0: no graph)", 0, 1000},
      {"output", 'J', OPTION_OUTPUT, &opt->output, "FILE",
       "--bench: write the table to FILE, which ends in .json or .csv", 0, 0},
      {"timeout", 'T', OPTION_LONG, &opt->timeout, "SECONDS",
       "end the job after SECONDS without progress (120)", 1, 86400},
      {"digest", 0, OPTION_FLAG, &opt->digest, NULL, "print a digest of all results", 0, 0},
      {"help", 'h', OPTION_FLAG, &opt->help, NULL, "print this text", 0, 0},
      {"version", 0, OPTION_FLAG, &opt->version, NULL,
       "print the versions of NCCL, CUDA and launcher", 0, 0},
  };
  const size_t nshared = sizeof shared / sizeof *shared;
  size_t n = 0;
  for (const struct option_spec *row = own; row && row->name && n + nshared < MAX_OPTIONS; row++)
    if (row->kind != OPTION_ABSENT) table[n++] = *row;
  for (size_t i = 0; i < nshared && n < MAX_OPTIONS - 1; i++)
    if (!replaced(&shared[i], own)) table[n++] = shared[i];
  table[n] = (struct option_spec){0};
}

static bool of_lesson(const struct options *opt, const void *value)
{
  return value == &opt->count || value == &opt->timeout || value == &opt->help ||
         value == &opt->version;
}

int options_number(const char *text, enum number_kind kind, double *value)
{
  char *end;
  /* strtod also reads hexadecimal numbers, blanks and inf */
  const size_t digits = strspn(text, kind == NUMBER_REAL ? "0123456789.-eE" : "0123456789-");
  *value = strtod(text, &end);
  if (digits == 0 || end != text + digits) return -1;
  if (kind == NUMBER_SIZE && *end != '\0') {
    const char *letters = "KMG", *letter = strchr(letters, toupper((unsigned char)*end++));
    if (!letter) return -1;
    *value *= (double)(1LL << 10 * (letter - letters + 1));
  }
  return *end == '\0' ? 0 : -1;
}

void keep_one_line(char *text)
{
  for (; *text; text++)
    if (iscntrl((unsigned char)*text)) *text = '?';
}

const char *shown(const char *text, char shown[SHOWN_TEXT])
{
  if (snprintf(shown, SHOWN_TEXT, "%s", text) >= SHOWN_TEXT)
    memcpy(shown + SHOWN_TEXT - 4, "...", 4);
  keep_one_line(shown);
  return shown;
}

/* The number of `name` among the words of `list`, which a blank or | separates; -1: not there. */
static int find_word(const char *name, const char *list)
{
  for (int i = 0;; i++) {
    size_t length = strcspn(list, " |");
    if (length == strlen(name) && length > 0 && strncmp(name, list, length) == 0) return i;
    if (list[length] == '\0') return -1;
    list += length + 1;
  }
}

static int store_number(const struct option_spec *row, const char *text, char *error,
                        size_t error_size)
{
  const enum number_kind kind = row->kind == OPTION_SIZE     ? NUMBER_SIZE
                                : row->kind == OPTION_DOUBLE ? NUMBER_REAL
                                                             : NUMBER_WHOLE;
  static const char *const allowed[] = {"a whole number",
                                        "a whole number, optionally with K, M or G",
                                        "a number such as 0.01 or 1e-3"};
  const double min = kind == NUMBER_REAL ? LEAST_DOUBLE : (double)row->min;
  char typed[SHOWN_TEXT];
  double number;
  shown(text, typed);
  if (options_number(text, kind, &number) != 0)
    return FAIL("--%s: cannot read '%s'; allowed: %s", row->name, typed, allowed[kind]);
  if (!(number >= min && number <= (double)row->max))
    return FAIL("--%s: %s is out of range; allowed: %.15g to %.15g", row->name, typed, min,
                (double)row->max);
  if (kind == NUMBER_REAL)
    *(double *)row->value = number;
  else if (kind == NUMBER_SIZE)
    *(size_t *)row->value = (size_t)number;
  else
    *(long *)row->value = (long)number;
  return 0;
}

/* Stores the argument of one option; on failure writes the error line and returns -1. */
static int store(const struct option_spec *row, const char *text, const char *types, char *error,
                 size_t error_size)
{
  const char *dot;
  char typed[SHOWN_TEXT];

  shown(text ? text : "", typed);
  switch (row->kind) {
  case OPTION_FLAG:
    *(bool *)row->value = true;
    return 0;
  case OPTION_OUTPUT:
    dot = strrchr(text, '.');
    if (!dot || (strcmp(dot, ".json") != 0 && strcmp(dot, ".csv") != 0))
      return FAIL("--%s: '%s' has a wrong ending; allowed: .json and .csv", row->name, typed);
    *(const char **)row->value = text;
    return 0;
  case OPTION_TYPE:
    if (find_word(text, types) < 0)
      return FAIL("--%s: unknown type '%s'; allowed: %s", row->name, typed, types);
    *(const struct datatype **)row->value = datatype_find(text);
    return 0;
  case OPTION_CHOICE:
    *(int *)row->value = find_word(text, row->argument);
    if (*(int *)row->value >= 0) return 0;
    return FAIL("--%s: unknown '%s'; allowed: %s", row->name, typed, row->argument);
  case OPTION_LONG:
  case OPTION_SIZE:
  case OPTION_DOUBLE:
    return store_number(row, text, error, error_size);
  default: /* strings and files */
    *(const char **)row->value = text;
    return 0;
  }
}

/* Rules between options. `for_bench` is an option that was given and needs --bench, or NULL. */
static int check_together(const struct options *opt, const char *for_bench, char *error,
                          size_t error_size)
{
  if (for_bench && !opt->bench) return FAIL("--%s needs --bench", for_bench);
  if (opt->min_bytes > opt->max_bytes)
    return FAIL("--minbytes %zu is larger than --maxbytes %zu", opt->min_bytes, opt->max_bytes);
  if (opt->bench && opt->count)
    return FAIL("--count does not work with --bench; use --minbytes and --maxbytes");
  if (opt->bench && opt->digest) return FAIL("--digest does not work with --bench");
  return 0;
}

int options_parse(struct options *opt, const struct option_spec *own, const char *types, int argc,
                  char **argv, char *error, size_t error_size)
{
  *opt = (struct options){.type = datatype_find("float"),
                          .min_bytes = 16,
                          .max_bytes = DEFAULT_MAX_BYTES,
                          .iterations = 20,
                          .warmup = 5,
                          .repetitions = 11,
                          .timeout = 120};
  struct option_spec table[MAX_OPTIONS];
  struct option longs[MAX_OPTIONS] = {{0}};
  char letters[3 * MAX_OPTIONS] = ":"; /* ':' tells getopt to report a missing argument as ':' */
  build_table(table, opt, own);
  for (int i = 0; table[i].name; i++) {
    const int argument = table[i].kind == OPTION_FLAG ? no_argument : required_argument;
    longs[i] = (struct option){table[i].name, argument, NULL, FIRST_VALUE + i};
    if (table[i].letter)
      snprintf(letters + strlen(letters), 3, "%c%s", table[i].letter, argument ? ":" : "");
  }

  opterr = 0; /* we write the messages */
  optind = 0; /* start over, also when called a second time */
  const char *for_bench = NULL;
  char word[SHOWN_TEXT];
  int got;
  while (optind <= argc && (got = getopt_long(argc, argv, letters, longs, NULL)) != -1) {
    int i = got - FIRST_VALUE;
    if (got == '?' || got == ':') {
      /* optopt is the letter, or the value of a long option, or 0 if nothing matched */
      if (optopt > 0 && optopt < FIRST_VALUE)
        snprintf(word, sizeof word, "-%c", optopt);
      else
        shown(argv[optind - 1], word);
      return FAIL("option '%s' %s; see --help", word,
                  got == ':'              ? "needs an argument"
                  : optopt >= FIRST_VALUE ? "takes no argument"
                                          : "is unknown or ambiguous");
    }
    if (got < FIRST_VALUE)
      for (i = 0; table[i].letter != got; i++) continue;
    if (store(&table[i], optarg, types, error, error_size) != 0) return -1;
    const void *value = table[i].value;
    opt->harness |= !of_lesson(opt, value);
    if (value == &opt->min_bytes || value == &opt->max_bytes || value == &opt->factor)
      opt->sizes = true;
    if (!for_bench && strncmp(table[i].help, "--bench:", 8) == 0) for_bench = table[i].name;
  }
  if (optind < argc) return FAIL("stray argument '%s'; see --help", shown(argv[optind], word));
  if (opt->help || opt->version) return 0;
  return check_together(opt, for_bench, error, error_size);
}

/* A file that an option names on a rank. */
struct file {
  const struct option_spec *row;
  int rank;
  char *name, *identity; /* see file_identity */
};

static bool is_per_rank(const struct option_spec *row)
{
  return row->kind == OPTION_RANK_INPUT || row->kind == OPTION_RANK_OUTPUT;
}

static bool is_output(const struct option_spec *row)
{
  return row->kind == OPTION_OUTPUT || row->kind == OPTION_RANK_OUTPUT;
}

/* Fills `files` with those of all ranks, and returns their number. */
static int list_files(const struct option_spec *table, int nranks, struct file *files)
{
  int n = 0;
  for (const struct option_spec *row = table; row->name; row++) {
    if (!is_output(row) && !is_per_rank(row) && row->kind != OPTION_INPUT) continue;
    const char *pattern = *(char **)row->value;
    for (int rank = 0; pattern && rank < (is_per_rank(row) ? nranks : 1); rank++) {
      char *name = file_of_rank(pattern, rank);
      files[n++] = (struct file){row, rank, name, file_identity(name)};
    }
  }
  return n;
}

/* Is this output also another one of `files`? */
static int check_distinct(const struct file *one, const struct file *files, int n, char *error,
                          size_t error_size)
{
  char typed[SHOWN_TEXT], ranks[48] = "";
  for (const struct file *other = files; other < files + n; other++) {
    if (other == one || !other->identity || strcmp(one->identity, other->identity) != 0) continue;
    if (one->row == other->row)
      snprintf(ranks, sizeof ranks, " (on ranks %d and %d)", one->rank, other->rank);
    return FAIL("--%s and --%s are the same file: %s%s", one->row->name, other->row->name,
                shown(one->name, typed), ranks);
  }
  return 0;
}

/* Can this rank use the file? */
static int check_file(const struct file *file, int rank, int nranks, char *error, size_t error_size)
{
  char typed[SHOWN_TEXT];
  const char *pattern = *(char **)file->row->value;
  if (is_per_rank(file->row) && nranks > 1 && !strstr(pattern, "%r"))
    return FAIL("--%s: '%s' is one file for %d ranks; write %%r, which becomes the rank, "
                "into the name",
                file->row->name, shown(pattern, typed), nranks);
  if (!is_output(file->row) || file->rank != rank) return 0;
  return output_file_check(file->name, error, error_size);
}

int options_check_files(struct options *opt, const struct option_spec *own, int rank, int nranks,
                        char *error, size_t error_size)
{
  struct option_spec table[MAX_OPTIONS];
  build_table(table, opt, own);
  struct file *files = launcher_allocate((size_t)(MAX_OPTIONS * nranks) * sizeof *files);
  const int n = list_files(table, nranks, files);
  int failed = 0;
  for (const struct file *file = files; file < files + n && !failed; file++) {
    failed = check_file(file, rank, nranks, error, error_size);
    if (!failed && file->identity && is_output(file->row))
      failed = check_distinct(file, files, n, error, error_size);
  }
  for (int i = 0; i < n; i++) {
    free(files[i].name);
    free(files[i].identity);
  }
  free(files);
  return failed;
}

void options_help(const char *program, const char *summary, const struct option_spec *own,
                  const char *types, bool harness)
{
  struct options unused;
  struct option_spec table[MAX_OPTIONS];
  build_table(table, &unused, own);
  printf("%s: %s\n\nUsage: [NTHREADS=N] ./%s [options]          (built by make)\n"
         "       mpirun -np N ./%s [options]          (built by make MPI=1)\n\n"
         "Options (defaults in parentheses; SIZE takes K, M or G):\n",
         program, summary, program, program);
  for (int part = 1; part <= (harness ? 2 : 1); part++) {
    if (part == 2)
      printf("\nFor tests and measurements. With any of these the harness runs, not main.c:\n");
    for (const struct option_spec *row = table; row->name; row++) {
      if (harness && of_lesson(&unused, row->value) != (part == 1)) continue;
      const int width =
          printf("  %c%c%s--%s%s%s", row->letter ? '-' : ' ', row->letter ? row->letter : ' ',
                 row->letter ? ", " : "  ", row->name, row->argument ? " " : "",
                 row->argument ? row->argument : "");
      printf("%s%*s %s\n", width > 30 ? "\n" : "", width > 30 ? 30 : 30 - width, "", row->help);
    }
  }
  printf("\nNTHREADS: number of ranks (all GPUs; 4 on the stand-in)\n"
         "Types: %s\n"
         "Exit codes: 0 verified, 1 wrong data, 2 usage, 3 a call failed, 4 timeout,\n"
         "            77 cannot run on this machine\n",
         types);
}
