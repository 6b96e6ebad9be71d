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

#include "options.h"

/* SplitMix64: small, and the same on every machine. */
static uint64_t next_random(uint64_t *state)
{
  uint64_t z = *state += 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

/* ---- weights: who gets how much of what rank `from` sends ------------------------------------ */

/* What a weight may depend on. */
struct row {
  int from, nranks;
  double parameter; /* after the colon of --pattern */
  uint64_t random;  /* state */
};

static double halving(struct row *row, int to)
{
  (void)row;
  return ldexp(1, -(to + 1));
}
static double uniform(struct row *row, int to)
{
  (void)row, (void)to;
  return 1;
}
static double distance(struct row *row, int to)
{
  return (to - row->from + row->nranks) % row->nranks;
}
static double zipf(struct row *row, int to)
{
  return pow(to + 1, -row->parameter);
}
static double one_hot(struct row *row, int to)
{
  return row->from == 0 && to == row->nranks - 1;
}
static double diagonal(struct row *row, int to)
{
  return to == row->from;
}
static double zero(struct row *row, int to)
{
  (void)row, (void)to;
  return 0;
}
static double at_random(struct row *row, int to)
{
  (void)to;
  return next_random(&row->random) % 4 == 0 ? 0 : (double)(next_random(&row->random) % 1000 + 1);
}
static double single_sender(struct row *row, int to)
{
  (void)to;
  return row->from == 0;
}
static double single_receiver(struct row *row, int to)
{
  (void)row;
  return to == 0;
}

/* Top-8 of 64 experts for each token, expert e living on rank e * nranks / 64. Popularity differs
 * by a factor of up to 4 between experts, as it does in trained models. Every call routes the same
 * tokens anew, and counts those for one rank. */
static double moe(struct row *row, int to)
{
  enum { EXPERTS = 64, TOP = 8, TOKENS = 512 };
  uint64_t random = row->random;
  double tokens = 0;
  for (int token = 0; token < TOKENS; token++) {
    bool chosen[EXPERTS] = {false};
    for (int k = 0; k < TOP;) {
      int expert = (int)(next_random(&random) % EXPERTS);
      bool popular = next_random(&random) % 4 <= (uint64_t)(expert % 4);
      if (chosen[expert] || !popular) continue;
      chosen[expert] = true;
      if (expert * row->nranks / EXPERTS == to) tokens++;
      k++;
    }
  }
  return tokens;
}

/* ---- from weights to counts ------------------------------------------------------------------ */

/* How weights become counts. */
enum rounding {
  SHARES, /* in proportion to them; what rounding leaves goes to the first that have one */
  SHARES_OF_16 /* in proportion, rounded down to multiples of 16 bytes */,
  FRACTIONS /* total times the weight, rounded down, at least 1 */
};

static const struct pattern {
  const char *name; /* up to a colon, after which --pattern has a number */
  double (*weight)(struct row *row, int to);
  enum rounding rounding;
  bool in_sweep; /* of --bench without --pattern? */
} patterns[PATTERN_COUNT] = {
#define PATTERN(name, weight, rounding, in_sweep) {name, weight, rounding, in_sweep},
    PATTERNS(PATTERN)
#undef PATTERN
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
  if (unit > 1) return;
  for (int to = 0; dealt < total; to = (to + 1) % nranks)
    if (weights[to] > 0) counts[to]++, dealt++;
}

/* The pattern of that name, and its number into `parameter`; NULL with one line in `error`. */
static const struct pattern *find_pattern(const char *text, double *parameter, char *error,
                                          size_t error_size)
{
  char typed[SHOWN_TEXT];
  shown(text, typed);
  for (int i = 0; i < PATTERN_COUNT; i++) {
    const char *colon = strchr(patterns[i].name, ':');
    if (!colon && strcmp(text, patterns[i].name) == 0) return &patterns[i];
    const size_t length = colon ? (size_t)(colon + 1 - patterns[i].name) : 0;
    if (!colon || strncmp(text, patterns[i].name, length) != 0) continue;
    if (options_number(text + length, NUMBER_REAL, parameter) == 0 && *parameter >= 0 && *parameter <= 16)
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
  double parameter = 0;
  const struct pattern *chosen = find_pattern(pattern, &parameter, error, error_size);
  if (!chosen) return -1;
  memset(matrix, 0, (size_t)nranks * (size_t)nranks * sizeof *matrix);
  for (int from = 0; from < nranks; from++) {
    struct row row = {from, nranks, parameter, seed * 0x2545f4914f6cdd1dULL + (uint64_t)from};
    size_t *counts = matrix + (size_t)from * (size_t)nranks;
    double weights[nranks];
    for (int to = 0; to < nranks; to++) weights[to] = chosen->weight(&row, to);
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

int pattern_sweep(const char **names)
{
  int n = 0;
  for (int i = 0; i < PATTERN_COUNT; i++)
    if (patterns[i].in_sweep) names[n++] = patterns[i].name;
  return n;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Reads all of it. Returns the number of bytes, at most `most`, or -1 with errno. Of a pipe, whose
 * end might never come: ETIMEDOUT if nobody writes to it for some seconds, EAGAIN if its writer
 * sends nothing until the watchdog's timeout is near. */
static ssize_t read_all(int descriptor, char *to, size_t most, long timeout)
{
  const long for_writer = timeout > 10 ? 5 : (timeout + 1) / 2;
  const long for_data = timeout > 10 ? timeout - 5 : for_writer;
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
      if (not_begun && idle_ms >= for_writer * 1000) return errno = ETIMEDOUT, -1;
      if (idle_ms >= for_data * 1000) return errno = EAGAIN, -1;
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

char *pattern_read_file(const char *path, long timeout, char *error, size_t error_size)
{
  enum { LARGEST = 1 << 24 }; /* 16 MiB are a matrix of some 1,000 ranks */
  const int descriptor = open(path, O_RDONLY | O_NONBLOCK); /* a FIFO's opening may wait too */
  char *text = malloc(LARGEST + 1), name[SHOWN_TEXT];
  const ssize_t length =
      descriptor < 0 || !text ? -1 : read_all(descriptor, text, LARGEST + 1, timeout);
  shown(path, name);
  if (length < 0 && errno == ETIMEDOUT)
    snprintf(error, error_size, "--matrix: nobody writes to the pipe %s; allowed: a matrix", name);
  else if (length < 0 && errno == EAGAIN)
    snprintf(error, error_size, "--matrix: the writer of %s sends nothing; allowed: a matrix",
             name);
  else if (length < 0)
    snprintf(error, error_size, "--matrix: cannot read %s: %s; allowed: a file with a matrix", name,
             strerror(errno));
  else if (length > LARGEST)
    snprintf(error, error_size, "--matrix: %s is larger than 16 MiB; allowed: less", name);
  else if (memchr(text, '\0', (size_t)length))
    snprintf(error, error_size, "--matrix: %s has a byte 0; allowed: a text file", name);
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
      snprintf(error, error_size,
               "--matrix: %s is not square: row %d has %d numbers, row 1 has %d; allowed: a square",
               name, rows, column, columns);
      return -1;
    }
  }
  if (rows != columns)
    snprintf(error, error_size,
             "--matrix: %s is not square: %d rows, %d columns; allowed: a square", name, rows,
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
