/* SPDX-License-Identifier: Apache-2.0 */
#include "file_options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "output_file.h"
#include "shown.h"

static char *copy_of(const char *text)
{
  char *copy = strdup(text);
  if (!copy) launcher_fail(__FILE__, __LINE__, "strdup", strerror(errno), NULL);
  return copy;
}

char *file_of_rank(const char *pattern, int rank)
{
  char *name = NULL;
  size_t length = 0;
  FILE *text = open_memstream(&name, &length);
  if (!text) launcher_fail(__FILE__, __LINE__, "open_memstream", strerror(errno), NULL);
  for (; *pattern; pattern++)
    if (pattern[0] == '%' && pattern[1] == 'r')
      fprintf(text, "%d", rank), pattern++;
    else
      fputc(*pattern, text);
  if (fclose(text) != 0) launcher_fail(__FILE__, __LINE__, "fclose", strerror(errno), NULL);
  return name;
}

/* ---- what a name means ----------------------------------------------------------------------- */

/* An entry of a folder, and a file if there is one. */
struct place {
  char *name, *path; /* as typed, and behind links */
  const char *base;
  struct stat folder, file;
  bool has_folder, has_file;
};

static struct place find_place(const struct file_option *option, int rank)
{
  struct place place = {0};
  place.name = option->per_rank ? file_of_rank(option->pattern, rank) : copy_of(option->pattern);
  place.path = file_behind_links(place.name);
  char *slash = strrchr(place.path, '/');
  place.base = slash ? slash + 1 : place.path;
  place.has_file = stat(place.path, &place.file) == 0;
  const char first = *place.base;
  if (slash) slash[1] = '\0'; /* the folder only, for a moment */
  place.has_folder = stat(slash ? place.path : ".", &place.folder) == 0;
  if (slash) slash[1] = first;
  return place;
}

static void forget_place(struct place *place)
{
  free(place->name);
  free(place->path);
}

static bool same_inode(const struct stat *a, const struct stat *b)
{
  return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static bool same_place(const struct place *a, const struct place *b)
{
  if (a->has_file && b->has_file && same_inode(&a->file, &b->file)) return true; /* hard links */
  return a->has_folder && b->has_folder && same_inode(&a->folder, &b->folder) &&
         strcmp(a->base, b->base) == 0;
}

static bool is_standard_output(const struct place *place)
{
  struct stat out;
  return place->has_file && S_ISREG(place->file.st_mode) && fstat(STDOUT_FILENO, &out) == 0 &&
         same_inode(&place->file, &out);
}

/* ---- rules ----------------------------------------------------------------------------------- */

#define FAIL(...) (snprintf(error, error_size, __VA_ARGS__), -1)

/* Rank `rank`'s file of one output against rank `other_rank`'s of another option, or of the same.
 */
static int compare(const struct file_option *output, const struct place *mine, int rank,
                   const struct file_option *other, int other_rank, char *error, size_t error_size)
{
  char a[SHOWN_TEXT], b[SHOWN_TEXT];
  struct place theirs = find_place(other, other_rank);
  const bool same = same_place(mine, &theirs);
  shown(mine->name, a), shown(theirs.name, b);
  forget_place(&theirs);
  if (!same) return 0;
  if (output == other)
    return FAIL("%s: ranks %d and %d have the same file, %s; allowed: one each", output->option,
                rank, other_rank, a);
  if (other->output)
    return FAIL("%s and %s are the same file: %s and %s; allowed: two", other->option,
                output->option, b, a);
  return FAIL("%s is the file of %s: %s and %s; allowed: another one", output->option,
              other->option, a, b);
}

/* One output of this rank. `o` is its number. */
static int check_output(const struct file_option *files, int nfiles, int o, int rank, int nranks,
                        char *error, size_t error_size)
{
  char text[SHOWN_TEXT];
  struct place mine = find_place(&files[o], rank);
  int result = 0;
  for (int f = 0; f < nfiles && result == 0; f++)
    for (int r = 0; r < (files[f].per_rank ? nranks : 1) && result == 0; r++) {
      const bool itself = f == o && r == rank;
      const bool later = f > o && files[f].output; /* of two outputs the later one is told */
      if (!itself && !later)
        result = compare(&files[o], &mine, rank, &files[f], r, error, error_size);
    }
  if (result == 0 && is_standard_output(&mine))
    result = FAIL("%s is the file that standard output goes to: %s; allowed: another one",
                  files[o].option, shown(mine.name, text));
  if (result == 0) result = output_file_check(mine.name, error, error_size);
  forget_place(&mine);
  return result;
}

int file_options_check(const struct file_option *files, int nfiles, int rank, int nranks,
                       char *error, size_t error_size)
{
  char text[SHOWN_TEXT];
  for (int f = 0; f < nfiles; f++)
    if (files[f].per_rank && nranks > 1 && !strstr(files[f].pattern, "%r"))
      return FAIL("%s: '%s' is one file for %d ranks; allowed: a name with %%r, which becomes the "
                  "rank",
                  files[f].option, shown(files[f].pattern, text), nranks);
  for (int o = 0; o < nfiles; o++) {
    const bool written_here = files[o].output && (files[o].per_rank || rank == 0);
    if (written_here && check_output(files, nfiles, o, rank, nranks, error, error_size) != 0)
      return -1;
  }
  return 0;
}
