/* SPDX-License-Identifier: Apache-2.0 */
#include "rows.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

int rows_open(struct rows *rows, const char *name)
{
  char error[LAUNCHER_TEXT];
  memset(rows, 0, sizeof *rows);
  if (!name) return 0;
  if (output_file_open(&rows->output, name, error, sizeof error) != 0) {
    launcher_error("%s", error);
    return -1;
  }
  rows->json = strcmp(strrchr(name, '.'), ".json") == 0;
  return 0;
}

static void add(struct rows *rows, const char *column, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void add(struct rows *rows, const char *column, const char *format, ...)
{
  va_list arguments;
  if (rows->nvalues == ROWS_COLUMNS)
    launcher_fail(__FILE__, __LINE__, "rows", "more values than ROWS_COLUMNS", NULL);
  rows->columns[rows->nvalues] = column;
  va_start(arguments, format);
  vsnprintf(rows->values[rows->nvalues++], ROWS_VALUE, format, arguments);
  va_end(arguments);
}

void rows_text(struct rows *rows, const char *column, const char *value)
{
  add(rows, column, rows->json ? "\"%s\"" : "%s", value);
}

void rows_number(struct rows *rows, const char *column, double value)
{
  if (isfinite(value))
    add(rows, column, "%.6g", value);
  else
    add(rows, column, "%s", rows->json ? "null" : "");
}

void rows_integer(struct rows *rows, const char *column, unsigned long long value)
{
  add(rows, column, "%llu", value);
}

void rows_end(struct rows *rows)
{
  FILE *file = rows->output.stream;
  const int n = rows->nvalues;
  rows->nvalues = 0;
  if (!file) return;
  for (int i = 0; i < n && rows->nrows == 0 && !rows->json; i++)
    fprintf(file, "%s%s", rows->columns[i], i < n - 1 ? "," : "\n");
  if (rows->json) fprintf(file, "%s\n  {", rows->nrows ? "," : "[");
  for (int i = 0; i < n; i++)
    if (rows->json)
      fprintf(file, "%s\"%s\": %s", i ? ", " : "", rows->columns[i], rows->values[i]);
    else
      fprintf(file, "%s%s", rows->values[i], i < n - 1 ? "," : "\n");
  if (rows->json) fprintf(file, "}");
  rows->nrows++;
}

void rows_finish(struct rows *rows)
{
  if (rows->output.stream && rows->json)
    fprintf(rows->output.stream, "%s\n]\n", rows->nrows ? "" : "[");
}
