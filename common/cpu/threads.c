/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for threads that a library started and does not wait for itself. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "cpu.h"

/* What Linux says of a thread: R runs or waits for a core, D waits for a disk; all else is rest. */
static bool is_busy(const char *thread)
{
  char path[64], state = '?';
  snprintf(path, sizeof path, "/proc/self/task/%.20s/stat", thread);
  FILE *file = fopen(path, "r");
  if (file == NULL) return false; /* it has ended */
  int fields = fscanf(file, "%*d (%*[^)]) %c", &state);
  fclose(file);
  return fields == 1 && (state == 'R' || state == 'D');
}

static bool others_are_busy(void)
{
  bool busy = false;
  DIR *threads = opendir("/proc/self/task");
  if (threads == NULL) return false;
  for (struct dirent *entry; !busy && (entry = readdir(threads)) != NULL;)
    if (entry->d_name[0] != '.' && atoi(entry->d_name) != gettid()) busy = is_busy(entry->d_name);
  closedir(threads);
  return busy;
}

bool cpu_wait_for_threads(double seconds)
{
  const struct timespec pause = {.tv_nsec = 1000000};
  int rests = 0; /* in a row: a thread may give work to another that was looked at before it */
  for (double waited = 0; rests < 2 && waited < seconds; waited += 1e-3) {
    rests = others_are_busy() ? 0 : rests + 1;
    if (rests == 0) nanosleep(&pause, NULL);
  }
  return rests == 2;
}
