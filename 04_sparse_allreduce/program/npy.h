/* SPDX-License-Identifier: Apache-2.0 */
/* NumPy's .npy files with float32 arrays of shape [n] or [steps, n], as numpy.save writes them,
 * read and written step by step; everything else is refused. What is written gets its name by
 * output_files_publish of output_file.h.
 *
 * Functions return 0, or -1 with one line (no newline) in `error`. Nothing here prints. */
#ifndef NPY_H
#define NPY_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "output_file.h"

struct npy {
  size_t steps, count; /* count elements each; steps = 1 for one dimension */
  int dimensions;      /* 1 or 2 */
  char shape[48];      /* "[70, 1000]" */
  FILE *file;          /* to read */
  long long start;     /* where the elements begin */
  char name[SHOWN_TEXT];
  struct output_file output; /* to write */
};

/* Checks header and size of the file; the struct then tells the shape. */
int npy_open(struct npy *npy, const char *path, char *error, size_t error_size);

/* The elements of a step. */
int npy_read(struct npy *npy, uint64_t step, float *to, char *error, size_t error_size);

/* Starts a file of that shape; `steps` is ignored for one dimension. Then the next step's elements.
 */
int npy_create(struct npy *npy, const char *path, int dimensions, size_t steps, size_t count,
               char *error, size_t error_size);
int npy_write(struct npy *npy, const float *from, char *error, size_t error_size);

/* Ends reading or writing; a file that was not published is removed. To be called in any case;
 * harmless on a struct that is all zero. */
void npy_close(struct npy *npy);

#endif
