/* SPDX-License-Identifier: Apache-2.0 */
#include "rows.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "launcher.h"

int rows_open(struct rows *rows, const char *name)
{
  char error[LAUNCHER_TEXT];
  *rows = (struct rows){0};
  if (!name) return 0;
  if (output_file_open(&rows->output, name, error, sizeof error) != 0) {
    launcher_error("%s", error);
    return -1;
  }
  rows->json = strcmp(strrchr(name, '.'), ".json") == 0;
  rows->text = open_memstream(&rows->text_bytes, &rows->text_length);
  rows->heading = open_memstream(&rows->heading_bytes, &rows->heading_length);
  if (!rows->text || !rows->heading)
    launcher_fail(__FILE__, __LINE__, "open_memstream", strerror(errno), NULL);
  return 0;
}

/* What stands before a value. */
static void begin_value(struct rows *rows, const char *column)
{
  if (rows->json && rows->nvalues == 0) fprintf(rows->text, "%s\n  {", rows->nrows ? "," : "");
  if (rows->nvalues) fprintf(rows->text, rows->json ? ", " : ",");
  if (rows->json) fprintf(rows->text, "\"%s\": ", column);
  if (rows->nrows == 0) fprintf(rows->heading, "%s%s", rows->nvalues ? "," : "", column);
  rows->nvalues++;
}

void rows_text(struct rows *rows, const char *column, const char *value)
{
  if (!rows->output.stream) return;
  begin_value(rows, column);
  fprintf(rows->text, rows->json ? "\"%s\"" : "%s", value);
}

void rows_number(struct rows *rows, const char *column, double value)
{
  if (!rows->output.stream) return;
  begin_value(rows, column);
  if (isfinite(value))
    fprintf(rows->text, "%.6g", value);
  else
    fprintf(rows->text, "%s", rows->json ? "null" : "");
}

void rows_integer(struct rows *rows, const char *column, unsigned long long value)
{
  if (!rows->output.stream) return;
  begin_value(rows, column);
  fprintf(rows->text, "%llu", value);
}

void rows_end(struct rows *rows)
{
  if (!rows->output.stream) return;
  fprintf(rows->text, rows->json ? "}" : "\n");
  rows->nvalues = 0;
  rows->nrows++;
}

void rows_finish(struct rows *rows)
{
  if (!rows->output.stream) return;
  if (fclose(rows->text) != 0 || fclose(rows->heading) != 0)
    launcher_fail(__FILE__, __LINE__, "fclose", strerror(errno), NULL);
  if (rows->json)
    fprintf(rows->output.stream, "[%s\n]\n", rows->text_bytes);
  else
    fprintf(rows->output.stream, "%s\n%s", rows->heading_bytes, rows->text_bytes);
  free(rows->text_bytes);
  free(rows->heading_bytes);
}
