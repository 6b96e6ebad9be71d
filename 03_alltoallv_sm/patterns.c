/* SPDX-License-Identifier: Apache-2.0 */
#include "patterns.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shown.h"

/* SplitMix64: small, and the same on every machine. */
static uint64_t next_random(uint64_t *state)
{
  uint64_t z = *state += 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

/* Deals `total` elements out in proportion to the weights. With `unit` 1 what rounding leaves goes
 * to the first destinations that have a weight; else counts are rounded down to multiples of it. */
static void share_out(size_t *row, const double *weights, int nranks, size_t total, size_t unit)
{
  double sum = 0;
  size_t dealt = 0;
  for (int to = 0; to < nranks; to++) sum += weights[to];
  if (!(sum > 0)) return;
  for (int to = 0; to < nranks; to++) {
    row[to] = (size_t)((double)total * (weights[to] / sum)) / unit * unit;
    dealt += row[to];
  }
  if (unit > 1) return;
  for (int to = 0; dealt < total; to = (to + 1) % nranks)
    if (weights[to] > 0) row[to]++, dealt++;
}

/* Top-8 of 64 experts for each token, expert e living on rank e * nranks / 64. Popularity differs
 * by a factor of up to 4 between experts, as it does in trained models. */
static void route_tokens(double *weights, int nranks, uint64_t *random)
{
  enum { EXPERTS = 64, TOP = 8, TOKENS = 512 };
  for (int token = 0; token < TOKENS; token++) {
    bool chosen[EXPERTS] = {false};
    for (int k = 0; k < TOP;) {
      int expert = (int)(next_random(random) % EXPERTS);
      bool popular = next_random(random) % 4 <= (uint64_t)(expert % 4);
      if (chosen[expert] || !popular) continue;
      chosen[expert] = true;
      weights[expert * nranks / EXPERTS] += 1;
      k++;
    }
  }
}

int pattern_matrix(const char *pattern, int nranks, size_t total, size_t element_size,
                   unsigned long long seed, size_t *matrix, char *error, size_t error_size)
{
  double exponent = 0;
  char *end = NULL;
  const bool skew = strcmp(pattern, "skew") == 0;
  const bool zipf = strncmp(pattern, "zipf:", 5) == 0;
  if (zipf) exponent = strtod(pattern + 5, &end);
  if (zipf && (end == pattern + 5 || *end != '\0' || !(exponent >= 0 && exponent <= 16))) {
    snprintf(error, error_size, "--pattern: '%s': the exponent is a number from 0 to 16", pattern);
    return -1;
  }

  memset(matrix, 0, (size_t)nranks * (size_t)nranks * sizeof *matrix);
  for (int from = 0; from < nranks; from++) {
    size_t *row = matrix + (size_t)from * (size_t)nranks;
    double weights[nranks];
    uint64_t random = seed * 0x2545f4914f6cdd1dULL + (uint64_t)from;
    memset(weights, 0, sizeof weights);
    for (int to = 0; to < nranks; to++) {
      double *w = &weights[to];
      if (strcmp(pattern, "uniform") == 0)
        *w = 1;
      else if (skew || strcmp(pattern, "unaligned") == 0)
        *w = (to - from + nranks) % nranks;
      else if (zipf)
        *w = pow(to + 1, -exponent);
      else if (strcmp(pattern, "one-hot") == 0)
        *w = from == 0 && to == nranks - 1;
      else if (strcmp(pattern, "diagonal") == 0)
        *w = from == to;
      else if (strcmp(pattern, "zero") == 0)
        *w = 0;
      else if (strcmp(pattern, "random") == 0)
        *w = next_random(&random) % 4 == 0 ? 0 : (double)(next_random(&random) % 1000 + 1);
      else if (strcmp(pattern, "single-sender") == 0)
        *w = from == 0;
      else if (strcmp(pattern, "single-receiver") == 0)
        *w = to == 0;
      else if (strcmp(pattern, "moe") != 0 && strcmp(pattern, "halving") != 0) {
        snprintf(error, error_size, "--pattern: unknown pattern '%s'; allowed: %s", pattern,
                 PATTERN_NAMES);
        return -1;
      }
    }
    if (strcmp(pattern, "moe") == 0) route_tokens(weights, nranks, &random);
    share_out(row, weights, nranks, total, skew ? 16 / element_size : 1);
    for (int to = 0; to < nranks && strcmp(pattern, "halving") == 0; to++) {
      row[to] = to < 63 ? total >> (to + 1) : 0;
      if (row[to] == 0) row[to] = 1;
    }
  }
  return 0;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Reads all of it. Returns the number of bytes, at most `most`, or -1 with errno; ETIMEDOUT: a pipe
 * that nobody writes to, for whose end we would wait for ever. */
static ssize_t read_all(int descriptor, char *to, size_t most, long seconds)
{
  struct stat status;
  size_t length = 0;
  if (fstat(descriptor, &status) != 0) return -1;
  for (long idle_ms = 0; length < most;) {
    const ssize_t got = read(descriptor, to + length, most - length);
    const bool not_begun = got == 0 && length == 0 && S_ISFIFO(status.st_mode);
    if (got > 0) {
      length += (size_t)got;
      idle_ms = 0;
    } else if (not_begun || (got < 0 && errno == EAGAIN)) {
      if (idle_ms >= seconds * 1000) return errno = ETIMEDOUT, -1;
      usleep(10000);
      idle_ms += 10;
    } else if (got == 0) {
      break;
    } else if (errno != EINTR) {
      return -1;
    }
  }
  return (ssize_t)length;
}

char *pattern_read_file(const char *path, long seconds, char *error, size_t error_size)
{
  enum { LARGEST = 1 << 24 }; /* 16 MiB are a matrix of some 1,000 ranks */
  const int descriptor = open(path, O_RDONLY | O_NONBLOCK); /* a FIFO's opening may wait too */
  char *text = malloc(LARGEST + 1), name[SHOWN_TEXT];
  const ssize_t length =
      descriptor < 0 || !text ? -1 : read_all(descriptor, text, LARGEST + 1, seconds);
  shown(path, name);
  if (length < 0 && errno == ETIMEDOUT)
    snprintf(error, error_size, "--matrix: nobody writes to the pipe %s; allowed: a matrix", name);
  else if (length < 0)
    snprintf(error, error_size, "--matrix: cannot read %s: %s", name, strerror(errno));
  else if (length > LARGEST)
    snprintf(error, error_size, "--matrix: %s is larger than 16 MiB", name);
  else if (memchr(text, '\0', (size_t)length))
    snprintf(error, error_size, "--matrix: %s is not a text file", name);
  if (descriptor >= 0) close(descriptor);
  if (*error) {
    free(text);
    return NULL;
  }
  text[length] = '\0';
  return text;
}

int pattern_parse(const char *path, char *text, int nranks, size_t element_size, size_t *matrix,
                  char *error, size_t error_size)
{
  int rows = 0, columns = 0, code = -1;
  char *save_line, name[SHOWN_TEXT];
  shown(path, name);
  for (char *line = strtok_r(text, "\n", &save_line); line;
       line = strtok_r(NULL, "\n", &save_line)) {
    char *save_word;
    int column = 0;
    for (char *word = strtok_r(line, " \t\r\v\f", &save_word); word;
         word = strtok_r(NULL, " \t\r\v\f", &save_word), column++) {
      char *end;
      errno = 0;
      unsigned long long bytes = strtoull(word, &end, 10);
      if (*word == '-' || *word == '+' || *end != '\0' || errno == ERANGE || bytes > 1ULL << 50) {
        snprintf(error, error_size,
                 "--matrix: %s: row %d, column %d: '%.40s' is not a number of bytes; allowed: "
                 "whole numbers from 0 to 2^50",
                 name, rows + 1, column + 1, word);
        return -1;
      }
      if (bytes % element_size != 0) {
        snprintf(error, error_size,
                 "--matrix: %s: row %d, column %d: %llu bytes are no whole number of elements of "
                 "%zu bytes; allowed: multiples, or another --datatype",
                 name, rows + 1, column + 1, bytes, element_size);
        return -1;
      }
      if (rows < nranks && column < nranks)
        matrix[(size_t)rows * (size_t)nranks + (size_t)column] = (size_t)bytes / element_size;
    }
    if (column == 0) continue; /* an empty line */
    if (rows == 0) columns = column;
    rows++;
    if (column != columns) {
      snprintf(error, error_size, "--matrix: %s is not square: row %d has %d numbers, row 1 has %d",
               name, rows, column, columns);
      return -1;
    }
  }
  if (rows != columns)
    snprintf(error, error_size, "--matrix: %s is not square: %d rows, %d columns", name, rows,
             columns);
  else if (rows < nranks)
    snprintf(error, error_size,
             "--matrix: %s is %d x %d; allowed: at least %d, the number of ranks", name, rows,
             columns, nranks);
  else
    code = 0;
  return code;
}

/* ---- sums ------------------------------------------------------------------------------------ */

size_t matrix_sends(const size_t *matrix, int nranks, int rank)
{
  size_t sum = 0;
  for (int to = 0; to < nranks; to++) sum += matrix[rank * nranks + to];
  return sum;
}

size_t matrix_receives(const size_t *matrix, int nranks, int rank)
{
  size_t sum = 0;
  for (int from = 0; from < nranks; from++) sum += matrix[from * nranks + rank];
  return sum;
}

void matrix_places(const size_t *matrix, int nranks, int rank, size_t *places)
{
  for (int p = 0; p < nranks; p++) {
    places[p] = 0;
    for (int before = 0; before < rank; before++) places[p] += matrix[before * nranks + p];
  }
}

size_t matrix_wire(const size_t *matrix, int nranks)
{
  size_t most = 0;
  for (int rank = 0; rank < nranks; rank++) {
    size_t own = matrix[rank * nranks + rank];
    size_t out = matrix_sends(matrix, nranks, rank) - own;
    size_t in = matrix_receives(matrix, nranks, rank) - own;
    if (out > most) most = out;
    if (in > most) most = in;
  }
  return most;
}
