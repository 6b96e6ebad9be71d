/* SPDX-License-Identifier: Apache-2.0 */
/* A file that a program writes, or leaves as it was.
 *
 * What is written has no name until all of it is on the disk, and then takes the target's name in
 * one step: nobody finds half a file, and an old one survives a run that fails. Of a run over
 * several ranks either all files are replaced or none, see output_files_publish.
 *
 * Where a file system knows no files without a name (NFS), it is TARGET.unfinished.PID meanwhile.
 * Such files of runs that died are removed by the next run that writes the same target. While files
 * take their names, TARGET.old.PID is what was there before. A file that is replaced keeps its
 * mode, a symbolic link keeps leading to it; a FIFO or device is written to as it is.
 *
 * Functions return 0, or -1 with one line (no newline) in `error`. */
#ifndef COMMON_OUTPUT_FILE_H
#define COMMON_OUTPUT_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "launcher.h"
#include "shown.h"

struct output_file {
  FILE *stream; /* to write to; NULL: there is no file */
  char name[SHOWN_TEXT];
  int folder;                    /* a descriptor; the names below are in it */
  char *base, *unfinished, *old; /* NULL: a FIFO or a device, which has its name already */
  bool has_name;                 /* is `unfinished` */
  bool published, has_old;
};

int output_file_open(struct output_file *file, const char *name, char *error, size_t error_size);

/* Whether output_file_open would work. Leaves nothing. */
int output_file_check(const char *name, char *error, size_t error_size);

/* Where symbolic links lead, also if nothing is there yet; to be freed. */
char *file_behind_links(const char *name);

/* Ends writing. A file that was not published is removed, an old one stays as it was. Harmless on a
 * struct that is all zero. */
void output_file_close(struct output_file *file);

/* Gives all ranks' files their names when all of them are on the disk, or none, and closes them.
 * Returns EXIT_VERIFIED, or EXIT_FAILED_CALL after a line on stderr. A rank may have no files.
 * Collective. */
int output_files_publish(const struct rank *me, struct output_file *const *files, int nfiles);

#endif
