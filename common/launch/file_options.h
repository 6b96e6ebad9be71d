/* SPDX-License-Identifier: Apache-2.0 */
/* The files that options name. Whatever is typed, no output of a run is another file of that run:
 * that is checked here, for all programs, before any file is opened. */
#ifndef COMMON_FILE_OPTIONS_H
#define COMMON_FILE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

/* An option that was given. */
struct file_option {
  char option[48];     /* "--output (-J)" */
  const char *pattern; /* as it was typed */
  bool output;         /* is written; otherwise read */
  bool per_rank;       /* one file per rank, with %r for the rank; otherwise rank 0's */
};

/* The pattern with the rank in the place of each %r; to be freed. */
char *file_of_rank(const char *pattern, int rank);

/* Whether one of this rank's outputs cannot be written, or would destroy another file of the run:
 * an input, another output, that of another rank, the file that standard output goes to. Names are
 * compared by what they mean, not by how they are typed. Returns 0, or -1 with one line in `error`.
 */
int file_options_check(const struct file_option *files, int nfiles, int rank, int nranks,
                       char *error, size_t error_size);

#endif
