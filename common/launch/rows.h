/* SPDX-License-Identifier: Apache-2.0 */
/* A table as a file, by the file's ending: an array of objects in JSON, a line per row in CSV. It
 * gets its name by output_files_publish of output_file.h. For rank 0; on the others there is no
 * file. */
#ifndef COMMON_ROWS_H
#define COMMON_ROWS_H

#include "output_file.h"

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
