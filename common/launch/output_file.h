/* SPDX-License-Identifier: Apache-2.0 */
/* A file that a program writes, or leaves as it was: it is NAME.tmp until all of it is written, and
 * then takes NAME. So nobody finds half a file, and an old one survives a run that fails. (A run
 * that is killed leaves NAME.tmp.) What is no regular file, such as a FIFO, is written to as it is.
 *
 * Functions return 0, or -1 with one line (no newline) in `error`. */
#ifndef COMMON_OUTPUT_FILE_H
#define COMMON_OUTPUT_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "launcher.h"

struct output_file {
  FILE *stream;           /* to write to; NULL: there is no file */
  char *path, *temporary; /* the names; the same where it is written in place */
  char name[SHOWN_TEXT];  /* for messages */
};

int output_file_open(struct output_file *file, const char *name, char *error, size_t error_size);

/* Whether output_file_open would work. Leaves nothing. */
int output_file_check(const char *name, char *error, size_t error_size);

/* Ends writing. A file that was not published is removed, an old one stays as it was. Harmless on a
 * struct that is all zero. */
void output_file_close(struct output_file *file);

/* Gives all ranks' files their names once all of them are written, and closes them. Returns
 * EXIT_VERIFIED, or EXIT_FAILED_CALL after a line on stderr; then no file, or not all, got its
 * name. A rank may have no files. Collective. */
int output_files_publish(const struct rank *me, struct output_file *const *files, int nfiles);

/* The pattern with the rank in the place of each %r; to be freed. */
char *file_of_rank(const char *pattern, int rank);

/* ---- tables --------------------------------------------------------------------------------- */

/* A table as a file, by the file's ending: an array of objects in JSON, a line per row in CSV. It
 * gets its name by output_files_publish. For rank 0; on the others there is no file. */
enum { ROWS_COLUMNS = 48, ROWS_VALUE = 64 };

struct rows {
  struct output_file output; /* without a stream all functions do nothing */
  bool json;
  long nrows;
  int nvalues; /* of the current row */
  const char *columns[ROWS_COLUMNS];
  char values[ROWS_COLUMNS][ROWS_VALUE];
};

/* `name` may be NULL: no file. Returns 0, or -1 after a line on stderr. */
int rows_open(struct rows *rows, const char *name);

/* A row, value by value, the same columns in each; `column` has to stay valid. */
void rows_text(struct rows *rows, const char *column, const char *value);
void rows_number(struct rows *rows, const char *column, double value); /* NaN: none */
void rows_integer(struct rows *rows, const char *column, unsigned long long value);
void rows_end(struct rows *rows);

/* No more rows: the file is complete, and can be published. */
void rows_finish(struct rows *rows);

#endif
