/* SPDX-License-Identifier: Apache-2.0 */
/* The format: "\x93NUMPY", version (2 bytes), length of the header (2 bytes, from version 2 on 4),
 * the header, which is a Python dictionary such as
 *   {'descr': '<f4', 'fortran_order': False, 'shape': (70, 1048576), }
 * padded with blanks and a newline to a multiple of 64 bytes, and the elements. */
#include "npy.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char MAGIC[] = "\x93NUMPY";
enum { MAGIC_LENGTH = 6, MAX_HEADER = 1 << 16 };
#define ALLOWED "allowed: a float32 array of shape [n] or [steps, n], C order, as numpy.save writes"

#define FAIL(...) (snprintf(error, error_size, __VA_ARGS__), -1)

/* ---- the dictionary -------------------------------------------------------------------------- */

/* What the header says; dimensions -1: nothing yet. */
struct header {
  char descr[32];
  int fortran, dimensions;
  unsigned long long shape[2];
};

static void skip_blanks(const char **at)
{
  while (isspace((unsigned char)**at)) ++*at;
}

static bool take(const char **at, const char *word)
{
  skip_blanks(at);
  if (strncmp(*at, word, strlen(word)) != 0) return false;
  *at += strlen(word);
  return true;
}

/* 'text' or "text". */
static bool take_string(const char **at, char *text, size_t size)
{
  skip_blanks(at);
  const char quote = **at;
  if (quote != '\'' && quote != '"') return false;
  const char *end = strchr(*at + 1, quote);
  if (!end) return false;
  snprintf(text, size, "%.*s", (int)(end - *at - 1), *at + 1);
  *at = end + 1;
  return true;
}

/* (), (3,) or (70, 3); of more dimensions only the number is kept. */
static bool take_shape(const char **at, struct header *h)
{
  if (!take(at, "(")) return false;
  for (h->dimensions = 0; !take(at, ")"); h->dimensions++) {
    char *end;
    skip_blanks(at);
    if (!isdigit((unsigned char)**at)) return false;
    errno = 0;
    const unsigned long long value = strtoull(*at, &end, 10);
    if (errno == ERANGE) return false;
    if (h->dimensions < 2) h->shape[h->dimensions] = value;
    *at = end;
    take(at, "L"); /* long integers of Python 2 */
    if (!take(at, ",") && **at != ')') return false;
  }
  return true;
}

static bool parse(const char *text, struct header *h)
{
  const char *at = text;
  char key[32];
  *h = (struct header){.fortran = -1, .dimensions = -1};
  if (!take(&at, "{")) return false;
  while (!take(&at, "}")) {
    if (!take_string(&at, key, sizeof key) || !take(&at, ":")) return false;
    if (strcmp(key, "descr") == 0) {
      skip_blanks(&at);
      if (*at == '[')
        return snprintf(h->descr, sizeof h->descr, "a structure"), true; /* refused by the caller */
      if (!take_string(&at, h->descr, sizeof h->descr)) return false;
    } else if (strcmp(key, "fortran_order") == 0) {
      h->fortran = take(&at, "True") ? 1 : take(&at, "False") ? 0 : -1;
      if (h->fortran < 0) return false;
    } else if (strcmp(key, "shape") != 0 || !take_shape(&at, h)) {
      return false;
    }
    take(&at, ",");
  }
  skip_blanks(&at);
  return *at == '\0' && h->descr[0] && h->fortran >= 0 && h->dimensions >= 0;
}

/* ---- reading --------------------------------------------------------------------------------- */

static int check_header(struct npy *npy, const struct header *h, char *error, size_t error_size)
{
  const char *name = npy->name;
  if (strcmp(h->descr, "<f4") != 0)
    return FAIL("%s: elements are %.20s, not float32 ('<f4'); " ALLOWED, name, h->descr);
  if (h->fortran) return FAIL("%s: the array is in Fortran order; " ALLOWED, name);
  if (h->dimensions != 1 && h->dimensions != 2)
    return FAIL("%s: the array has %d dimensions; " ALLOWED, name, h->dimensions);
  const unsigned long long steps = h->dimensions == 2 ? h->shape[0] : 1;
  const unsigned long long count = h->shape[h->dimensions - 1];
  if (steps == 0 || count == 0) return FAIL("%s: the array is empty; " ALLOWED, name);
  if (steps > SIZE_MAX / sizeof(float) / count / 2)
    return FAIL("%s: a shape of %llu x %llu is too large; " ALLOWED, name, steps, count);
  npy->steps = (size_t)steps;
  npy->count = (size_t)count;
  npy->dimensions = h->dimensions;
  return 0;
}

/* Reads up to the first element. */
static int read_header(struct npy *npy, char *error, size_t error_size)
{
  const char *name = npy->name;
  unsigned char start[MAGIC_LENGTH + 2], length[4] = {0};
  struct header header;
  if (fread(start, 1, sizeof start, npy->file) != sizeof start ||
      memcmp(start, MAGIC, MAGIC_LENGTH) != 0)
    return FAIL("%s: not a .npy file; " ALLOWED, name);
  if (start[MAGIC_LENGTH] != 1 && start[MAGIC_LENGTH] != 2)
    return FAIL("%s: version %d of the .npy format; allowed: 1 and 2", name, start[MAGIC_LENGTH]);
  const size_t length_bytes = start[MAGIC_LENGTH] == 1 ? 2 : 4;
  if (fread(length, 1, length_bytes, npy->file) != length_bytes)
    return FAIL("%s: truncated within the header; " ALLOWED, name);
  const size_t bytes =
      length[0] | (size_t)length[1] << 8 | (size_t)length[2] << 16 | (size_t)length[3] << 24;
  if (bytes > MAX_HEADER)
    return FAIL("%s: a header of %zu bytes is too long; " ALLOWED, name, bytes);
  char *text = calloc(bytes + 1, 1);
  if (!text) return FAIL("%s: out of memory", name);
  const bool whole = fread(text, 1, bytes, npy->file) == bytes;
  const bool good = whole && strlen(text) == bytes && parse(text, &header);
  free(text);
  if (!whole) return FAIL("%s: truncated within the header; " ALLOWED, name);
  if (!good) return FAIL("%s: the header is not one of a .npy file; " ALLOWED, name);
  return check_header(npy, &header, error, error_size);
}

int npy_open(struct npy *npy, const char *path, char *error, size_t error_size)
{
  struct stat status;
  *npy = (struct npy){0};
  shown(path, npy->name);
  const char *name = npy->name;
  /* first, because opening a FIFO waits for who writes to it */
  if (stat(path, &status) != 0) return FAIL("cannot read %s: %s", name, strerror(errno));
  if (!S_ISREG(status.st_mode)) return FAIL("%s: not a file; " ALLOWED, name);
  npy->file = fopen(path, "rb");
  if (!npy->file || fstat(fileno(npy->file), &status) != 0)
    return FAIL("cannot read %s: %s", name, strerror(errno));
  if (read_header(npy, error, error_size) != 0) return -1;

  const unsigned long long wanted = (unsigned long long)npy->steps * npy->count * sizeof(float);
  npy->start = ftello(npy->file);
  const unsigned long long got = (unsigned long long)(status.st_size - npy->start);
  if (got < wanted)
    return FAIL("%s: truncated: %llu bytes of data, the shape says %llu; " ALLOWED, name, got,
                wanted);
  if (got > wanted)
    return FAIL("%s: %llu bytes of data, but the shape says %llu; " ALLOWED, name, got, wanted);
  return 0;
}

int npy_read(struct npy *npy, float *to, char *error, size_t error_size)
{
  if (fread(to, sizeof *to, npy->count, npy->file) == npy->count) return 0;
  return FAIL("cannot read %s: %s", npy->name,
              ferror(npy->file) ? strerror(errno) : "it has become shorter");
}

void npy_rewind(struct npy *npy)
{
  fseeko(npy->file, (off_t)npy->start, SEEK_SET); /* of a regular file that is open: cannot fail */
}

/* ---- writing --------------------------------------------------------------------------------- */

int npy_create(struct npy *npy, const char *path, int dimensions, size_t steps, size_t count,
               char *error, size_t error_size)
{
  char header[128], shape[64];
  *npy = (struct npy){.steps = steps, .count = count, .dimensions = dimensions};
  if (output_file_open(&npy->output, path, error, error_size) != 0) return -1;
  FILE *file = npy->output.stream;
  if (dimensions == 1)
    snprintf(shape, sizeof shape, "(%zu,)", count);
  else
    snprintf(shape, sizeof shape, "(%zu, %zu)", steps, count);
  const int length = snprintf(header, sizeof header,
                              "{'descr': '<f4', 'fortran_order': False, 'shape': %s, }", shape);
  const int bytes = (MAGIC_LENGTH + 4 + length + 1 + 63) / 64 * 64 - (MAGIC_LENGTH + 4);
  fwrite(MAGIC, 1, MAGIC_LENGTH, file);
  fwrite((const char[]){1, 0, (char)bytes, 0}, 1, 4, file);
  fprintf(file, "%s%*s", header, bytes - length, "\n");
  return 0;
}

int npy_write(struct npy *npy, const float *from, char *error, size_t error_size)
{
  if (fwrite(from, sizeof *from, npy->count, npy->output.stream) == npy->count) return 0;
  return FAIL("cannot write %s: %s", npy->output.name, strerror(errno));
}

void npy_close(struct npy *npy)
{
  if (npy->file) fclose(npy->file);
  output_file_close(&npy->output);
  *npy = (struct npy){0};
}
