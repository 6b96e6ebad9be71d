/* SPDX-License-Identifier: Apache-2.0 */
/* Each allocation is a file without a name (memfd). Another process can map it through
 * /proc/<pid>/fd/<fd>, as a GPU maps the memory of a peer. The kernel frees it with the last
 * process that maps it, even after a crash. */
#include "internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096, POISON = 0xCB, POISON_BYTES = 1 << 20 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the list and its regions */
static struct region *regions;

/* ---- regions ------------------------------------------------------------------------------- */

static size_t round_up(size_t bytes)
{
  return (bytes + PAGE - 1) / PAGE * PAGE;
}

char *cpu_reserve(char *at, size_t bytes)
{
  char *base =
      mmap(at, bytes, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at != NULL ? MAP_FIXED : 0), -1, 0);
  if (base == MAP_FAILED) cpu_out_of_memory("addresses");
  return base;
}

/* Maps the file; if not at a reserved address, with an inaccessible page after it, so that an
 * access past the end does not reach the next buffer. */
static void map(struct region *region, int fd, char *at)
{
  region->mapped = round_up(region->bytes);
  region->base = at != NULL ? at : cpu_reserve(NULL, region->mapped + PAGE);
  if (mmap(region->base, region->mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
           (off_t)region->file.offset) == MAP_FAILED)
    cpu_out_of_memory("what ranks share");
}

static struct region *enter(const struct region *filled)
{
  struct region *region = cpu_allocate(sizeof(*region));
  *region = *filled;
  region->references = 1;
  region->next = regions;
  regions = region;
  return region;
}

struct region *cpu_region_create(enum region_kind kind, int device, size_t bytes)
{
  struct region new = {.kind = kind, .bytes = bytes, .owned = true};
  struct stat status;
  const int fd = memfd_create("cpu_standin", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0 || fstat(fd, &status) != 0)
    cpu_out_of_memory("device memory");
  new.file = (struct place){.inode = status.st_ino, .pid = getpid(), .fd = fd, .device = device};
  map(&new, fd, NULL);
  pthread_mutex_lock(&lock);
  struct region *region = enter(&new);
  pthread_mutex_unlock(&lock);
  return region;
}

/* Called with the lock. */
static struct region *open_region(const struct place *place, char *at, size_t bytes)
{
  struct region new = {.kind = at != NULL ? REGION_WINDOW : REGION_HIDDEN, .file = *place};
  char path[64];
  struct stat status;
  snprintf(path, sizeof(path), "/proc/%ld/fd/%d", (long)place->pid, place->fd);
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return NULL;
  /* The descriptor may be another file by now. */
  const bool same = fstat(fd, &status) == 0 && status.st_ino == place->inode;
  new.bytes = at != NULL ? bytes : (size_t)status.st_size;
  if (at == NULL) new.file.offset = 0;
  if (same) map(&new, fd, at);
  close(fd);
  return same ? enter(&new) : NULL;
}

static bool is_at(const struct region *region, const struct place *place, const char *at)
{
  if (at != NULL) return region->base == at;
  return region->file.inode == place->inode && region->kind != REGION_WINDOW;
}

struct region *cpu_region_open(const struct place *place, char *at, size_t bytes)
{
  pthread_mutex_lock(&lock);
  struct region *region = regions;
  while (region != NULL && !is_at(region, place, at)) region = region->next;
  if (region != NULL)
    region->references++;
  else
    region = open_region(place, at, bytes);
  pthread_mutex_unlock(&lock);
  return region;
}

void cpu_region_release(struct region *region)
{
  pthread_mutex_lock(&lock);
  if (--region->references == 0) {
    struct region **link = &regions;
    while (*link != region) link = &(*link)->next;
    *link = region->next;
    if (region->kind == REGION_WINDOW)
      cpu_reserve(region->base, region->mapped);
    else
      munmap(region->base, region->mapped + PAGE);
    if (region->windows != NULL) munmap(region->windows, region->windows_bytes);
    if (region->owned) close(region->file.fd);
    free(region);
  }
  pthread_mutex_unlock(&lock);
}

/* The region that the program's `pointer` points into. Called with the lock. */
static struct region *find(const void *pointer)
{
  for (struct region *region = regions; region != NULL; region = region->next)
    if ((const char *)pointer >= region->base &&
        (const char *)pointer < region->base + region->bytes && region->kind != REGION_HIDDEN)
      return region;
  return NULL;
}

bool cpu_memory_is_window(const void *pointer)
{
  pthread_mutex_lock(&lock);
  const struct region *region = find(pointer);
  const bool is = region != NULL && region->kind == REGION_WINDOW;
  pthread_mutex_unlock(&lock);
  return is;
}

size_t cpu_memory_find(const void *pointer, struct place *place, struct region **found)
{
  size_t extent = 0;
  pthread_mutex_lock(&lock);
  struct region *region = find(pointer);
  if (region != NULL) {
    const size_t offset = (size_t)((const char *)pointer - region->base);
    extent = region->bytes - offset;
    if (found != NULL) region->references++;
    if (place != NULL) {
      *place = region->file;
      place->offset += offset;
    }
  }
  if (found != NULL) *found = region;
  pthread_mutex_unlock(&lock);
  return extent;
}

/* ---- allocation ---------------------------------------------------------------------------- */

cudaError_t cpu_memory_allocate(enum region_kind kind, bool shareable, void **pointer, size_t bytes)
{
  struct device *device = cpu_device(-1);
  *pointer = NULL;
  if (cpu_settings()->devices == 0) return cudaErrorNoDevice;
  if (bytes == 0) return cudaSuccess;
  if (bytes > SIZE_MAX / 4) return cudaErrorMemoryAllocation;
  size_t cost = kind == REGION_DEVICE ? round_up(bytes) : 0;
  pthread_mutex_lock(&device->lock);
  bool fits = cost <= cpu_settings()->memory - device->used;
  if (fits) device->used += cost;
  pthread_mutex_unlock(&device->lock);
  if (!fits) return cudaErrorMemoryAllocation;
  struct region *region = cpu_region_create(kind, cpu_current_device(), bytes);
  region->shareable = shareable;
  /* Memory that was never written must not look right by chance, as zeros often do. Only the start
   * is poisoned, since a large buffer would cost real memory before it is used. */
  memset(region->base, POISON, region->mapped < POISON_BYTES ? region->mapped : POISON_BYTES);
  *pointer = region->base;
  return cudaSuccess;
}

cudaError_t cpu_memory_free(enum region_kind kind, void *pointer)
{
  if (pointer == NULL) return cudaSuccess;
  /* CUDA and NCCL would go on until a rank accesses memory that no longer exists. */
  const enum hold hold = cpu_registration_of(pointer);
  if (hold != HOLDS)
    return cpu_error_because(cudaErrorNotPermitted, "the memory is still %s; free it after %s",
                             hold == HELD_WINDOW ? "a window" : "registered",
                             hold == HELD_WINDOW ? "ncclCommWindowDeregister"
                                                 : "ncclCommDeregister");
  pthread_mutex_lock(&lock);
  struct region *region = find(pointer);
  if (region == NULL || region->base != pointer || region->kind != kind) {
    pthread_mutex_unlock(&lock);
    return cudaErrorInvalidValue;
  }
  /* A window of this process may still use the region; the program can no longer. */
  region->kind = REGION_HIDDEN;
  pthread_mutex_unlock(&lock);
  struct device *device = cpu_device(region->file.device);
  cpu_device_wait(device); /* like CUDA: work that uses the memory ends first */
  pthread_mutex_lock(&device->lock);
  if (kind == REGION_DEVICE) device->used -= region->mapped;
  pthread_mutex_unlock(&device->lock);
  cpu_region_release(region);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void **pointer, size_t bytes)
{
  return cpu_error(cpu_memory_allocate(REGION_DEVICE, false, pointer, bytes));
}

cudaError_t cudaFree(void *pointer)
{
  return cpu_error(cpu_memory_free(REGION_DEVICE, pointer));
}

cudaError_t cudaMallocHost(void **pointer, size_t bytes)
{
  return cudaHostAlloc(pointer, bytes, 0);
}

cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned int flags)
{
  (void)flags; /* all host memory is portable and mapped */
  return cpu_error(cpu_memory_allocate(REGION_HOST, false, pointer, bytes));
}

cudaError_t cudaFreeHost(void *pointer)
{
  return cpu_error(cpu_memory_free(REGION_HOST, pointer));
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
  struct device *device = cpu_device(-1);
  pthread_mutex_lock(&device->lock);
  *total = cpu_settings()->memory;
  *free_bytes = *total - device->used;
  pthread_mutex_unlock(&device->lock);
  return cudaSuccess;
}

/* ---- copying and setting ------------------------------------------------------------------- */

struct copy {
  void *to;
  const void *from; /* NULL: set to `value` */
  size_t bytes;
  int value;
  void *staged; /* or NULL */
};

/* Many zeros are a hole in the file, which costs memory only where it is used again. */
static void run_copy(const void *args)
{
  const struct copy *copy = args;
  struct place place;
  if (copy->from != NULL)
    memmove(copy->to, copy->from, copy->bytes);
  else if (copy->value != 0 || copy->bytes < POISON_BYTES || cpu_memory_is_window(copy->to) ||
           cpu_memory_find(copy->to, &place, NULL) == 0 ||
           fallocate(place.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, place.offset,
                     copy->bytes) != 0)
    memset(copy->to, copy->value, copy->bytes);
}

static void release_copy(const void *args)
{
  free(((const struct copy *)args)->staged);
}

/* Is [pointer, pointer + bytes) in one allocation, and on the device if it must be? */
static bool usable(const void *pointer, size_t bytes, bool on_device)
{
  size_t extent = cpu_memory_find(pointer, NULL, NULL);
  return pointer != NULL && (extent > 0 ? bytes <= extent : !on_device);
}

/* `set` is -1 to copy, or the value of a memset. */
static cudaError_t copy(void *to, const void *from, int set, size_t bytes, enum cudaMemcpyKind kind,
                        cudaStream_t handle, bool wait)
{
  struct CUstream_st *stream = cpu_stream(handle, -1);
  const bool to_device = (kind & cudaMemcpyHostToDevice) != 0; /* DeviceToDevice has both bits */
  const bool from_device = (kind & cudaMemcpyDeviceToHost) != 0;
  if (bytes == 0) return cudaSuccess;
  if (!usable(to, bytes, to_device) || (set < 0 && !usable(from, bytes, from_device)))
    return cpu_error(cudaErrorInvalidValue);
  /* CUDA reads ordinary host memory before the call returns, and programs may rely on that. Copies
   * to the host happen later than with CUDA, so that a missing wait leads to wrong data. */
  bool stage =
      set < 0 && !wait && cpu_memory_find(from, NULL, NULL) == 0 && cpu_capture_of(stream) == 0;
  struct copy copy = {to, from, bytes, set, stage ? cpu_allocate(bytes) : NULL};
  if (stage) copy.from = memcpy(copy.staged, from, bytes);
  cpu_stream_queue(stream, cpu_operation(run_copy, release_copy, &copy, sizeof(copy)));
  return cpu_error(wait ? cpu_stream_wait(stream) : cudaSuccess);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
  return copy(to, from, -1, bytes, kind, NULL, true);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
  return copy(to, from, -1, bytes, kind, stream, false);
}

cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
  return copy(to, NULL, (unsigned char)value, bytes, cudaMemcpyDeviceToDevice, NULL, true);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
  return copy(to, NULL, (unsigned char)value, bytes, cudaMemcpyDeviceToDevice, stream, false);
}
