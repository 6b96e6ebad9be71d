/* SPDX-License-Identifier: Apache-2.0 */
/* A table as a file: one object per row in JSON, one line per row in CSV, by the file's ending. It
 * is gathered in memory, and gets its name by output_files_publish of output_file.h. For rank 0; on
 * the others there is no file. */
#ifndef ROWS_H
#define ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "output_file.h"

struct rows {
  struct output_file output; /* without a stream all functions do nothing */
  bool json;
  FILE *text, *heading; /* memory; CSV gathers its heading from the first row */
  char *text_bytes, *heading_bytes;
  size_t text_length, heading_length;
  long nrows;
  int nvalues; /* of the current row */
};

/* `name` may be NULL: no file. Returns 0, or -1 after a line on stderr. */
int rows_open(struct rows *rows, const char *name);

/* A row, value by value, the same columns in each. */
void rows_text(struct rows *rows, const char *column, const char *value);
void rows_number(struct rows *rows, const char *column, double value); /* NaN: none */
void rows_integer(struct rows *rows, const char *column, unsigned long long value);
void rows_end(struct rows *rows);

/* No more rows: writes the file, which can then be published, and frees the memory. */
void rows_finish(struct rows *rows);

#endif
