/* SPDX-License-Identifier: Apache-2.0 */
#include "names.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "npy.h"

void names_of_rank(char *name, size_t size, const char *pattern, int rank)
{
  size_t at = 0;
  name[0] = '\0';
  while (*pattern && at + 16 < size) {
    const bool is_rank = strncmp(pattern, "%r", 2) == 0;
    at += (size_t)(is_rank ? snprintf(name + at, size - at, "%d", rank)
                           : snprintf(name + at, size - at, "%c", *pattern));
    pattern += is_rank ? 2 : 1;
  }
}

/* A name, and what it stands for: an entry of a folder, and a file if there is one. */
struct place {
  char name[NPY_NAME];
  const char *base;
  struct stat folder, file;
  bool has_folder, has_file;
};

static void find_place(struct place *place, const char *pattern, int rank)
{
  char folder[NPY_NAME];
  names_of_rank(place->name, sizeof place->name, pattern, rank);
  const char *slash = strrchr(place->name, '/');
  place->base = slash ? slash + 1 : place->name;
  snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash + 1 - place->name) : 1,
           slash ? place->name : ".");
  place->has_folder = stat(folder, &place->folder) == 0;
  place->has_file = stat(place->name, &place->file) == 0;
}

static bool same_inode(const struct stat *a, const struct stat *b)
{
  return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static bool same_place(const struct place *a, const struct place *b)
{
  if (a->has_file && b->has_file && same_inode(&a->file, &b->file)) return true; /* links */
  return a->has_folder && b->has_folder && same_inode(&a->folder, &b->folder) &&
         strcmp(a->base, b->base) == 0;
}

#define FAIL(...) (snprintf(error, error_size, __VA_ARGS__), -1)

int names_check(struct names_option input, const struct names_option *outputs, int noutputs,
                int rank, int nranks, char *error, size_t error_size)
{
  struct place mine, other;
  for (int o = 0; o < noutputs; o++) {
    if (!outputs[o].pattern) continue;
    find_place(&mine, outputs[o].pattern, rank);
    for (int r = 0; r < nranks; r++) {
      if (input.pattern) find_place(&other, input.pattern, r);
      if (input.pattern && same_place(&mine, &other))
        return FAIL("%s is the file of %s: %.400s and %.400s; allowed: another one",
                    outputs[o].option, input.option, mine.name, other.name);
      for (int p = 0; p <= o; p++) {
        if (!outputs[p].pattern || (p == o && r == rank)) continue;
        find_place(&other, outputs[p].pattern, r);
        if (!same_place(&mine, &other)) continue;
        return p == o ? FAIL("%s: ranks %d and %d have the same file, %.400s; allowed: one each",
                             outputs[o].option, rank, r, mine.name)
                      : FAIL("%s and %s are the same file: %.400s and %.400s; allowed: two",
                             outputs[p].option, outputs[o].option, other.name, mine.name);
      }
    }
  }
  return 0;
}
