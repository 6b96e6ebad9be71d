/* SPDX-License-Identifier: Apache-2.0 */
/* A table as a file: one object per row in JSON, one line per row in CSV, by the file's ending. It
 * is gathered in memory and written when it is complete, under another name first: nobody finds
 * half a file. For rank 0. */
#ifndef ROWS_H
#define ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct rows {
  const char *name; /* NULL: there is no file, and all functions do nothing */
  bool json;
  FILE *file, *heading; /* memory; CSV gathers its heading from the first row */
  char *text, *heading_text;
  size_t length, heading_length;
  long nrows;
  int nvalues; /* of the current row */
};

/* Whether that file can be written, before hours of work: 0, or -1 with one line in `error`. */
int rows_check(const char *name, char *error, size_t error_size);

/* Returns 0, or -1 after a line on stderr. */
int rows_open(struct rows *rows, const char *name);

/* A row, value by value, the same columns in each. */
void rows_text(struct rows *rows, const char *column, const char *value);
void rows_number(struct rows *rows, const char *column, double value); /* NaN: none */
void rows_integer(struct rows *rows, const char *column, unsigned long long value);
void rows_end(struct rows *rows);

/* Writes the file and frees the memory. Returns 0, or -1 after a line on stderr. */
int rows_close(struct rows *rows);

#endif
