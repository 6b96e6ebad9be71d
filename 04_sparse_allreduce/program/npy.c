/* SPDX-License-Identifier: Apache-2.0 */
/* The format: "\x93NUMPY", version (2 bytes), length of the header (2 bytes, from version 2 on 4),
 * the header, which is a Python dictionary such as
 *   {'descr': '<f4', 'fortran_order': False, 'shape': (70, 1048576), }
 * padded with blanks and a newline to a multiple of 64 bytes, and the elements. */
#include "npy.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#define ALLOWED "allowed: a float32 array of shape [n] or [steps, n], C order, as numpy.save writes"
#define FAIL(...) (snprintf(error, error_size, __VA_ARGS__), -1)

/* What stands behind a key of the dictionary; "" if it is not there. */
static const char *value_of(const char *header, const char *key)
{
  const char *at = strstr(header, key);
  return at ? at + strlen(key) : "";
}

/* Reads up to the first element. */
static int read_header(struct npy *npy, char *error, size_t error_size)
{
  unsigned char start[12] = {0};
  char header[4096] = "", end = '\0';
  if (fread(start, 1, 10, npy->file) != 10 || memcmp(start, "\x93NUMPY", 6) != 0)
    return FAIL("%s: not a .npy file; " ALLOWED, npy->name);
  if (start[6] != 1 && fread(start + 10, 1, 2, npy->file) != 2)
    return FAIL("%s: not a .npy file; " ALLOWED, npy->name);
  const size_t bytes = start[8] | (size_t)start[9] << 8 | (size_t)start[10] << 16;
  if (bytes >= sizeof header || fread(header, 1, bytes, npy->file) != bytes)
    return FAIL("%s: the header is too long or truncated; " ALLOWED, npy->name);

  const char *type = value_of(header, "'descr': ");
  if (strncmp(type, "'<f4'", 5) != 0)
    return FAIL("%s: elements are %.*s, not '<f4'; " ALLOWED, npy->name, (int)strcspn(type, ","),
                type);
  if (strncmp(value_of(header, "'fortran_order': "), "False", 5) != 0)
    return FAIL("%s: the array is in Fortran order; " ALLOWED, npy->name);
  const char *shape = value_of(header, "'shape': ");
  const int found = sscanf(shape, "(%zu, %zu%c", &npy->steps, &npy->count, &end);
  npy->dimensions = found == 3 ? 2 : 1;
  if (found == 1) {
    npy->count = npy->steps;
    npy->steps = 1;
  }
  if (!(found == 1 || (found == 3 && end == ')')) || npy->count == 0 || npy->steps == 0)
    return FAIL("%s: the shape is %.*s; " ALLOWED, npy->name, (int)strcspn(shape, ")") + 1, shape);
  return 0;
}

int npy_open(struct npy *npy, const char *path, char *error, size_t error_size)
{
  struct stat status;
  *npy = (struct npy){0};
  shown(path, npy->name);
  /* first, because opening a FIFO waits for who writes to it */
  if (stat(path, &status) != 0) return FAIL("cannot read %s: %s", npy->name, strerror(errno));
  if (!S_ISREG(status.st_mode)) return FAIL("%s: not a file; " ALLOWED, npy->name);
  npy->file = fopen(path, "rb");
  if (!npy->file) return FAIL("cannot read %s: %s", npy->name, strerror(errno));
  if (read_header(npy, error, error_size) != 0) return -1;
  if (npy->dimensions == 1)
    snprintf(npy->shape, sizeof npy->shape, "[%zu]", npy->count);
  else
    snprintf(npy->shape, sizeof npy->shape, "[%zu, %zu]", npy->steps, npy->count);

  npy->start = ftello(npy->file);
  const unsigned long long bytes = (unsigned long long)(status.st_size - npy->start);
  if (npy->steps != bytes / sizeof(float) / npy->count || bytes % (npy->count * sizeof(float)) != 0)
    return FAIL("%s: %llu bytes of data are not a shape of %s; " ALLOWED, npy->name, bytes,
                npy->shape);
  return 0;
}

int npy_read(struct npy *npy, uint64_t step, float *to, char *error, size_t error_size)
{
  const size_t bytes = npy->count * sizeof *to;
  if (fseeko(npy->file, (off_t)(npy->start + (long long)(step * bytes)), SEEK_SET) == 0 &&
      fread(to, 1, bytes, npy->file) == bytes)
    return 0;
  return FAIL("cannot read %s: %s", npy->name,
              ferror(npy->file) ? strerror(errno) : "it has become shorter");
}

int npy_create(struct npy *npy, const char *path, int dimensions, size_t steps, size_t count,
               char *error, size_t error_size)
{
  char header[119], shape[48];
  *npy = (struct npy){.steps = steps, .count = count, .dimensions = dimensions};
  if (output_file_open(&npy->output, path, error, error_size) != 0) return -1;
  if (dimensions == 1)
    snprintf(shape, sizeof shape, "(%zu,)", count);
  else
    snprintf(shape, sizeof shape, "(%zu, %zu)", steps, count);
  snprintf(header, sizeof header, "{'descr': '<f4', 'fortran_order': False, 'shape': %s, }", shape);
  /* magic, version 1.0, 118 bytes of header */
  fprintf(npy->output.stream, "\x93NUMPY\1%c%c%c%-117s\n", 0, 118, 0, header);
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
