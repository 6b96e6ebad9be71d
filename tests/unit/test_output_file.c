/* SPDX-License-Identifier: Apache-2.0 */
/* output_file.c and file_options.c: a file is there as a whole or stays as it was, also on file
 * systems that know no files without a name; and no two options mean the same file. */
#include "output_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "file_options.h"
#include "unit.h"

/* ---- a file system with fewer features ------------------------------------------------------- */

static bool without_names, hard_links = true; /* what it knows: O_TMPFILE, linkat */
static int renames_left;                      /* that work; -1: all */

int openat(int folder, const char *name, int flags, ...)
{
  va_list more;
  va_start(more, flags);
  const int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, int) : 0;
  va_end(more);
  if ((flags & O_TMPFILE) == O_TMPFILE && !without_names) return errno = EOPNOTSUPP, -1;
  return (int)syscall(SYS_openat, folder, name, flags, mode);
}

int linkat(int folder, const char *from, int other, const char *to, int flags)
{
  if (!hard_links && folder == other) return errno = EPERM, -1;
  return (int)syscall(SYS_linkat, folder, from, other, to, flags);
}

int renameat(int folder, const char *from, int other, const char *to)
{
  if (renames_left == 0) return errno = EIO, -1;
  if (renames_left > 0) renames_left--;
  return (int)syscall(SYS_renameat, folder, from, other, to);
}

/* ---- a folder -------------------------------------------------------------------------------- */

static char error[512];
static const struct rank me = {.nranks = 1};

static int make_folder(void **state)
{
  static char folder[64];
  (void)state;
  snprintf(folder, sizeof folder, "/tmp/test_output_file.XXXXXX");
  without_names = hard_links = true;
  renames_left = -1;
  return mkdtemp(folder) && chdir(folder) == 0 ? 0 : -1;
}

static int files_here(void)
{
  int n = 0;
  DIR *dir = opendir(".");
  for (struct dirent *entry; (entry = readdir(dir));) n += entry->d_name[0] != '.';
  closedir(dir);
  return n;
}

static int remove_folder(void **state)
{
  char folder[64];
  (void)state;
  DIR *dir = opendir(".");
  for (struct dirent *entry; (entry = readdir(dir));)
    if (unlink(entry->d_name) != 0) rmdir(entry->d_name);
  closedir(dir);
  return getcwd(folder, sizeof folder) && chdir("/") == 0 ? rmdir(folder) : -1;
}

static void put(const char *name, const char *text)
{
  FILE *file = fopen(name, "w");
  assert_non_null(file);
  fputs(text, file);
  fclose(file);
}

static void has(const char *name, const char *text)
{
  char got[64] = "";
  FILE *file = fopen(name, "r");
  assert_non_null(file);
  got[fread(got, 1, sizeof got - 1, file)] = '\0';
  fclose(file);
  assert_string_equal(got, text);
}

static struct output_file begin(const char *name, const char *text)
{
  struct output_file file;
  const int result = output_file_open(&file, name, error, sizeof error);
  if (result != 0) print_error("%s\n", error);
  assert_int_equal(result, 0);
  fputs(text, file.stream);
  return file;
}

static int publish(struct output_file *first, struct output_file *second)
{
  struct output_file *files[] = {first, second};
  return output_files_publish(&me, files, second ? 2 : 1);
}

static void refuse(const char *name, const char *why)
{
  struct output_file file;
  assert_int_equal(output_file_check(name, error, sizeof error), -1);
  assert_non_null(strstr(error, why));
  assert_int_equal(output_file_open(&file, name, error, sizeof error), -1);
  assert_non_null(strstr(error, why));
  assert_null(strchr(error, '\n'));
}

/* ---- names and contents ---------------------------------------------------------------------- */

static void write_and_replace(void)
{
  struct output_file file = begin("a", "new");
  fflush(file.stream);
  assert_int_equal(access("a", F_OK), -1);
  assert_int_equal(publish(&file, NULL), EXIT_VERIFIED);
  has("a", "new");
  file = begin("a", "newer");
  fflush(file.stream);
  has("a", "new");
  assert_int_equal(publish(&file, NULL), EXIT_VERIFIED);
  has("a", "newer");
  file = begin("a", "never");
  output_file_close(&file);
  has("a", "newer");
  assert_int_equal(output_file_check("a", error, sizeof error), 0);
  assert_int_equal(output_file_check("b", error, sizeof error), 0);
  assert_int_equal(files_here(), 1);
}

static void test_new_or_as_it_was(void **state)
{
  (void)state;
  write_and_replace();
  assert_int_equal(unlink("a"), 0);
  hard_links = false;
  write_and_replace();
  assert_int_equal(unlink("a"), 0);
  without_names = false;
  write_and_replace();
}

/* Two files; the second cannot take its name. */
static void none_of_two(int renames)
{
  put("a", "old");
  struct output_file a = begin("a", "new"), b = begin("b", "new");
  renames_left = renames;
  assert_int_equal(publish(&a, &b), EXIT_FAILED_CALL);
  renames_left = -1;
  has("a", "old");
  assert_int_equal(files_here(), 1);
}

static void test_all_or_none(void **state)
{
  (void)state;
  without_names = true;
  for (int i = 0; i < 2; i++, without_names = false) {
    none_of_two(0);
    put("a", "old");
    struct output_file a = begin("a", "new"), b = begin("b", "new");
    assert_int_equal(fclose(b.stream), 0);
    b.stream = fopen("/dev/full", "w"); /* the disk is full when all is to be written */
    fputs("new", b.stream);
    assert_int_equal(publish(&a, &b), EXIT_FAILED_CALL);
    has("a", "old");
    assert_int_equal(files_here(), 1);
  }
}

/* The last file fails after the others have taken their names. */
static void test_the_old_one_comes_back(void **state)
{
  struct stat before, after;
  (void)state;
  put("a", "old");
  assert_int_equal(mkdir("b", 0777), 0);
  assert_int_equal(stat("a", &before), 0);
  struct output_file a = begin("a", "new"), c = begin("c", "new"), b = begin("d", "new");
  b.base[0] = 'b'; /* a folder has come in between */
  struct output_file *files[] = {&a, &c, &b};
  assert_int_equal(output_files_publish(&me, files, 3), EXIT_FAILED_CALL);
  has("a", "old");
  assert_int_equal(stat("a", &after), 0);
  assert_int_equal(before.st_ino, after.st_ino);
  assert_int_equal(access("c", F_OK), -1);
  assert_int_equal(files_here(), 2);
}

static void test_left_over_files(void **state)
{
  char *text = "x";
  (void)state;
  put("a.unfinished.1234", text);
  put("a.unfinished.99", text);
  put("a.unfinished.9x", text);  /* of somebody else, */
  put("ab.unfinished.99", text); /* of another target, */
  put("a.old.99", text);         /* all that is left of something */
  const int other = open("a.unfinished.99", O_RDONLY);
  assert_int_equal(flock(other, LOCK_EX), 0); /* of a run that is alive */
  struct output_file file = begin("a", "new");
  assert_int_equal(access("a.unfinished.1234", F_OK), -1);
  assert_int_equal(access("a.unfinished.99", F_OK), 0);
  assert_int_equal(publish(&file, NULL), EXIT_VERIFIED);
  assert_int_equal(files_here(), 5);
  close(other);
  without_names = false;
  file = begin("a", "new");
  struct output_file second = begin("b", ""); /* does not take that for a left-over one */
  assert_int_equal(output_file_check("a", error, sizeof error), -1); /* the same process twice */
  output_file_close(&second);
  assert_int_equal(publish(&file, NULL), EXIT_VERIFIED);
  assert_int_equal(access("a.unfinished.99", F_OK), -1);
  assert_int_equal(files_here(), 4);
}

static void test_modes_and_links(void **state)
{
  struct stat status;
  char target[16] = "";
  (void)state;
  for (int i = 0; i < 2; i++) {
    without_names = i == 0;
    put("a", "old");
    assert_int_equal(chmod("a", 0600), 0);
    assert_int_equal(symlink("a", "link"), 0);
    struct output_file file = begin("link", "new");
    assert_int_equal(publish(&file, NULL), EXIT_VERIFIED);
    has("a", "new");
    assert_int_equal(stat("a", &status), 0);
    assert_int_equal(status.st_mode & 07777, 0600);
    assert_int_equal(readlink("link", target, sizeof target), 1);
    assert_int_equal(unlink("a"), 0); /* and where the link leads to nothing */
    file = begin("link", "newer");
    assert_int_equal(publish(&file, NULL), EXIT_VERIFIED);
    has("a", "newer");
    assert_int_equal(unlink("a") + unlink("link"), 0);
  }
}

static void test_fifo_and_device(void **state)
{
  char got[16] = "";
  (void)state;
  assert_int_equal(mkfifo("fifo", 0600), 0);
  struct output_file file;
  assert_int_equal(output_file_open(&file, "fifo", error, sizeof error), -1);
  assert_non_null(strstr(error, "cannot write fifo: nobody reads this FIFO"));
  const int reader = open("fifo", O_RDONLY | O_NONBLOCK);
  assert_int_equal(output_file_check("fifo", error, sizeof error), 0);
  file = begin("fifo", "text");
  assert_int_equal(publish(&file, NULL), EXIT_VERIFIED);
  assert_int_equal(read(reader, got, sizeof got), 4);
  assert_string_equal(got, "text");
  close(reader);
  assert_int_equal(symlink("/dev/full", "full"), 0);
  file = begin("full", "text");
  assert_int_equal(publish(&file, NULL), EXIT_FAILED_CALL);
  assert_int_equal(symlink("/dev/null", "null"), 0);
  file = begin("null", "text");
  assert_int_equal(publish(&file, NULL), EXIT_VERIFIED);
  assert_int_equal(files_here(), 3);
}

static void test_what_cannot_be_written(void **state)
{
  char name[300], deep[5000];
  (void)state;
  assert_int_equal(mkdir("folder", 0700), 0);
  refuse("folder", "cannot write folder: Is a directory");
  refuse("no/a", "cannot write no/a: No such file or directory");
  assert_int_equal(symlink("circle", "circle"), 0);
  refuse("circle", "Too many levels of symbolic links");
  memset(name, 'x', sizeof name - 1);
  name[sizeof name - 1] = '\0';
  refuse(name, "x: File name too long");
  memset(deep, '/', sizeof deep - 1);
  deep[sizeof deep - 1] = '\0';
  refuse(deep, "/: File name too long"); /* the reason is not cut off */
  refuse("no\nline/a", "cannot write no?line/a: No such file");
  assert_int_equal(files_here(), 2);
}

/* ulimit -f: the program ignores the signal, see launcher.c. */
static void test_limit_of_the_size(void **state)
{
  (void)state;
  put("a", "old");
  if (fork() == 0) {
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){1000, 1000});
    struct output_file file = begin("a", "");
    for (int i = 0; i < 2000; i++) fputs("x", file.stream);
    _exit(publish(&file, NULL));
  }
  int status;
  wait(&status);
  assert_int_equal(WEXITSTATUS(status), EXIT_FAILED_CALL);
  has("a", "old");
  assert_int_equal(files_here(), 1);
}

/* ---- options --------------------------------------------------------------------------------- */

/* Rank 0 of `nranks` with two options; 0, or -1 and an error with `why`. */
static void check_two(struct file_option a, struct file_option b, int nranks, const char *why)
{
  const struct file_option files[] = {a, b};
  error[0] = '\0';
  const int result = file_options_check(files, 2, 0, nranks, error, sizeof error);
  if (!strstr(error, why)) print_error("'%s', wanted '%s'\n", error, why);
  assert_int_equal(result, *why ? -1 : 0);
  assert_non_null(strstr(error, why));
}

static void test_two_options_one_file(void **state)
{
  const struct file_option none = {"--none", "elsewhere", false, false};
  (void)state;
  put("a", "");
  put("a0", "");
  assert_int_equal(symlink("a", "link"), 0);
  assert_int_equal(link("a", "hard"), 0);
  assert_int_equal(symlink("nothing", "to_nothing"), 0);
  assert_int_equal(symlink(".", "here"), 0);
#define IN(name) ((struct file_option){"--in", name, false, false})
#define OUT(name) ((struct file_option){"--out", name, true, false})
#define INS(name) ((struct file_option){"--ins", name, false, true})
#define OUTS(name) ((struct file_option){"--outs", name, true, true})
  check_two(IN("a"), OUT("a"), 1, "--out is the file of --in: a and a; allowed: another one");
  check_two(OUT("a"), IN("./a"), 1, "--out is the file of --in: a and ./a");
  check_two(IN("a"), OUT("link"), 1, "--out is the file of --in");
  check_two(IN("hard"), OUT("a"), 1, "--out is the file of --in");
  check_two(OUT("b"), OUT("here/b"), 1, "--out and --out are the same file: b and here/b");
  check_two(OUT("to_nothing"), OUT("nothing"), 1, "are the same file");
  check_two(INS("a%r"), OUT("a0"), 2, "--out is the file of --ins: a0 and a0");
  check_two(INS("a%r"), OUT("a2"), 2, "");
  check_two(OUTS("b%r"), OUT("b1"), 2, "--outs and --out are the same file: b1 and b1");
  check_two(OUTS("b%r"), OUTS("b%r"), 2, "--outs and --outs are the same file");
  check_two(OUTS("b"), none, 2, "--outs: 'b' is one file for 2 ranks; allowed: a name with %r");
  check_two(OUTS("b"), none, 1, "");
  check_two(IN("a"), IN("a"), 2, "");
  check_two(OUT("a"), OUT("b"), 2, "");
  check_two(OUT("no/a"), none, 1, "cannot write no/a: No such file");
  const int out = dup(STDOUT_FILENO);
  assert_non_null(freopen("a", "w", stdout));
  check_two(OUT("link"), none, 1, "--out is the file that standard output goes to: link");
  check_two(IN("a"), none, 1, "");
  assert_true(dup2(out, STDOUT_FILENO) >= 0);
  close(out);
  assert_int_equal(mkdir("d0", 0700) + symlink("d0", "d1"), 0);
  check_two(OUTS("d%r/x"), none, 2,
            "--outs: ranks 0 and 1 have the same file, d0/x; allowed: one each");
  assert_int_equal(files_here(), 8);
}

static void test_names_of_ranks(void **state)
{
  char pattern[5000];
  (void)state;
  char *name = file_of_rank("a%r/%r%x%%r%", 12);
  assert_string_equal(name, "a12/12%x%12%");
  free(name);
  memset(pattern, 'x', sizeof pattern - 1);
  memcpy(pattern + sizeof pattern - 3, "%r", 3);
  name = file_of_rank(pattern, 7);
  assert_int_equal(strlen(name), sizeof pattern - 2); /* whole, whatever its length */
  assert_int_equal(name[sizeof pattern - 3], '7');
  free(name);
}

#define IN_A_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void)
{
  const struct CMUnitTest tests[] = {
      IN_A_FOLDER(test_new_or_as_it_was),       IN_A_FOLDER(test_all_or_none),
      IN_A_FOLDER(test_the_old_one_comes_back), IN_A_FOLDER(test_left_over_files),
      IN_A_FOLDER(test_modes_and_links),        IN_A_FOLDER(test_fifo_and_device),
      IN_A_FOLDER(test_what_cannot_be_written), IN_A_FOLDER(test_limit_of_the_size),
      IN_A_FOLDER(test_two_options_one_file),   IN_A_FOLDER(test_names_of_ranks),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
