/* SPDX-License-Identifier: Apache-2.0 */
#include "rows.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher.h"

static int file_error(const struct rows *rows)
{
  launcher_error("cannot write %s: %s", rows->name, strerror(errno));
  return -1;
}

static FILE *open_temporary(const struct rows *rows, char *temporary, size_t size)
{
  snprintf(temporary, size, "%.4000s.%ld.tmp", rows->name, (long)getpid());
  return fopen(temporary, "w");
}

int rows_check(const char *name, char *error, size_t error_size)
{
  char temporary[4096];
  struct stat status;
  FILE *trial = NULL;
  if (!name) return 0;
  errno = EISDIR;
  if (stat(name, &status) != 0 || !S_ISDIR(status.st_mode))
    trial = open_temporary(&(struct rows){.name = name}, temporary, sizeof temporary);
  if (!trial) {
    snprintf(error, error_size, "cannot write %.400s: %s", name, strerror(errno));
    return -1;
  }
  fclose(trial);
  unlink(temporary);
  return 0;
}

int rows_open(struct rows *rows, const char *name)
{
  *rows = (struct rows){.name = name};
  if (!name) return 0;
  rows->json = strcmp(strrchr(name, '.'), ".json") == 0;
  rows->file = open_memstream(&rows->text, &rows->length);
  rows->heading = open_memstream(&rows->heading_text, &rows->heading_length);
  return rows->file && rows->heading ? 0 : file_error(rows);
}

/* What stands before a value. */
static void begin_value(struct rows *rows, const char *column)
{
  if (rows->json && rows->nvalues == 0) fprintf(rows->file, "%s\n  {", rows->nrows ? "," : "");
  if (rows->nvalues) fprintf(rows->file, rows->json ? ", " : ",");
  if (rows->json) fprintf(rows->file, "\"%s\": ", column);
  if (rows->nrows == 0) fprintf(rows->heading, "%s%s", rows->nvalues ? "," : "", column);
  rows->nvalues++;
}

void rows_text(struct rows *rows, const char *column, const char *value)
{
  if (!rows->name) return;
  begin_value(rows, column);
  fprintf(rows->file, rows->json ? "\"%s\"" : "%s", value);
}

void rows_number(struct rows *rows, const char *column, double value)
{
  if (!rows->name) return;
  begin_value(rows, column);
  if (isfinite(value))
    fprintf(rows->file, "%.6g", value);
  else
    fprintf(rows->file, "%s", rows->json ? "null" : "");
}

void rows_integer(struct rows *rows, const char *column, unsigned long long value)
{
  if (!rows->name) return;
  begin_value(rows, column);
  fprintf(rows->file, "%llu", value);
}

void rows_end(struct rows *rows)
{
  if (!rows->name) return;
  fprintf(rows->file, rows->json ? "}" : "\n");
  rows->nvalues = 0;
  rows->nrows++;
}

int rows_close(struct rows *rows)
{
  char temporary[4096];
  if (!rows->name || !rows->file || !rows->heading) return 0;
  bool good = fclose(rows->file) == 0 && fclose(rows->heading) == 0;
  FILE *file = good ? open_temporary(rows, temporary, sizeof temporary) : NULL;
  if (file) {
    if (rows->json)
      fprintf(file, "[%s\n]\n", rows->text);
    else
      fprintf(file, "%s\n%s", rows->heading_text, rows->text);
    good = !ferror(file);
    good &= fclose(file) == 0;
    good = good && rename(temporary, rows->name) == 0;
    if (!good) unlink(temporary);
  }
  free(rows->text);
  free(rows->heading_text);
  return file && good ? 0 : file_error(rows);
}
