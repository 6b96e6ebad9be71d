/* SPDX-License-Identifier: Apache-2.0 */
/* npy.c: what is written can be read, files of other writers can be read, and every malformed file
 * gets a sentence. tests/cli/sparse_files.bats reads and writes with the program. */
#include "program/npy.h"

#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

#include "unit.h"

static char folder[64], error[512];

static const char *path(const char *name)
{
  static char text[128];
  snprintf(text, sizeof text, "%s/%s", folder, name);
  return text;
}

static int make_folder(void **state)
{
  (void)state;
  snprintf(folder, sizeof folder, "/tmp/test_npy.XXXXXX");
  return mkdtemp(folder) ? 0 : -1;
}

static int files_in_folder(void)
{
  int n = 0;
  DIR *dir = opendir(folder);
  for (struct dirent *entry; (entry = readdir(dir));) n += entry->d_name[0] != '.';
  closedir(dir);
  return n;
}

static int remove_folder(void **state)
{
  (void)state;
  unlink(path("a.npy"));
  return rmdir(folder);
}

/* A file with that header text and `data` bytes behind it. */
static void make_file(const char *magic, int major, size_t header, const char *text, size_t data)
{
  FILE *file = fopen(path("a.npy"), "wb");
  assert_non_null(file);
  fwrite(magic, 1, 6, file);
  fputc(major, file);
  fputc(0, file);
  for (int i = 0; i < (major == 1 ? 2 : 4); i++) fputc((int)(header >> 8 * i & 255), file);
  fputs(text, file);
  for (size_t i = 0; i < data; i++) fputc((int)(i & 63), file);
  fclose(file);
}

static void accept(int major, const char *text, size_t data, size_t steps, size_t count)
{
  struct npy npy;
  make_file("\x93NUMPY", major, strlen(text), text, data);
  int result = npy_open(&npy, path("a.npy"), error, sizeof error);
  if (result != 0) print_error("%s: %s\n", text, error);
  assert_int_equal(result, 0);
  assert_int_equal(npy.steps, steps);
  assert_int_equal(npy.count, count);
  float *values = malloc(count * sizeof *values);
  for (size_t step = 0; step < steps; step++) {
    assert_int_equal(npy_read(&npy, values, error, sizeof error), 0);
    for (size_t i = 0; i < count; i++) {
      unsigned char bytes[4];
      memcpy(bytes, &values[i], 4);
      for (size_t j = 0; j < 4; j++)
        assert_int_equal(bytes[j], (step * count * 4 + i * 4 + j) & 63);
    }
  }
  free(values);
  npy_close(&npy);
}

static void refuse_opened(const char *why)
{
  struct npy npy;
  int result = npy_open(&npy, path("a.npy"), error, sizeof error);
  npy_close(&npy);
  if (result != -1 || !strstr(error, why)) print_error("%s, wanted %s\n", error, why);
  assert_int_equal(result, -1);
  assert_non_null(strstr(error, why));
  assert_null(strchr(error, '\n'));
}

static void refuse(const char *text, size_t data, const char *why)
{
  make_file("\x93NUMPY", 1, strlen(text), text, data);
  refuse_opened(why);
}

static void test_good_files(void **state)
{
  (void)state;
  accept(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (5,), }   \n", 20, 1, 5);
  accept(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 5), }\n", 60, 3, 5);
  accept(2, "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 5), }\n", 60, 3, 5);
  accept(1, "{\"shape\":(1,7),\"fortran_order\":False,\"descr\":\"<f4\"}", 28, 1, 7);
  accept(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (5L,), }", 20, 1, 5);
}

static void test_bad_headers(void **state)
{
  (void)state;
  make_file("\x93NUMPX", 1, 10, "{}", 0);
  refuse_opened("not a .npy file");
  make_file("\x93NUMPY", 3, 10, "{}", 0);
  refuse_opened("version 3 of the .npy format; allowed: 1 and 2");
  make_file("\x93NUMPY", 1, 1000, "{'descr': '<f4'", 10);
  refuse_opened("truncated within the header");
  make_file("\x93NUMPY", 2, 1 << 30, "{'descr': '<f4'", 10);
  refuse_opened("is too long");
  static const char *const garbage[] = {
      "",
      "hello",
      "{",
      "{}",
      "{'descr': '<f4'}",
      "{'descr': '<f4', 'fortran_order': Maybe, 'shape': (5,)}",
      "{'descr': '<f4', 'fortran_order': False, 'shape': 5}",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (5,",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (-5,)}",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (5 5)}",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999999,)}",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (5,), 'more': 1}",
      "{'descr': '<f4', 'fortran_order': False, 'shape': (5,)} trailing",
      "{'descr: '<f4', 'fortran_order': False, 'shape': (5,)}",
  };
  for (size_t i = 0; i < sizeof garbage / sizeof *garbage; i++)
    refuse(garbage[i], 20, "the header is not one of a .npy file");
}

static void test_bad_arrays(void **state)
{
  static const char *const types[] = {"<f8", ">f4", "<f2", "<i4", "|u1", "<c8", "|O"};
  char text[128];
  (void)state;
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': (5,), }",
             types[i]);
    refuse(text, 20, "not float32 ('<f4'); allowed: a float32 array of shape [n] or [steps, n]");
  }
  refuse("{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (5,), }", 20, "not float32");
  refuse("{'descr': '<f4', 'fortran_order': True, 'shape': (5, 1), }", 20, "Fortran order");
  refuse("{'descr': '<f4', 'fortran_order': False, 'shape': (), }", 4, "has 0 dimensions");
  refuse("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1), }", 4, "has 3 dimensions");
  refuse("{'descr': '<f4', 'fortran_order': False, 'shape': (0,), }", 0, "is empty");
  refuse("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 5), }", 0, "is empty");
  refuse("{'descr': '<f4', 'fortran_order': False, 'shape': (5000000000, 5000000000), }", 20,
         "is too large");
}

static void test_bad_sizes(void **state)
{
  (void)state;
  refuse("{'descr': '<f4', 'fortran_order': False, 'shape': (5,), }", 19,
         "truncated: 19 bytes of data, the shape says 20");
  refuse("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 5), }", 0, "truncated: 0 bytes");
  refuse("{'descr': '<f4', 'fortran_order': False, 'shape': (5,), }", 21,
         "21 bytes of data, but the shape says 20");
  FILE *file = fopen(path("a.npy"), "wb"); /* nothing at all */
  fclose(file);
  refuse_opened("not a .npy file");
  unlink(path("a.npy"));
  refuse_opened("cannot read");
  struct npy npy;
  assert_int_equal(npy_open(&npy, folder, error, sizeof error), -1);
  assert_non_null(strstr(error, "not a file"));
  npy_close(&npy);
}

/* The job of one rank. */
static int publish(struct npy *npy)
{
  static const struct rank me = {.nranks = 1};
  return output_files_publish(&me, &(struct output_file *){&npy->output}, 1);
}

/* Nothing has the name, or any other, before it is published. */
static void test_writing(void **state)
{
  (void)state;
  for (int dimensions = 1; dimensions <= 2; dimensions++) {
    struct npy npy;
    const size_t steps = dimensions == 1 ? 1 : 3;
    float values[7] = {0};
    unlink(path("a.npy"));
    assert_int_equal(npy_create(&npy, path("a.npy"), dimensions, steps, 7, error, sizeof error), 0);
    for (size_t step = 0; step < steps; step++) {
      for (int i = 0; i < 7; i++) values[i] = (float)(step * 10 + (size_t)i);
      assert_int_equal(npy_write(&npy, values, error, sizeof error), 0);
      assert_int_equal(files_in_folder(), 1); /* a.npy.tmp */
    }
    assert_int_equal(publish(&npy), EXIT_VERIFIED);
    npy_close(&npy);
    assert_int_equal(files_in_folder(), 1);

    assert_int_equal(npy_open(&npy, path("a.npy"), error, sizeof error), 0);
    assert_int_equal(npy.dimensions, dimensions);
    assert_int_equal(npy.steps, steps);
    assert_int_equal(npy.count, 7);
    for (size_t step = 0; step < steps; step++) {
      assert_int_equal(npy_read(&npy, values, error, sizeof error), 0);
      for (int i = 0; i < 7; i++) assert_true(values[i] == (float)(step * 10 + (size_t)i));
    }
    assert_int_equal(npy_read(&npy, values, error, sizeof error), -1);
    npy_close(&npy);
  }
}

static void test_unwritten_files(void **state)
{
  struct npy npy;
  float value = 1;
  (void)state;
  unlink(path("a.npy"));
  assert_int_equal(npy_create(&npy, path("a.npy"), 1, 1, 1, error, sizeof error), 0);
  assert_int_equal(npy_write(&npy, &value, error, sizeof error), 0);
  npy_close(&npy); /* given up */
  assert_int_equal(files_in_folder(), 0);
  assert_int_equal(npy_create(&npy, path("no/a.npy"), 1, 1, 1, error, sizeof error), -1);
  assert_non_null(strstr(error, "cannot write"));
  npy_close(&npy);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_good_files), cmocka_unit_test(test_bad_headers),
      cmocka_unit_test(test_bad_arrays), cmocka_unit_test(test_bad_sizes),
      cmocka_unit_test(test_writing),    cmocka_unit_test(test_unwritten_files),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
