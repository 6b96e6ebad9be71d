/* SPDX-License-Identifier: Apache-2.0 */
#include "patterns.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "hash.h"

enum rounding { FRACTIONS, SHARES, SHARES_OF_16 };

struct pattern_most pattern_counts(const char *pattern, const struct rank *me, size_t total,
                                   size_t element_size, size_t *sendcounts, size_t *recvcounts,
                                   char *error)
{
#define ROW(name, rounding, weight) {name, rounding},
#define WEIGHT(name, rounding, weight) (weight),
  static const struct row {
    const char *name;
    enum rounding rounding;
  } rows[] = {PATTERNS(ROW){NULL, SHARES}};
  const char *colon = strchr(pattern, ':');
  const size_t length = colon ? (size_t)(colon + 1 - pattern) : strlen(pattern);
  const struct row *row = rows;
  const int n = me->nranks;
  size_t counts[n][n]; /* [from][to] */
  struct pattern_most most = {0};
  char typed[SHOWN_TEXT];
  double A = 0, weights[n];
  const bool right = !colon || options_number(colon + 1, NUMBER_REAL, &A) == 0;
  while (row->name && (strncmp(row->name, pattern, length) || !row->name[length] != !colon)) row++;
  if (!row->name || !right || !(A >= 0 && A <= 16)) {
    snprintf(error, LAUNCHER_TEXT, "--pattern: unknown pattern '%s'; allowed:%s; A is 0 to 16",
             shown(pattern, typed), PATTERN_NAMES);
    return most;
  }

  const size_t unit = row->rounding == SHARES_OF_16 ? 16 / element_size : 1;
  for (int from = 0; from < n; from++) {
    double sum = 0;
    for (int to = 0; to < n; to++) {
      const uint64_t random = hash_mix((uint64_t)(from * n + to + 1));
      const double all[] = {PATTERNS(WEIGHT)};
      sum += weights[to] = all[row - rows];
    }
    if (row->rounding == FRACTIONS || sum == 0) sum = 1;
    for (int to = 0; to < n; to++) {
      const double units = (double)total * (weights[to] / sum) / (double)unit;
      counts[from][to] = (size_t)ceil(units) * unit;
    }
  }
  for (int rank = 0; rank < n; rank++) {
    size_t sends = 0, receives = 0;
    for (int p = 0; p < n; p++) {
      sends += counts[rank][p];
      receives += counts[p][rank];
    }
    const size_t larger = sends > receives ? sends : receives;
    if (larger > most.buffer) most.buffer = larger;
    if (larger - counts[rank][rank] > most.wire) most.wire = larger - counts[rank][rank];
    sendcounts[rank] = counts[me->rank][rank];
    recvcounts[rank] = counts[rank][me->rank];
  }
  return most;
}
