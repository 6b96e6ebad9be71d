/* SPDX-License-Identifier: Apache-2.0 */
/* NumPy's .npy files with float32 arrays of shape [n] or [steps, n], read and written step by step.
 *
 * Versions 1 and 2 of the format, C order, little-endian; everything else is refused with a
 * sentence. What is written gets its name by output_files_publish of output_file.h.
 *
 * Functions return 0, or -1 with one line (no newline) in `error`. Nothing here prints. */
#ifndef NPY_H
#define NPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "output_file.h"

struct npy {
  size_t steps, count; /* count elements each; steps = 1 for one dimension */
  int dimensions;      /* 1 or 2 */
  /* reading */
  FILE *file;
  long long start; /* where the elements begin */
  char name[SHOWN_TEXT];
  /* writing */
  struct output_file output;
};

/* ---- reading ------------------------------------------------------------------------------- */

/* Checks header and size of the file; the struct then tells the shape. */
int npy_open(struct npy *npy, const char *path, char *error, size_t error_size);

/* The next step's `count` elements. */
int npy_read(struct npy *npy, float *to, char *error, size_t error_size);

/* The next step read is the first one again. */
void npy_rewind(struct npy *npy);

/* ---- writing ------------------------------------------------------------------------------- */

/* Starts a file of that shape; `steps` is ignored for one dimension. */
int npy_create(struct npy *npy, const char *path, int dimensions, size_t steps, size_t count,
               char *error, size_t error_size);

/* The next step's elements. */
int npy_write(struct npy *npy, const float *from, char *error, size_t error_size);

/* Ends reading or writing; a file that was not published is removed. To be called in any case;
 * harmless on a struct that is all zero. */
void npy_close(struct npy *npy);

#endif
