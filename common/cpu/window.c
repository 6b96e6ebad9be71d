/* SPDX-License-Identifier: Apache-2.0 */
/* Windows: the ranks exchange the places of their memory, and each rank maps all of it. */
#include "internal.h"

#include <stdlib.h>

enum { PAGE = 4096 };

/* What a rank sends to the others. */
struct part {
  size_t bytes;  /* as registered */
  size_t extent; /* bytes from the start to the end of the allocation */
  bool shareable;
  size_t used; /* addresses, by windows that this rank still has */
  struct place place;
};

/* Kernels find the memory of all ranks by adding: in the window of rank r, a byte is r times
 * CPU_LSA_STRIDE after that in the window of rank 0. So each process reserves addresses for all
 * windows of a communicator, CPU_LSA_STRIDE for each rank, and maps every window there once for all
 * its ranks. As with NCCL, all windows are at the same distances from each other in all processes;
 * so the ranks agree on where the next one lies: after the last one that any rank still has. */
struct ncclWindow_vidmem {
  struct cpu_window window; /* for kernels; first */
  struct region *parts[MAX_RANKS];
  struct ncclWindow_vidmem *next; /* of the communicator */
  size_t end;                     /* of its addresses */
};

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

static void unmap(ncclWindow_t w)
{
  for (int r = 0; r < w->window.nranks && w->parts[r] != NULL; r++) cpu_region_release(w->parts[r]);
  free(w);
}

/* NULL if a rank has ended. */
static ncclWindow_t map(ncclComm_t comm, const struct part *parts, size_t at)
{
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&lock);
  struct region *region = comm->region;
  region->windows_bytes = (size_t)comm->nranks * CPU_LSA_STRIDE;
  if (region->windows == NULL) region->windows = cpu_reserve(NULL, region->windows_bytes);
  pthread_mutex_unlock(&lock);
  ncclWindow_t new = cpu_allocate(sizeof(*new));
  char *base = region->windows + at;
  new->window = (struct cpu_window){base, parts[0].bytes, comm->nranks, comm->rank};
  for (int r = 0; r < comm->nranks; r++) {
    new->parts[r] =
        cpu_region_open(&parts[r].place, base + (size_t)r * CPU_LSA_STRIDE, parts[r].bytes);
    if (new->parts[r] != NULL) continue;
    unmap(new);
    return NULL;
  }
  return new;
}

/* The arguments of ncclCommWindowRegister. */
struct request {
  ncclComm_t comm;
  void *buffer;
  size_t bytes;
  ncclWindow_t *window;
  int flags;
};

static ncclResult_t run_register(const void *args)
{
  const struct request *request = args;
  ncclComm_t comm = request->comm;
  const size_t bytes = request->bytes;
  ncclResult_t result = cpu_comm_check(comm);
  if (result != ncclSuccess) return result;
  struct region *region = NULL;
  struct part mine = {.bytes = bytes}, parts[MAX_RANKS];
  for (const struct ncclWindow_vidmem *w = comm->windows; w != NULL; w = w->next)
    if (w->end > mine.used) mine.used = w->end;
  mine.extent = cpu_memory_find(request->buffer, &mine.place, &region);
  mine.shareable = region != NULL && region->shareable;
  if (cpu_meet(comm, HOSTS, &mine, parts, sizeof(mine)))
    result = judge(parts, comm->nranks);
  else
    result = cpu_comm_check(comm);
  size_t at = 0;
  for (int r = 0; r < comm->nranks; r++)
    if (parts[r].used > at) at = parts[r].used;
  if (result == ncclSuccess && bytes > CPU_LSA_STRIDE - at - 2 * PAGE)
    result =
        cpu_nccl_error(ncclUnhandledCudaError,
                       "ncclCommWindowRegister: all windows of a rank have %zu bytes; allowed: %zu",
                       at + bytes, CPU_LSA_STRIDE);
  ncclWindow_t new = NULL;
  if (result == ncclSuccess) {
    new = map(comm, parts, at);
    if (new == NULL)
      result = cpu_nccl_error(ncclRemoteError, "ncclCommWindowRegister: a rank has ended");
  }
  if (result != ncclSuccess) {
    if (region != NULL) cpu_region_release(region);
    return result;
  }
  cpu_meet(comm, HOSTS, NULL, NULL, 0);                /* only then may a rank free its memory */
  new->end = at + (bytes + 2 * PAGE - 1) / PAGE *PAGE; /* and a page that nobody may use */
  new->next = comm->windows;
  comm->windows = new;
  comm->references++;
  cpu_registration_add(comm, HELD_WINDOW, region, request->buffer, bytes, new)->symmetric =
      request->flags == NCCL_WIN_COLL_SYMMETRIC;
  *request->window = new;
  return ncclSuccess;
}

ncclResult_t cpu_window_register(ncclComm_t comm, void *buffer, size_t bytes, ncclWindow_t *window,
                                 int flags)
{
  const struct request request = {comm, buffer, bytes, window, flags};
  return cpu_group_run(comm, run_register, &request, sizeof(request));
}

ncclResult_t ncclCommWindowRegister(ncclComm_t, void *, size_t, ncclWindow_t *, int)
    __attribute__((alias("cpu_window_register")));

ncclResult_t cpu_window_deregister(ncclComm_t comm, ncclWindow_t window)
{
  if (window == NULL) return ncclSuccess;
  ncclResult_t result = cpu_registration_remove("ncclCommWindowDeregister", comm, window);
  if (result != ncclSuccess) return result;
  struct ncclWindow_vidmem **link = &comm->windows;
  while (*link != window) link = &(*link)->next;
  *link = window->next;
  unmap(window);
  cpu_comm_release(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t)
    __attribute__((alias("cpu_window_deregister")));
