/* SPDX-License-Identifier: Apache-2.0 */
/* Windows: the ranks exchange the places of their memory, and each rank maps all of it. */
#include "internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

void cpu_races_flat(char *flat);

/* What a rank sends to the others. */
struct part {
  size_t bytes;  /* as registered */
  size_t extent; /* bytes from the start to the end of the allocation */
  bool shareable;
  struct place place;
};

struct ncclWindow_vidmem {
  char *flat; /* first, for nccl_device.h: where rank 0's is mapped; the others at equal distances */
  ncclComm_t comm;
  size_t bytes;
  struct part parts[MAX_RANKS];
  struct region *regions[MAX_RANKS];
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

/* Kernels see the windows of all ranks in one piece of memory for each communicator and process:
 * that of rank r is r times CPU_LSA_STRIDE after that of rank 0. */
static char *map_flat(ncclComm_t comm, const struct part *parts)
{
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&lock);
  if (comm->region->flat == NULL) {
    comm->region->flat = mmap(NULL, MAX_RANKS * CPU_LSA_STRIDE, PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (comm->region->flat == MAP_FAILED) cpu_out_of_memory("windows");
#ifdef CPU_RACES
    cpu_races_flat(comm->region->flat);
#endif
  }
  pthread_mutex_unlock(&lock);
  char *const base = comm->region->flat + comm->flat_used;
  for (int r = 0; r < comm->nranks; r++) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)parts[r].place.pid, parts[r].place.fd);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    /* again by each rank of this process, which changes nothing */
    if (fd < 0 || mmap(base + (size_t)r * CPU_LSA_STRIDE, parts[r].bytes, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_FIXED, fd, (off_t)parts[r].place.offset) == MAP_FAILED)
      cpu_out_of_memory("windows");
    close(fd);
  }
  comm->flat_used += (parts[0].bytes + 8191) / 4096 * 4096; /* and a page that nobody may use */
  return base;
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buffer, size_t bytes,
                                    ncclWindow_t *window, int flags)
{
  ncclResult_t result = cpu_comm_check(comm);
  if (result != ncclSuccess) return result;
  if (window == NULL || (flags & ~NCCL_WIN_COLL_SYMMETRIC) != 0)
    return cpu_nccl_error(ncclInvalidArgument,
                          "ncclCommWindowRegister: the window pointer is NULL, or flags are %d",
                          flags);
  ncclWindow_t new = cpu_allocate(sizeof(*new));
  struct region *region = NULL;
  struct part mine = {.bytes = bytes};
  mine.extent = cpu_memory_find(buffer, &mine.place, &region);
  mine.shareable = region != NULL && region->shareable;
  if (!cpu_meet(comm, HOSTS, &mine, new->parts, sizeof(mine)))
    result = cpu_comm_check(comm);
  else
    result = judge(new->parts, comm->nranks);
  if (result != ncclSuccess) {
    if (region != NULL) cpu_region_release(region);
    free(new);
    return result;
  }
  for (int r = 0; r < comm->nranks; r++) {
    new->regions[r] = cpu_region_open(REGION_PEER, &new->parts[r].place);
    if (new->regions[r] == NULL)
      return cpu_nccl_error(ncclRemoteError, "ncclCommWindowRegister: rank %d has ended", r);
  }
  new->flat = map_flat(comm, new->parts);
  cpu_meet(comm, HOSTS, NULL, NULL, 0); /* only then may a rank free its memory */
  new->comm = comm;
  new->bytes = bytes;
  cpu_comm_retain(comm);
  cpu_registration_add(comm, HELD_WINDOW, region, buffer, bytes, new)->symmetric =
      flags == NCCL_WIN_COLL_SYMMETRIC;
  *window = new;
  return ncclSuccess;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window)
{
  if (window == NULL) return ncclSuccess;
  ncclResult_t result = cpu_registration_remove(__func__, comm, window);
  if (result != ncclSuccess) return result;
  for (int r = 0; r < comm->nranks; r++) cpu_region_release(window->regions[r]);
  cpu_comm_release(comm);
  free(window);
  return ncclSuccess;
}

void *cpu_window_pointer(ncclWindow_t window, size_t offset, int peer)
{
  if (window == NULL || peer < 0 || peer >= window->comm->nranks || offset > window->bytes)
    return NULL;
  return window->flat + (size_t)peer * CPU_LSA_STRIDE + offset;
}
