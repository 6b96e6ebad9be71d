/* SPDX-License-Identifier: Apache-2.0 */
/* NumPy's .npy files with float32 arrays of shape [n] or [steps, n], as numpy.save writes them:
 * "\x93NUMPY", version 1.0 (2 bytes), length of the header (2 bytes), the header, which is a Python
 * dictionary such as
 *   {'descr': '<f4', 'fortran_order': False, 'shape': (70, 1048576), }
 * padded with blanks and a newline to a multiple of 64 bytes, and the elements. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "program.h"

#define ALLOWED "allowed: a float32 array of shape [n] or [steps, n], C order, as numpy.save writes"
#define FAIL(...) return snprintf(error, LAUNCHER_TEXT, __VA_ARGS__)

enum { SHAPE_TEXT = 48 };

/* The shape as in a header: "(70, 1000)". */
static const char *shape_of(const struct job *job, int dimensions, char shape[SHAPE_TEXT])
{
  if (dimensions == 1)
    snprintf(shape, SHAPE_TEXT, "(%zu,)", job->count);
  else
    snprintf(shape, SHAPE_TEXT, "(%zu, %zu)", (size_t)job->steps, job->count);
  return shape;
}

/* Opens the file, checks header and size; `name` is the path as it may be shown. Returns 0, or
 * another number and a line in `error`. */
static int open_input(struct job *job, const char *path, const char *name, char shape[SHAPE_TEXT],
                      char error[LAUNCHER_TEXT])
{
  struct stat status;
  unsigned char start[10];
  char header[4096] = "", text[SHOWN_TEXT], end = '\0';
  size_t sizes[2] = {0};
  /* this comes first, because opening a FIFO waits for a writer */
  if (stat(path, &status) != 0) FAIL("cannot read %s: %s", name, strerror(errno));
  if (!S_ISREG(status.st_mode)) FAIL("%s: this is not a regular file; " ALLOWED, name);
  job->input = fopen(path, "rb");
  if (!job->input) FAIL("cannot read %s: %s", name, strerror(errno));
  if (fread(start, 1, 10, job->input) != 10 || memcmp(start, "\x93NUMPY\1", 7) != 0)
    FAIL("%s: this is not a .npy file; " ALLOWED, name);
  const size_t length = start[8] | (size_t)start[9] << 8;
  if (length >= sizeof header || fread(header, 1, length, job->input) != length)
    FAIL("%s: the header is too long or truncated; " ALLOWED, name);

  const int found = sscanf(header, "{'descr': '<f4', 'fortran_order': False, 'shape': (%zu, %zu%c",
                           &sizes[0], &sizes[1], &end);
  job->dimensions = found == 1 ? 1 : 2;
  job->steps = found == 1 ? 1 : sizes[0];
  job->count = sizes[found == 1 ? 0 : 1];
  header[strcspn(header, "}")] = '\0';
  if (!(found == 1 || (found == 3 && end == ')')) || job->count == 0 || job->steps == 0)
    FAIL("%s: the header is %s}; " ALLOWED, name, shown(header, text));

  shape_of(job, job->dimensions, shape);
  job->input_start = 10 + (long)length;
  const size_t bytes = (size_t)(status.st_size - job->input_start);
  if (job->steps != bytes / sizeof(float) / job->count || bytes % (job->count * sizeof(float)) != 0)
    FAIL("%s: %zu bytes of data do not fit the shape %s; " ALLOWED, name, bytes, shape);
  return 0;
}

int job_open_input(struct job *job)
{
  const struct rank *me = job->me;
  char error[LAUNCHER_TEXT] = "", shape[SHAPE_TEXT] = "", all[me->nranks][SHAPE_TEXT];
  char *path = file_of_rank(program_options.input, me->rank), name[SHOWN_TEXT];
  open_input(job, path, shown(path, name), shape, error);
  free(path);
  const int code = launcher_refuse(me, error);
  if (code != EXIT_VERIFIED) return code;
  launcher_allgather(me, shape, all, sizeof shape);
  if (strcmp(shape, all[0]) != 0)
    snprintf(error, sizeof error,
             "%s: the shape %s differs from rank 0's %s; allowed: the same shape on all ranks",
             name, shape, all[0]);
  return launcher_refuse(me, error);
}

void job_create_file(const struct job *job, struct output_file *file, const char *pattern,
                     int dimensions, char error[LAUNCHER_TEXT])
{
  char header[119], shape[SHAPE_TEXT];
  if (!pattern || *error) return;
  char *path = file_of_rank(pattern, job->me->rank);
  const int failed = output_file_open(file, path, error, LAUNCHER_TEXT);
  free(path);
  if (failed) return;
  snprintf(header, sizeof header, "{'descr': '<f4', 'fortran_order': False, 'shape': %s, }",
           shape_of(job, dimensions, shape));
  fprintf(file->stream, "\x93NUMPY\1%c%c%c%-117s\n", 0, 118, 0, header); /* 118 bytes of header */
}

int job_gradient(struct job *job, size_t count, uint64_t step, void *gradient)
{
  const struct datatype *type = job->opt->type;
  const size_t bytes = count * type->size;
  void *host = launcher_allocate(bytes);
  bool failed = false;
  if (!job->input)
    gradient_fill(host, type->nccl, count, job->kind, job->seed, step, job->me->rank,
                  job->me->nranks);
  else
    failed = fseeko(job->input, job->input_start + (off_t)(step * bytes), SEEK_SET) != 0 ||
             fread(host, 1, bytes, job->input) != bytes;
  if (failed)
    launcher_error("cannot read %s: %s", program_options.input,
                   ferror(job->input) ? strerror(errno) : "it has become shorter");
  CUDACHECK(cudaMemcpyAsync(gradient, host, bytes, cudaMemcpyHostToDevice, job->stream));
  CUDACHECK(cudaStreamSynchronize(job->stream));
  free(host);
  return launcher_agree(job->me, failed ? EXIT_FAILED_CALL : EXIT_VERIFIED);
}

bool job_write(const struct job *job, const struct output_file *file, const float *elements)
{
  if (!file->stream || fwrite(elements, sizeof *elements, job->count, file->stream) == job->count)
    return true;
  launcher_error("cannot write %s: %s", file->name, strerror(errno));
  return false;
}

int job_publish(struct job *job, int code)
{
  struct output_file *table = &job->rows.output;
  struct output_file *files[3];
  int n = 0;
  rows_finish(&job->rows);
  const bool ran = code == EXIT_VERIFIED || code == EXIT_WRONG_DATA; /* the table says which */
  if (table->stream && ran) files[n++] = table;
  if (job->results.stream && code == EXIT_VERIFIED) files[n++] = &job->results;
  if (job->residual.stream && code == EXIT_VERIFIED) files[n++] = &job->residual;
  const int published = output_files_publish(job->me, files, n);
  output_file_close(table);
  return published == EXIT_VERIFIED ? code : published;
}
