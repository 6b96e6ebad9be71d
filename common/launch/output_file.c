/* SPDX-License-Identifier: Apache-2.0 */
#include "output_file.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static int fail(const struct output_file *file, char *error, size_t error_size)
{
  snprintf(error, error_size, "cannot write %s: %s", file->name, strerror(errno));
  return -1;
}

static char *text(const char *format, ...)
{
  char *result;
  va_list arguments;
  va_start(arguments, format);
  if (vasprintf(&result, format, arguments) < 0)
    launcher_fail(__FILE__, __LINE__, "malloc", "out of memory", NULL);
  va_end(arguments);
  return result;
}

/* The name at the end of all links, also of a file that does not exist; NULL if its folder does
 * not. */
static char *without_links(const char *name)
{
  char *path = realpath(name, NULL);
  if (path || errno != ENOENT) return path;
  const char *slash = strrchr(name, '/'), *last = slash ? slash + 1 : name;
  char *folder = text("%.*s./", (int)(last - name), name);
  char *real = *last ? realpath(folder, NULL) : NULL;
  free(folder);
  if (!real) return NULL;
  path = text("%s/%s", real, last);
  free(real);
  return path;
}

char *file_identity(const char *name)
{
  struct stat status;
  if (stat(name, &status) != 0) return without_links(name);
  if (S_ISCHR(status.st_mode)) return NULL;
  return text("%jd:%jd", (intmax_t)status.st_dev, (intmax_t)status.st_ino); /* hard links, too */
}

/* Opens a new file beside the old one, which gets the mode of the old one. No other file has its
 * name. */
static FILE *open_beside(struct output_file *file, const struct stat *old)
{
  unsigned number;
  if (old && access(file->path, W_OK) != 0) return NULL;
  if (getrandom(&number, sizeof number, 0) != sizeof number) return NULL;
  file->temporary = text("%s.%08x.tmp", file->path, number);
  FILE *stream = fopen(file->temporary, "wx");
  if (stream && old) fchmod(fileno(stream), old->st_mode & 07777);
  return stream;
}

int output_file_open(struct output_file *file, const char *name, char *error, size_t error_size)
{
  struct stat status;
  const bool exists = stat(name, &status) == 0;
  *file = (struct output_file){.path = without_links(name)};
  shown(name, file->name);
  if (exists && !S_ISREG(status.st_mode))
    file->stream = fopen(name, "w"); /* fails for a folder, with a reason */
  else if (file->path)
    file->stream = open_beside(file, exists ? &status : NULL);
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
    if (file->temporary) unlink(file->temporary);
  }
  free(file->path);
  free(file->temporary);
  *file = (struct output_file){0};
}

/* Is the file complete on the disk? */
static bool complete(const struct output_file *file)
{
  return fflush(file->stream) == 0 && !ferror(file->stream);
}

static bool take_name(struct output_file *file)
{
  if (file->temporary && rename(file->temporary, file->path) != 0) return false;
  free(file->temporary);
  file->temporary = NULL;
  return true;
}

static int agree_on_files(const struct rank *me, const struct output_file *failed)
{
  char error[LAUNCHER_TEXT];
  if (failed) {
    fail(failed, error, sizeof error);
    launcher_error("%s", error);
  }
  return launcher_agree(me, failed ? EXIT_FAILED_CALL : EXIT_VERIFIED);
}

int output_files_publish(const struct rank *me, struct output_file *const *files, int nfiles)
{
  const struct output_file *failed = NULL;
  for (int i = 0; i < nfiles && !failed; i++)
    if (!complete(files[i])) failed = files[i];
  int code = agree_on_files(me, failed);
  if (code == EXIT_VERIFIED) {
    for (int i = 0; i < nfiles && !failed; i++)
      if (!take_name(files[i])) failed = files[i];
    code = agree_on_files(me, failed);
  }
  for (int i = 0; i < nfiles; i++) output_file_close(files[i]);
  return code;
}

char *file_of_rank(const char *pattern, int rank)
{
  char *name = text("%s", pattern), *next;
  for (const char *mark; (mark = strstr(name, "%r")); name = next) {
    next = text("%.*s%d%s", (int)(mark - name), name, rank, mark + 2);
    free(name);
  }
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
