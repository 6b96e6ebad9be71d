/* SPDX-License-Identifier: Apache-2.0 */
/* A file that a program writes as a whole or not at all. Until it is complete it has another name,
 * NAME.<8 digits>.tmp, which no other file has. So a reader never finds half a file, an old file
 * survives a run that fails, and two jobs do not write into each other's file. (A run that is ended
 * early leaves that file.) A new file takes the place of the old one: at the end of links, and with
 * the same mode. A FIFO or device is written to directly, a link that leads nowhere is replaced.
 *
 * Functions return 0, or -1 with one line (no newline) in `error`. */
#ifndef COMMON_OUTPUT_FILE_H
#define COMMON_OUTPUT_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "launcher.h"

struct output_file {
  FILE *stream;          /* to write to; NULL: there is no file */
  char *path;            /* without links */
  char *temporary;       /* its name until it is complete; NULL: written directly, or complete */
  char name[SHOWN_TEXT]; /* for messages */
};

int output_file_open(struct output_file *file, const char *name, char *error, size_t error_size);

/* Whether output_file_open would work. Leaves no file. */
int output_file_check(const char *name, char *error, size_t error_size);

/* Ends writing. A file that was not published is removed, and an old one stays. A struct that is
 * all zero is allowed. */
void output_file_close(struct output_file *file);

/* Closes the files, and gives them their names when all ranks have written theirs. Returns
 * EXIT_VERIFIED, or EXIT_FAILED_CALL after a line on stderr: then some or all files did not get
 * their names. A rank may have no files. Collective. */
int output_files_publish(const struct rank *me, struct output_file *const *files, int nfiles);

/* A text that is the same for all names of one file, which need not exist. NULL: a device, or there
 * is no such folder. The caller frees it. */
char *file_identity(const char *name);

/* The pattern with the rank instead of each %r. The caller frees it. */
char *file_of_rank(const char *pattern, int rank);

/* ---- tables --------------------------------------------------------------------------------- */

/* A table as a file: an array of objects in a .json file, a line per row in a .csv file. It gets
 * its name in output_files_publish. Only rank 0 has one. */
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

/* Adds a value to the row. Every row has the same columns; `column` has to stay valid. */
void rows_text(struct rows *rows, const char *column, const char *value);
void rows_number(struct rows *rows, const char *column, double value); /* NaN: none */
void rows_integer(struct rows *rows, const char *column, unsigned long long value);
void rows_end(struct rows *rows);

/* After the last row: completes the file, which can then be published. */
void rows_finish(struct rows *rows);

#endif
