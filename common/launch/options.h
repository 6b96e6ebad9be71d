/* SPDX-License-Identifier: Apache-2.0 */
/* Command-line options: those that all programs share and a table for those of one program. */
#ifndef COMMON_OPTIONS_H
#define COMMON_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "datatype.h"

/* The shared options, with the letters of nccl-tests. Sizes take a suffix K, M or G (powers of
 * 1024). */
struct options {
  bool help, version;
  bool bench;                  /* --bench: sweep of sizes instead of the example */
  bool digest;                 /* --digest: one more line with a digest of all results */
  bool harness;                /* another option than --count and --timeout was given */
  const struct datatype *type; /* -d, --datatype */
  size_t count;                /* --count: elements per rank; 0 = the program's default */
  size_t min_bytes, max_bytes; /* -b, -e */
  long factor;                 /* -f: next size = size * factor; 0 = see next_size */
  bool sizes;                  /* one of these three was given */
  long iterations;             /* -n: calls in one timed repetition */
  long warmup;                 /* -w: calls before timing */
  long repetitions;            /* --repetitions: the median is taken over these */
  long graph_launches;         /* -G: 0 = eager; else launches of a CUDA graph per repetition */
  const char *output;          /* -J FILE.json or FILE.csv */
  long timeout;                /* -T: seconds without progress until the job is ended */
};

enum option_kind {
  OPTION_FLAG,        /* bool, no argument */
  OPTION_LONG,        /* long within [min, max] */
  OPTION_SIZE,        /* size_t within [min, max], with an optional suffix K, M or G */
  OPTION_STRING,      /* const char *, points into argv */
  OPTION_INPUT,       /* const char *, a file that rank 0 reads */
  OPTION_OUTPUT,      /* const char *, a file .json or .csv that rank 0 writes, see output_file.h */
  OPTION_RANK_INPUT,  /* const char *, a file that each rank reads; %r is the rank */
  OPTION_RANK_OUTPUT, /* const char *, a file that each rank writes; likewise */
  OPTION_TYPE,        /* const struct datatype *, one of the program's types */
  OPTION_CHOICE, /* int, the number of the word in `argument`, whose words are separated by | */
  OPTION_DOUBLE, /* double, more than 0 (1e-300 or more) and up to max */
  OPTION_ABSENT, /* removes the shared option of that name; bench: all of --bench */
};

/* One row of an option table. A table ends with a row whose name is NULL. A row of the
 * program replaces the shared one of the same name or letter. */
struct option_spec {
  const char *name; /* long name without dashes */
  char letter;      /* short name or 0 */
  enum option_kind kind;
  void *value;          /* where the value goes; holds the default before */
  const char *argument; /* what --help calls the argument, NULL for a flag; see OPTION_CHOICE */
  /* One line with the default in it. An option whose line begins with "--bench:" needs --bench. */
  const char *help;
  long long min, max; /* for OPTION_LONG and OPTION_SIZE; of OPTION_DOUBLE max only */
};

/* A number in decimal digits: a whole one, a whole one with an optional suffix K, M or G, or one
 * such as 0.01 or 1e-3. Returns 0 if `text` is one, and else -1. */
enum number_kind { NUMBER_WHOLE, NUMBER_SIZE, NUMBER_REAL };
int options_number(const char *text, enum number_kind kind, double *value);

/* Writes what a user typed to `shown`, fit for a message, and returns it: only the beginning if it
 * is long, with ? instead of newlines and other control characters. */
enum { SHOWN_TEXT = 256 };
const char *shown(const char *text, char shown[SHOWN_TEXT]);
void keep_one_line(char *text); /* ? instead of control characters */

/* Fills *opt with the defaults and then from argv. Returns 0, or -1 with one line (no newline) in
 * `error` that says what was wrong and what is allowed. Prints nothing. `own` may be NULL; `types`
 * lists the names that -d takes. */
int options_parse(struct options *opt, const struct option_spec *own, const char *types, int argc,
                  char **argv, char *error, size_t error_size);

/* After options_parse: can this rank write its files, and is each a different one? Returns 0, or -1
 * with one line in `error`. */
int options_check_files(struct options *opt, const struct option_spec *own, int rank, int nranks,
                        char *error, size_t error_size);

/* Prints the text of --help to stdout; with a harness, which options are its own. */
void options_help(const char *program, const char *summary, const struct option_spec *own,
                  const char *types, bool harness);

#endif
