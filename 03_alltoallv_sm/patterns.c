/* SPDX-License-Identifier: Apache-2.0 */
#include "patterns.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hash.h"
#include "options.h"

/* ---- weights: who gets how much of what rank `from` sends ------------------------------------ */

/* What the weights weight[to] of a rank may depend on. */
struct row {
  int from, nranks;
  double parameter; /* after the colon of --pattern */
  uint64_t random;  /* state */
  double *weight;
};

/* A function that fills the weights of a row with an expression of `r` and `to`. */
#define WEIGHT(name, expression)                                         \
  static void name(struct row *r)                                        \
  {                                                                      \
    for (int to = 0; to < r->nranks; to++) r->weight[to] = (expression); \
  }
WEIGHT(halving, ldexp(1, -(to + 1)))
WEIGHT(uniform, 1)
WEIGHT(distance, (to - r->from + r->nranks) % r->nranks)
WEIGHT(zipf, pow(to + 1, -r->parameter))
WEIGHT(one_hot, r->from == 0 && to == r->nranks - 1)
WEIGHT(diagonal, to == r->from)
WEIGHT(zero, 0)
WEIGHT(at_random, hash_next(&r->random) % 4 == 0 ? 0 : (double)(hash_next(&r->random) % 1000 + 1))
WEIGHT(single_sender, r->from == 0)
WEIGHT(single_receiver, to == 0)

/* Top-8 of 64 experts for each token, expert e living on rank e * nranks / 64. Popularity differs
 * by a factor of up to 4 between experts, as it does in trained models. */
static void moe(struct row *r)
{
  enum { EXPERTS = 64, TOP = 8, TOKENS = 512 };
  for (int to = 0; to < r->nranks; to++) r->weight[to] = 0;
  for (int token = 0; token < TOKENS; token++) {
    bool chosen[EXPERTS] = {false};
    for (int k = 0; k < TOP;) {
      int expert = (int)(hash_next(&r->random) % EXPERTS);
      bool popular = hash_next(&r->random) % 4 <= (uint64_t)(expert % 4);
      if (chosen[expert] || !popular) continue;
      chosen[expert] = true;
      r->weight[expert * r->nranks / EXPERTS]++;
      k++;
    }
  }
}

/* ---- from weights to counts ------------------------------------------------------------------ */

static const struct pattern {
  const char *name; /* up to a colon, after which --pattern has a number */
  void (*weights)(struct row *row);
  enum {
    SHARES,       /* in proportion to them; what rounding leaves goes to the first that have one */
    SHARES_OF_16, /* in proportion, rounded down to multiples of 16 bytes */
    FRACTIONS     /* total times the weight, rounded down, at least 1 */
  } rounding;
} patterns[] = {
    {"halving", halving, FRACTIONS},
    {"uniform", uniform, SHARES},
    {"skew", distance, SHARES_OF_16},
    {"unaligned", distance, SHARES},
    {"zipf:", zipf, SHARES},
    {"one-hot", one_hot, SHARES},
    {"diagonal", diagonal, SHARES},
    {"zero", zero, SHARES},
    {"random", at_random, SHARES},
    {"single-sender", single_sender, SHARES},
    {"single-receiver", single_receiver, SHARES},
    {"moe", moe, SHARES},
};

static void share_out(size_t *counts, const double *weights, int nranks, size_t total, size_t unit)
{
  double sum = 0;
  size_t dealt = 0;
  for (int to = 0; to < nranks; to++) sum += weights[to];
  if (!(sum > 0)) return;
  for (int to = 0; to < nranks; to++) {
    counts[to] = (size_t)((double)total * (weights[to] / sum)) / unit * unit;
    dealt += counts[to];
  }
  for (int to = 0; unit == 1 && dealt < total; to = (to + 1) % nranks)
    if (weights[to] > 0) counts[to]++, dealt++;
}

/* The pattern of that name, and its number into `parameter`; NULL with one line in `error`. */
static const struct pattern *find_pattern(const char *text, double *parameter, char *error,
                                          size_t error_size)
{
  char typed[SHOWN_TEXT];
  shown(text, typed);
  for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
    const size_t length = strlen(patterns[i].name);
    if (strcmp(text, patterns[i].name) == 0 && text[length - 1] != ':') return &patterns[i];
    if (patterns[i].name[length - 1] != ':' || strncmp(text, patterns[i].name, length) != 0)
      continue;
    if (options_number(text + length, NUMBER_REAL, parameter) == 0 && *parameter >= 0 &&
        *parameter <= 16)
      return &patterns[i];
    snprintf(error, error_size,
             "--pattern: '%s' has a wrong exponent; allowed: a number from 0 to 16", typed);
    return NULL;
  }
  snprintf(error, error_size, "--pattern: unknown pattern '%s'; allowed:%s", typed, PATTERN_NAMES);
  return NULL;
}

int pattern_matrix(const char *pattern, int nranks, size_t total, size_t element_size,
                   unsigned long long seed, size_t *matrix, char *error, size_t error_size)
{
  double parameter = 0, weights[nranks];
  const struct pattern *chosen = find_pattern(pattern, &parameter, error, error_size);
  if (!chosen) return -1;
  memset(matrix, 0, (size_t)nranks * (size_t)nranks * sizeof *matrix);
  for (int from = 0; from < nranks; from++) {
    struct row row = {from, nranks, parameter, seed * 0x2545f4914f6cdd1dULL + (uint64_t)from,
                      weights};
    size_t *counts = matrix + (size_t)from * (size_t)nranks;
    chosen->weights(&row);
    if (chosen->rounding != FRACTIONS)
      share_out(counts, weights, nranks, total,
                chosen->rounding == SHARES_OF_16 ? 16 / element_size : 1);
    for (int to = 0; to < nranks && chosen->rounding == FRACTIONS; to++) {
      counts[to] = (size_t)((double)total * weights[to]);
      if (counts[to] == 0) counts[to] = 1;
    }
  }
  return 0;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* One line of the file into `row`. Returns how many numbers it has, or -1 with the reason. */
static int parse_row(char *line, int number, int nranks, size_t element_size, size_t *row,
                     char *reason, size_t size)
{
  char *save;
  int column = 0;
  for (char *word = strtok_r(line, " \t\r\v\f\n", &save); word;
       word = strtok_r(NULL, " \t\r\v\f\n", &save), column++) {
    char *end;
    errno = 0;
    const unsigned long long bytes = strtoull(word, &end, 10);
    if (*word == '-' || *word == '+' || *end != '\0' || errno == ERANGE || bytes > 1ULL << 50) {
      snprintf(reason, size,
               ": row %d, column %d: '%.40s' is not a number of bytes; allowed: whole numbers "
               "from 0 to 2^50",
               number, column + 1, word);
      return -1;
    }
    if (bytes % element_size != 0) {
      snprintf(reason, size,
               ": row %d, column %d: %llu bytes are no whole number of elements of %zu bytes; "
               "allowed: multiples, or another --datatype",
               number, column + 1, bytes, element_size);
      return -1;
    }
    if (number <= nranks && column < nranks) row[column] = (size_t)bytes / element_size;
  }
  return column;
}

int pattern_read(const char *path, int nranks, size_t element_size, size_t *matrix, char *error,
                 size_t error_size)
{
  char name[SHOWN_TEXT], reason[200] = "", *line = NULL;
  size_t size = 0;
  ssize_t length;
  int rows = 0, columns = 0;
  FILE *file = fopen(path, "r");
  errno = file ? 0 : errno;
  while (file && !*reason && (errno = 0, length = getline(&line, &size, file)) >= 0) {
    const int row = rows < nranks ? rows : 0; /* the rest is only counted */
    if (strlen(line) != (size_t)length) {
      snprintf(reason, sizeof reason, " has a byte 0; allowed: a text file");
      break;
    }
    const int numbers = parse_row(line, rows + 1, nranks, element_size,
                                  matrix + (size_t)row * (size_t)nranks, reason, sizeof reason);
    if (numbers <= 0) continue; /* wrong, or an empty line */
    if (rows++ == 0) columns = numbers;
    if (numbers != columns)
      snprintf(reason, sizeof reason,
               " is not square: row %d has %d numbers, row 1 has %d; allowed: a square", rows,
               numbers, columns);
  }
  shown(path, name);
  if (errno != 0 && !*reason)
    snprintf(error, error_size, "--matrix: cannot read %s: %s; allowed: a file with a matrix", name,
             strerror(errno));
  else if (!*reason && rows != columns)
    snprintf(reason, sizeof reason, " is not square: %d rows, %d columns; allowed: a square", rows,
             columns);
  else if (!*reason && rows < nranks)
    snprintf(reason, sizeof reason, " is %d x %d; allowed: at least %d, the number of ranks", rows,
             columns, nranks);
  if (*reason) snprintf(error, error_size, "--matrix: %s%s", name, reason);
  if (file) fclose(file);
  free(line);
  return *error ? -1 : 0;
}

/* ---- sums ------------------------------------------------------------------------------------ */

static void raise_to(size_t *most, size_t value)
{
  if (value > *most) *most = value;
}

struct matrix_most matrix_most(const size_t *matrix, int nranks)
{
  struct matrix_most most = {0};
  for (int rank = 0; rank < nranks; rank++) {
    const size_t own = matrix[rank * nranks + rank];
    size_t sends = 0, receives = 0;
    for (int p = 0; p < nranks; p++) {
      sends += matrix[rank * nranks + p];
      receives += matrix[p * nranks + rank];
    }
    raise_to(&most.sends, sends);
    raise_to(&most.receives, receives);
    raise_to(&most.wire, sends - own);
    raise_to(&most.wire, receives - own);
  }
  return most;
}
