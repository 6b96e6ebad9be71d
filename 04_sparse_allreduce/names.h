/* SPDX-License-Identifier: Apache-2.0 */
/* The names of the files that an option asks for: patterns with %r for the rank. */
#ifndef NAMES_H
#define NAMES_H

#include <stddef.h>

/* The pattern with the rank in the place of each %r. */
void names_of_rank(char *name, size_t size, const char *pattern, int rank);

/* An option and what was typed there, or NULL. */
struct names_option {
  const char *option, *pattern;
};

/* Whether writing one of `outputs` on rank `rank` would destroy `input`, another output, or that of
 * another rank: by what the names mean here, not by how they are typed. Returns 0, or -1 with one
 * line in `error`. */
int names_check(struct names_option input, const struct names_option *outputs, int noutputs,
                int rank, int nranks, char *error, size_t error_size);

#endif
