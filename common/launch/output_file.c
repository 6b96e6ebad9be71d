/* SPDX-License-Identifier: Apache-2.0 */
#include "output_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

enum { READER_WAIT_MS = 2000 };
static const char UNFINISHED[] = ".unfinished.", OLD[] = ".old.";

static int fail(const struct output_file *file, const char *reason, char *error, size_t error_size)
{
  snprintf(error, error_size, "cannot write %s: %s", file->name, reason);
  return -1;
}

/* ---- opening --------------------------------------------------------------------------------- */

char *file_behind_links(const char *name)
{
  enum { MOST_LINKS = 40 }; /* as the kernel; whoever opens a circle is told so */
  char *path = strdup(name), target[PATH_MAX];
  for (int i = 0; path && i < MOST_LINKS; i++) {
    const ssize_t length = readlink(path, target, sizeof target - 1);
    if (length < 0) break; /* no link */
    target[length] = '\0';
    const char *slash = strrchr(path, '/');
    const int folder = slash && target[0] != '/' ? (int)(slash + 1 - path) : 0;
    char *next;
    if (asprintf(&next, "%.*s%s", folder, path, target) < 0) next = NULL;
    free(path);
    path = next;
  }
  if (!path) launcher_fail(__FILE__, __LINE__, "asprintf", strerror(ENOMEM), NULL);
  return path;
}

/* BASE.unfinished.PID and the like. */
static char *beside(const char *base, const char *ending, long pid)
{
  char *name, number[24] = "";
  if (pid) snprintf(number, sizeof number, "%ld", pid);
  if (asprintf(&name, "%s%s%s", base, ending, number) < 0)
    launcher_fail(__FILE__, __LINE__, "asprintf", strerror(ENOMEM), NULL);
  return name;
}

/* Who writes an unfinished file holds its lock, on whatever host: one whose lock can be had is of a
 * process that has died. */
static void remove_left_over(int folder, const char *base)
{
  char *front = beside(base, UNFINISHED, 0);
  const size_t length = strlen(front);
  const int descriptor = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *entries = descriptor < 0 ? NULL : fdopendir(descriptor);
  for (struct dirent *entry; entries && (entry = readdir(entries));) {
    const char *pid = entry->d_name + length;
    if (strncmp(entry->d_name, front, length) != 0 || pid[strspn(pid, "0123456789")]) continue;
    const int left = openat(folder, entry->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (left < 0) continue;
    if (flock(left, LOCK_EX | LOCK_NB) == 0) unlinkat(folder, entry->d_name, 0);
    close(left);
  }
  if (entries) closedir(entries);
  free(front);
}

/* A file that will be new, or take the place of one that has `status`. */
static int open_beside(struct output_file *file, const char *name, const struct stat *status)
{
  char *path = file_behind_links(name), *slash = strrchr(path, '/');
  file->base = beside(slash ? slash + 1 : path, "", 0);
  file->unfinished = beside(file->base, UNFINISHED, (long)getpid());
  file->old = beside(file->base, OLD, (long)getpid());
  if (slash) slash[1] = '\0'; /* the folder is left */
  file->folder = open(slash ? path : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
  free(path);
  if (file->folder < 0) return -1;
  if (strlen(file->unfinished) > NAME_MAX) return errno = ENAMETOOLONG, -1;
  remove_left_over(file->folder, file->base);

  int descriptor = openat(file->folder, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
  if (descriptor < 0) {
    const int flags = O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC;
    descriptor = openat(file->folder, file->unfinished, flags, 0666);
    file->has_name = descriptor >= 0;
  }
  if (descriptor < 0) return -1;
  flock(descriptor, LOCK_EX | LOCK_NB);
  if (status) { /* the owner first, since that clears bits of the mode; only root can */
    const int given_away = fchown(descriptor, status->st_uid, status->st_gid);
    (void)given_away;
    fchmod(descriptor, status->st_mode & 07777);
  }
  return descriptor;
}

/* Opening a FIFO would wait for who reads it, perhaps for ever. */
static int open_fifo(const char *name)
{
  int descriptor = -1;
  for (int ms = 0; ms < READER_WAIT_MS; ms += 10) {
    descriptor = open(name, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    if (descriptor >= 0 || errno != ENXIO) break;
    usleep(10000);
  }
  if (descriptor >= 0) fcntl(descriptor, F_SETFL, O_WRONLY); /* writing may wait */
  return descriptor;
}

enum kind { UNWRITABLE /* see errno */, NEW, REPLACED, FIFO, DEVICE };

static enum kind kind_of(const char *name, struct stat *status)
{
  if (stat(name, status) != 0) return errno == ENOENT ? NEW : UNWRITABLE;
  if (S_ISDIR(status->st_mode)) return errno = EISDIR, UNWRITABLE;
  /* what nobody may write to could be replaced all the same */
  if (access(name, W_OK) != 0) return UNWRITABLE;
  if (S_ISREG(status->st_mode)) return REPLACED;
  if (S_ISFIFO(status->st_mode)) return FIFO;
  return S_ISCHR(status->st_mode) ? DEVICE : (errno = ENOTSUP, UNWRITABLE);
}

int output_file_open(struct output_file *file, const char *name, char *error, size_t error_size)
{
  struct stat status;
  *file = (struct output_file){.folder = -1};
  const enum kind kind = kind_of(name, &status);
  const int descriptor = kind == NEW        ? open_beside(file, name, NULL)
                         : kind == REPLACED ? open_beside(file, name, &status)
                         : kind == FIFO     ? open_fifo(name)
                         : kind == DEVICE   ? open(name, O_WRONLY | O_CLOEXEC)
                                            : -1;
  if (descriptor >= 0) file->stream = fdopen(descriptor, "w");
  const int reason = errno;
  shown(name, file->name);
  if (file->stream) return 0;
  fail(file, kind == FIFO && reason == ENXIO ? "nobody reads this FIFO" : strerror(reason), error,
       error_size);
  if (descriptor >= 0) close(descriptor);
  output_file_close(file);
  return -1;
}

int output_file_check(const char *name, char *error, size_t error_size)
{
  struct output_file trial;
  struct stat status;
  /* who reads a FIFO would take a trial for the end of it */
  if (kind_of(name, &status) == FIFO) return 0;
  const int result = output_file_open(&trial, name, error, error_size);
  output_file_close(&trial);
  return result;
}

/* ---- giving names ---------------------------------------------------------------------------- */

/* Brings all that was written to the disk. */
static int finish(struct output_file *file, char *error, size_t error_size)
{
  const int descriptor = fileno(file->stream);
  char path[64];
  errno = EIO; /* of an error that was before */
  bool good = fflush(file->stream) == 0 && !ferror(file->stream);
  if (good && file->base) good = fsync(descriptor) == 0;
  if (good && file->base && !file->has_name) {
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    good = linkat(AT_FDCWD, path, file->folder, file->unfinished, AT_SYMLINK_FOLLOW) == 0;
    file->has_name = good;
  }
  return good ? 0 : fail(file, strerror(errno), error, error_size);
}

/* What is there, if anything, gets a second name, so that it can come back. */
static int keep_old(struct output_file *file)
{
  struct stat status;
  if (fstatat(file->folder, file->base, &status, AT_SYMLINK_NOFOLLOW) != 0)
    return errno == ENOENT ? 0 : -1;
  if (S_ISDIR(status.st_mode)) return errno = EISDIR, -1;
  file->has_old = linkat(file->folder, file->base, file->folder, file->old, 0) == 0;
  if (!file->has_old) /* no hard links here: then it has the second name only */
    file->has_old = renameat(file->folder, file->base, file->folder, file->old) == 0;
  return file->has_old ? 0 : -1;
}

static int publish(struct output_file *file, char *error, size_t error_size)
{
  if (!file->base) return 0;
  if (keep_old(file) != 0 ||
      renameat(file->folder, file->unfinished, file->folder, file->base) != 0)
    return fail(file, strerror(errno), error, error_size);
  file->has_name = false;
  file->published = true;
  return 0;
}

static void take_back(struct output_file *file)
{
  if (file->published && !file->has_old) unlinkat(file->folder, file->base, 0);
  if (file->has_old) {
    const bool untouched =
        !file->published && faccessat(file->folder, file->base, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    if (untouched || renameat(file->folder, file->old, file->folder, file->base) == 0)
      unlinkat(file->folder, file->old, 0);
  }
  file->published = file->has_old = false;
}

void output_file_close(struct output_file *file)
{
  if (file->stream) fclose(file->stream);
  if (file->has_name) unlinkat(file->folder, file->unfinished, 0);
  if (file->has_old) unlinkat(file->folder, file->old, 0);
  if (file->base && file->folder >= 0) close(file->folder);
  free(file->base);
  free(file->unfinished);
  free(file->old);
  *file = (struct output_file){.folder = -1};
}

int output_files_publish(const struct rank *me, struct output_file *const *files, int nfiles)
{
  char error[LAUNCHER_TEXT];
  int failed = 0;
  for (int i = 0; i < nfiles && !failed; i++) failed = finish(files[i], error, sizeof error);
  if (failed) launcher_error("%s", error);
  int code = launcher_agree(me, failed ? EXIT_FAILED_CALL : EXIT_VERIFIED);
  if (code == EXIT_VERIFIED) {
    for (int i = 0; i < nfiles && !failed; i++) failed = publish(files[i], error, sizeof error);
    if (failed) launcher_error("%s", error);
    code = launcher_agree(me, failed ? EXIT_FAILED_CALL : EXIT_VERIFIED);
  }
  for (int i = 0; i < nfiles; i++) {
    if (code != EXIT_VERIFIED) take_back(files[i]);
    output_file_close(files[i]);
  }
  return code;
}
