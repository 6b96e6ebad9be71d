/* SPDX-License-Identifier: Apache-2.0 */
#include "output_file.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int fail(const struct output_file *file, char *error, size_t error_size)
{
  snprintf(error, error_size, "cannot write %s: %s", file->name, strerror(errno));
  return -1;
}

int output_file_open(struct output_file *file, const char *name, char *error, size_t error_size)
{
  struct stat status;
  const bool in_place = stat(name, &status) == 0 && !S_ISREG(status.st_mode);
  *file = (struct output_file){.path = strdup(name)};
  if (!file->path || asprintf(&file->temporary, "%s%s", name, in_place ? "" : ".tmp") < 0)
    launcher_fail(__FILE__, __LINE__, "malloc", "out of memory", NULL);
  shown(name, file->name);
  file->stream = fopen(file->temporary, "w"); /* fails for a folder, with a reason */
  if (file->stream) return 0;
  fail(file, error, error_size);
  output_file_close(file);
  return -1;
}

int output_file_check(const char *name, char *error, size_t error_size)
{
  struct output_file trial;
  struct stat status;
  /* the reader of a FIFO would take a trial for its end */
  if (stat(name, &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) return 0;
  const int result = output_file_open(&trial, name, error, error_size);
  output_file_close(&trial);
  return result;
}

void output_file_close(struct output_file *file)
{
  if (file->stream) {
    fclose(file->stream);
    if (strcmp(file->temporary, file->path) != 0) unlink(file->temporary); /* unless published */
  }
  free(file->path);
  free(file->temporary);
  *file = (struct output_file){0};
}

int output_files_publish(const struct rank *me, struct output_file *const *files, int nfiles)
{
  char error[LAUNCHER_TEXT];
  int code = EXIT_VERIFIED;
  for (int renaming = 0; renaming < 2 && code == EXIT_VERIFIED; renaming++) {
    int failed = 0;
    for (int i = 0; i < nfiles && !failed; i++) {
      const struct output_file *file = files[i];
      if (renaming)
        failed = rename(file->temporary, file->path) != 0; /* no effect if both names are equal */
      else
        failed = fflush(file->stream) != 0 || ferror(file->stream);
      if (failed) fail(file, error, sizeof error);
    }
    if (failed) launcher_error("%s", error);
    code = launcher_agree(me, failed ? EXIT_FAILED_CALL : EXIT_VERIFIED);
  }
  for (int i = 0; i < nfiles; i++) output_file_close(files[i]);
  return code;
}

char *file_of_rank(const char *pattern, int rank)
{
  char *name = strdup(pattern), *next;
  for (const char *mark; name && (mark = strstr(name, "%r")); name = next) {
    if (asprintf(&next, "%.*s%d%s", (int)(mark - name), name, rank, mark + 2) < 0) next = NULL;
    free(name);
  }
  if (!name) launcher_fail(__FILE__, __LINE__, "malloc", "out of memory", NULL);
  return name;
}

/* ---- tables ------------------------------------------------------------------------------- */

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

/* Room for the next value. */
static char *next_value(struct rows *rows, const char *column)
{
  if (rows->nvalues == ROWS_COLUMNS)
    launcher_fail(__FILE__, __LINE__, "rows", "more values than ROWS_COLUMNS", NULL);
  rows->columns[rows->nvalues] = column;
  return rows->values[rows->nvalues++];
}

void rows_text(struct rows *rows, const char *column, const char *value)
{
  snprintf(next_value(rows, column), ROWS_VALUE, rows->json ? "\"%s\"" : "%s", value);
}

void rows_number(struct rows *rows, const char *column, double value)
{
  char *text = next_value(rows, column);
  if (isfinite(value))
    snprintf(text, ROWS_VALUE, "%.6g", value);
  else
    strcpy(text, rows->json ? "null" : "");
}

void rows_integer(struct rows *rows, const char *column, unsigned long long value)
{
  snprintf(next_value(rows, column), ROWS_VALUE, "%llu", value);
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
