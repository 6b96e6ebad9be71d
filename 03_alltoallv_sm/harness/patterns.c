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
#include "launcher.h"

#define FAIL(...) snprintf(error, LAUNCHER_TEXT, __VA_ARGS__)

/* How many of the tokens of a rank go to each rank: top-8 of 64 experts for each token, expert e
 * living on rank e * nranks / 64. Popularity differs by a factor of up to 4 between experts, as it
 * does in trained models. */
static void route(int nranks, uint64_t random, int *tokens)
{
  enum { EXPERTS = 64, TOP = 8, TOKENS = 512 };
  memset(tokens, 0, (size_t)nranks * sizeof *tokens);
  for (int token = 0; token < TOKENS; token++) {
    bool chosen[EXPERTS] = {false};
    for (int k = 0; k < TOP;) {
      int expert = (int)(hash_next(&random) % EXPERTS);
      bool popular = hash_next(&random) % 4 <= (uint64_t)(expert % 4);
      if (chosen[expert] || !popular) continue;
      chosen[expert] = true;
      tokens[expert * nranks / EXPERTS]++;
      k++;
    }
  }
}

/* One row of the matrix. */
static void share_out(size_t *counts, const double *weights, int n, size_t total, size_t unit)
{
  double sum = 0;
  size_t given = 0;
  for (int to = 0; to < n; to++) sum += weights[to];
  for (int to = 0; to < n; to++) {
    counts[to] = sum > 0 ? (size_t)((double)total * (weights[to] / sum)) / unit * unit : 0;
    given += counts[to];
  }
  for (int to = 0; unit == 1 && sum > 0 && given < total; to = (to + 1) % n)
    if (weights[to] > 0) counts[to]++, given++;
}

void pattern_matrix(const char *pattern, int n, size_t total, size_t element_size, size_t *matrix,
                    char *error)
{
#define ROW(name, rounding, weight) {name, rounding},
#define WEIGHT(name, rounding, weight) (weight),
  enum rounding { FRACTIONS, SHARES, SHARES_OF_16 };
  static const struct row {
    const char *name;
    enum rounding rounding;
  } rows[] = {PATTERNS(ROW){NULL, SHARES}};
  const char *colon = strchr(pattern, ':');
  const size_t length = colon ? (size_t)(colon + 1 - pattern) : strlen(pattern);
  const struct row *row = rows;
  char typed[SHOWN_TEXT];
  double A = 0, weights[n];
  int tokens[n];
  while (row->name && (strncmp(row->name, pattern, length) || !row->name[length] != !colon)) row++;
  if (!row->name)
    FAIL("--pattern: unknown pattern '%s'; allowed:%s", shown(pattern, typed), PATTERN_NAMES);
  else if (colon && (options_number(colon + 1, NUMBER_REAL, &A) != 0 || !(A >= 0 && A <= 16)))
    FAIL("--pattern: '%s' has a wrong exponent; allowed: a number from 0 to 16",
         shown(pattern, typed));
  for (int from = 0; from < n && !*error; from++) {
    size_t *counts = matrix + (size_t)from * (size_t)n;
    uint64_t random = 0x2545f4914f6cdd1dULL + (uint64_t)from;
    route(n, random, tokens);
    for (int to = 0; to < n; to++) {
      const double all[] = {PATTERNS(WEIGHT)};
      weights[to] = all[row - rows];
      counts[to] = (size_t)fmax((double)total * weights[to], 1);
    }
    if (row->rounding != FRACTIONS)
      share_out(counts, weights, n, total, row->rounding == SHARES ? 1 : 16 / element_size);
  }
}

void pattern_read(const char *path, int nranks, size_t element_size, size_t *matrix, char *error)
{
  static const char *const blanks = " \t\r\v\f\n";
  char name[SHOWN_TEXT], *line = NULL, *rest;
  size_t size = 0;
  int rows = 0, columns = 0, row = 1, numbers = 0; /* in one row that tells whether it is square */
  shown(path, name);
  FILE *file = fopen(path, "r");
  while (file && !*error && getline(&line, &size, file) >= 0) {
    int column = 0;
    for (char *word = strtok_r(line, blanks, &rest); word && !*error;
         word = strtok_r(NULL, blanks, &rest), column++) {
      double bytes;
      if (options_number(word, NUMBER_WHOLE, &bytes) != 0 || !(bytes >= 0 && bytes <= 1LL << 50))
        FAIL("--matrix: %s: row %d, column %d: '%.40s' is not a number of bytes; allowed: "
             "whole numbers from 0 to 2^50",
             name, rows + 1, column + 1, word);
      else if ((size_t)bytes % element_size != 0)
        FAIL("--matrix: %s: row %d, column %d: %.0f bytes are no whole number of elements of "
             "%zu bytes; allowed: multiples, or another --datatype",
             name, rows + 1, column + 1, bytes, element_size);
      else if (rows < nranks && column < nranks)
        matrix[rows * nranks + column] = (size_t)bytes / element_size;
    }
    if (column == 0 || *error) continue; /* an empty line, or wrong */
    if (rows++ == 0) columns = numbers = column;
    if (column != columns && numbers == columns) row = rows, numbers = column;
  }
  if (!file || ferror(file))
    FAIL("--matrix: cannot read %s: %s; allowed: a file with a matrix", name, strerror(errno));
  else if (!*error && (numbers != columns || rows != columns))
    FAIL("--matrix: %s is not square: row %d has %d numbers, there are %d rows; allowed: a square",
         name, row, numbers, rows);
  else if (!*error && rows < nranks)
    FAIL("--matrix: %s is %d x %d; allowed: at least %d, the number of ranks", name, rows, columns,
         nranks);
  if (file) fclose(file);
  free(line);
}

struct matrix_most matrix_most(const size_t *matrix, int nranks)
{
  struct matrix_most most = {0};
  for (int rank = 0; rank < nranks; rank++) {
    size_t sends = 0, receives = 0;
    for (int p = 0; p < nranks; p++) {
      sends += matrix[rank * nranks + p];
      receives += matrix[p * nranks + rank];
    }
    const size_t wire = (sends > receives ? sends : receives) - matrix[rank * nranks + rank];
    if (sends > most.sends) most.sends = sends;
    if (receives > most.receives) most.receives = receives;
    if (wire > most.wire) most.wire = wire;
  }
  return most;
}
