/* SPDX-License-Identifier: Apache-2.0 */
#include "output_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int fail(const struct output_file *file, char *error, size_t error_size)
{
  snprintf(error, error_size, "cannot write %s: %s", file->name, strerror(errno));
  return -1;
}

static void out_of_memory(void)
{
  launcher_fail(__FILE__, __LINE__, "malloc", "out of memory", NULL);
}

int output_file_open(struct output_file *file, const char *name, char *error, size_t error_size)
{
  struct stat status;
  const bool in_place = stat(name, &status) == 0 && !S_ISREG(status.st_mode);
  *file = (struct output_file){.path = strdup(name)};
  if (!file->path || asprintf(&file->temporary, "%s%s", name, in_place ? "" : ".tmp") < 0)
    out_of_memory();
  shown(name, file->name);
  file->stream = fopen(file->temporary, "w"); /* says what is wrong with a folder, too */
  if (file->stream) return 0;
  fail(file, error, error_size);
  output_file_close(file);
  return -1;
}

int output_file_check(const char *name, char *error, size_t error_size)
{
  struct output_file trial;
  struct stat status;
  /* who reads a FIFO would take a trial for the end of it */
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
        failed = rename(file->temporary, file->path) != 0; /* of one name: nothing */
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
  char *name = NULL;
  size_t length;
  FILE *text = open_memstream(&name, &length);
  if (!text) out_of_memory();
  for (const char *c = pattern; *c; c++) {
    if (c[0] == '%' && c[1] == 'r')
      fprintf(text, "%d", rank), c++;
    else
      fputc(*c, text);
  }
  if (fclose(text) != 0) out_of_memory();
  return name;
}
