/* SPDX-License-Identifier: Apache-2.0 */
/* Windows: the ranks exchange the places of their memory, and each rank maps all of it. */
#include "internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096 };

/* Kernels find the memory of all ranks by adding: in the window of rank r, a byte is r times
 * CPU_LSA_STRIDE after that in the window of rank 0. So each process reserves addresses for all
 * windows of a communicator, CPU_LSA_STRIDE for each rank, and maps every window there once for all
 * its ranks. As with NCCL, all windows are at the same distances from each other in all processes;
 * so the ranks agree on where the next one lies: after the last one that any rank still has. */
struct mapping {
  struct mapping *next;
  char *base; /* where rank 0's memory is */
  int nranks, references;
  size_t bytes;
};

/* What a rank sends to the others. */
struct part {
  size_t bytes;  /* as registered */
  size_t extent; /* bytes from the start to the end of the allocation */
  bool shareable;
  size_t used; /* addresses, by windows that this rank still has */
  struct place place;
};

struct ncclWindow_vidmem {
  struct cpu_window window; /* for kernels; first */
  struct mapping *mapping;
  struct ncclWindow_vidmem *next; /* of the communicator */
  size_t end;                     /* of its addresses */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mapping *mappings;

/* All ranks get the same parts, so they return the same error, which names the rank. */
static ncclResult_t judge(const struct part *parts, int nranks)
{
  for (int r = 0; r < nranks; r++) {
    const struct part *part = &parts[r];
    if (!part->shareable)
      return cpu_nccl_error(ncclInvalidUsage,
                            "ncclCommWindowRegister: the memory of rank %d is not from "
                            "ncclMemAlloc; all ranks must take it from there",
                            r);
    if (part->bytes == 0 || part->bytes > part->extent)
      return cpu_nccl_error(ncclInvalidArgument,
                            "ncclCommWindowRegister: rank %d registers %zu bytes; allowed: 1 to "
                            "%zu, what its memory has",
                            r, part->bytes, part->extent);
    if (part->place.offset % NCCL_WIN_REQUIRED_ALIGNMENT != 0)
      return cpu_nccl_error(ncclInvalidArgument,
                            "ncclCommWindowRegister: rank %d begins %zu bytes into its allocation; "
                            "allowed: a multiple of %d",
                            r, part->place.offset, NCCL_WIN_REQUIRED_ALIGNMENT);
    if (part->bytes != parts[0].bytes)
      return cpu_nccl_error(ncclInvalidUsage,
                            "ncclCommWindowRegister: rank %d registers %zu bytes and rank 0 %zu; "
                            "all ranks must agree",
                            r, part->bytes, parts[0].bytes);
  }
  return ncclSuccess;
}

/* Called with the lock. NULL if a rank has ended. */
static struct mapping *map(ncclComm_t comm, const struct part *parts, size_t at)
{
  const size_t all = (size_t)comm->nranks * CPU_LSA_STRIDE;
  struct region *region = comm->region;
  if (region->windows == NULL) {
    region->windows =
        mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (region->windows == MAP_FAILED) cpu_out_of_memory("the addresses of windows");
    region->windows_bytes = all;
  }
  struct mapping *m = mappings;
  while (m != NULL && m->base != region->windows + at) m = m->next;
  if (m == NULL) {
    m = cpu_allocate(sizeof(*m));
    *m = (struct mapping){mappings, region->windows + at, comm->nranks, 0, parts[0].bytes};
    for (int r = 0; r < comm->nranks; r++) {
      const int fd = cpu_place_open(&parts[r].place);
      if (fd < 0) return NULL;
      if (mmap(m->base + (size_t)r * CPU_LSA_STRIDE, m->bytes, PROT_READ | PROT_WRITE,
               MAP_SHARED | MAP_FIXED, fd, (off_t)parts[r].place.offset) == MAP_FAILED)
        cpu_out_of_memory("windows");
      close(fd);
    }
    mappings = m;
  }
  m->references++;
  return m;
}

static void unmap(struct mapping *m)
{
  pthread_mutex_lock(&lock);
  if (--m->references == 0) {
    struct mapping **link = &mappings;
    while (*link != m) link = &(*link)->next;
    *link = m->next;
    for (int r = 0; r < m->nranks; r++) /* keeps the addresses */
      mmap(m->base + (size_t)r * CPU_LSA_STRIDE, m->bytes, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    free(m);
  }
  pthread_mutex_unlock(&lock);
}

size_t cpu_window_extent(const void *pointer)
{
  size_t extent = 0;
  pthread_mutex_lock(&lock);
  for (const struct mapping *m = mappings; m != NULL; m = m->next) {
    const size_t at = (size_t)((const char *)pointer - m->base), offset = at % CPU_LSA_STRIDE;
    if (at / CPU_LSA_STRIDE < (size_t)m->nranks && offset < m->bytes) extent = m->bytes - offset;
  }
  pthread_mutex_unlock(&lock);
  return extent;
}

ncclResult_t cpu_window_register(ncclComm_t comm, void *buffer, size_t bytes, ncclWindow_t *window,
                                 int flags)
{
  ncclResult_t result = cpu_comm_check(comm);
  if (result != ncclSuccess) return result;
  if (window == NULL || (flags & ~NCCL_WIN_COLL_SYMMETRIC) != 0)
    return cpu_nccl_error(ncclInvalidArgument,
                          "ncclCommWindowRegister: the window pointer is NULL, or flags are %d",
                          flags);
  struct region *region = NULL;
  struct part mine = {.bytes = bytes}, parts[MAX_RANKS];
  for (const struct ncclWindow_vidmem *w = comm->windows; w != NULL; w = w->next)
    if (w->end > mine.used) mine.used = w->end;
  mine.extent = cpu_memory_find(buffer, &mine.place, &region);
  mine.shareable = region != NULL && region->shareable;
  if (!cpu_meet(comm, HOSTS, &mine, parts, sizeof(mine)))
    result = cpu_comm_check(comm);
  else
    result = judge(parts, comm->nranks);
  size_t at = 0;
  for (int r = 0; r < comm->nranks; r++)
    if (parts[r].used > at) at = parts[r].used;
  if (result == ncclSuccess && bytes > CPU_LSA_STRIDE - at - 2 * PAGE)
    result =
        cpu_nccl_error(ncclUnhandledCudaError,
                       "ncclCommWindowRegister: all windows of a rank have %zu bytes; allowed: %zu",
                       at + bytes, CPU_LSA_STRIDE);
  struct mapping *mapping = NULL;
  if (result == ncclSuccess) {
    pthread_mutex_lock(&lock);
    mapping = map(comm, parts, at);
    pthread_mutex_unlock(&lock);
    if (mapping == NULL)
      result = cpu_nccl_error(ncclRemoteError, "ncclCommWindowRegister: a rank has ended");
  }
  if (result != ncclSuccess) {
    if (region != NULL) cpu_region_release(region);
    return result;
  }
  cpu_meet(comm, HOSTS, NULL, NULL, 0); /* only then may a rank free its memory */
  ncclWindow_t new = cpu_allocate(sizeof(*new));
  new->window = (struct cpu_window){mapping->base, bytes, comm->nranks, comm->rank};
  new->mapping = mapping;
  new->end = at + (bytes + 2 * PAGE - 1) / PAGE *PAGE; /* and a page that nobody may use */
  new->next = comm->windows;
  comm->windows = new;
  cpu_comm_retain(comm);
  cpu_registration_add(comm, HELD_WINDOW, region, buffer, bytes, new)->symmetric =
      flags == NCCL_WIN_COLL_SYMMETRIC;
  *window = new;
  return ncclSuccess;
}

ncclResult_t cpu_window_deregister(ncclComm_t comm, ncclWindow_t window)
{
  if (window == NULL) return ncclSuccess;
  ncclResult_t result = cpu_registration_remove("ncclCommWindowDeregister", comm, window);
  if (result != ncclSuccess) return result;
  struct ncclWindow_vidmem **link = &comm->windows;
  while (*link != window) link = &(*link)->next;
  *link = window->next;
  unmap(window->mapping);
  cpu_comm_release(comm);
  free(window);
  return ncclSuccess;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t)
    __attribute__((alias("cpu_window_deregister")));
