/* SPDX-License-Identifier: Apache-2.0 */
/* NumPy's .npy files with float32 arrays of shape [n] or [steps, n], read and written step by step.
 *
 * Versions 1 and 2 of the format, C order, little-endian; everything else is refused with a
 * sentence. What is written gets its name when it is complete, and until then none at all, so that
 * neither an error nor a killed program leaves half a file behind.
 *
 * Functions return 0, or -1 with one line (no newline) in `error`. Nothing here prints. */
#ifndef NPY_H
#define NPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { NPY_NAME = 4096 };

struct npy {
  size_t steps, count; /* count elements each; steps = 1 for one dimension */
  int dimensions;      /* 1 or 2 */
  FILE *file;
  long long start; /* reading: where the elements begin */
  char name[NPY_NAME];
  bool published;           /* writing: the file has its name */
  char temporary[NPY_NAME]; /* writing: a complete file that waits for its name, or "" */
};

/* ---- reading ------------------------------------------------------------------------------- */

/* Checks header and size of the file; the struct then tells the shape. */
int npy_open(struct npy *npy, const char *name, char *error, size_t error_size);

/* The next step's `count` elements. */
int npy_read(struct npy *npy, float *to, char *error, size_t error_size);

/* The next step read is the first one again. */
void npy_rewind(struct npy *npy);

/* ---- writing ------------------------------------------------------------------------------- */

/* Starts a file of that shape; `steps` is ignored for one dimension. */
int npy_create(struct npy *npy, const char *name, int dimensions, size_t steps, size_t count,
               char *error, size_t error_size);

/* The next step's elements. */
int npy_write(struct npy *npy, const float *from, char *error, size_t error_size);

/* All steps are written: brings the file to the disk, under a temporary name. */
int npy_finish(struct npy *npy, char *error, size_t error_size);

/* Behind npy_finish: gives the file its name, in place of one that has it. */
int npy_publish(struct npy *npy, char *error, size_t error_size);

/* Removes the file again if npy_publish gave it its name; harmless otherwise. */
void npy_unpublish(struct npy *npy);

/* Ends reading or writing; a file without its name is removed. To be called in any case; harmless
 * on a struct that is all zero. */
void npy_close(struct npy *npy);

#endif
