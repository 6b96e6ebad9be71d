/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the CPU stand-in: ranks as processes, and settings. */
#include "standin.h"

int descriptors(void)
{
  int n = 0;
  DIR *directory = opendir("/proc/self/fd");
  REQUIRE(directory != NULL);
  while (readdir(directory) != NULL) n++;
  closedir(directory);
  return n;
}

/* Does a mapping of the process have `text` in its name? */
static bool has_mapped(pid_t process, const char *text)
{
  char path[64], line[1024];
  bool found = false;
  snprintf(path, sizeof(path), "/proc/%d/maps", (int)process);
  FILE *maps = fopen(path, "r");
  REQUIRE(maps != NULL);
  while (fgets(line, sizeof(line), maps) != NULL) found = found || strstr(line, text) != NULL;
  fclose(maps);
  return found;
}

/* Starts this program again: argv[1] is the part, then its arguments. `setting` is NAME=value or
 * NULL; `output` gets stderr if it is not NULL. */
static pid_t start(const char *part, int rank, int n, const ncclUniqueId *id, const char *setting,
                   int output)
{
  char rank_text[16], n_text[16], id_text[2 * NCCL_UNIQUE_ID_BYTES + 1] = "";
  snprintf(rank_text, sizeof(rank_text), "%d", rank);
  snprintf(n_text, sizeof(n_text), "%d", n);
  for (int i = 0; id != NULL && i < NCCL_UNIQUE_ID_BYTES; i++)
    snprintf(id_text + 2 * i, 3, "%02x", (unsigned char)id->internal[i]);
  fflush(NULL);
  pid_t child = fork();
  REQUIRE(child >= 0);
  if (child > 0) return child;
  if (setting != NULL) putenv((char *)(uintptr_t)setting);
  if (output >= 0) dup2(output, 2);
  execl("/proc/self/exe", "test_standin", part, rank_text, n_text, id_text, (char *)NULL);
  _exit(99);
}

static int finish(pid_t child)
{
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int process_part(struct rank *me)
{
  int before = descriptors();
  open_rank(me);
  one_collective(me, ALLREDUCE, 100003, 7, ncclSum, 0, false);
  one_collective(me, ALLTOALL, 20011, 3, ncclSum, 0, false);
  char *memory = NULL;
  ncclWindow_t window = NULL;
  NCCL(ncclMemAlloc((void **)&memory, 8192));
  CUDA(cudaMemset(memory, 0, 8192));
  NCCL(ncclCommWindowRegister(me->comm, memory, 8192, &window, NCCL_WIN_COLL_SYMMETRIC));
  REQUIRE(cpu_window_pointer(window, 0, me->rank) == memory);
  struct push push = {me->comm, window, me->rank, me->n, 0};
  for (push.epoch = 1; push.epoch <= 100; push.epoch++) {
    CUDA(cpu_launch(me->stream, push_kernel, &push, sizeof(push)));
    REQUIRE(sum_over(me->comm, me->stream, 1) == me->n);
  }
  /* The memory of a peer is device memory: copies may go there. */
  char *peer = cpu_window_pointer(window, 8000, (me->rank + 1) % me->n), got = 0;
  CUDA(cudaMemsetAsync(peer, me->rank + 1, 1, me->stream));
  REQUIRE(sum_over(me->comm, me->stream, 1) == me->n);
  CUDA(cudaMemcpy(&got, memory + 8000, 1, cudaMemcpyDeviceToHost));
  REQUIRE(got == (me->rank + me->n - 1) % me->n + 1);
  REQUIRE(sum_over(me->comm, me->stream, 1) == me->n);
  split_body(me);
  NCCL(ncclCommWindowDeregister(me->comm, window));
  NCCL(ncclMemFree(memory));
  CUDA(cudaFree(me->send));
  CUDA(cudaFree(me->receive));
  close_rank(me);
  REQUIRE(descriptors() == before);
  return 0;
}

/* Waits for a rank that never takes part, until it is killed. */
int hanging_part(struct rank *me)
{
  open_rank(me);
  void *memory = device_memory(1 << 20);
  CUDA(cudaMemset(memory, 0, 1 << 20));
  if (me->rank == 0) nap(100000);
  NCCL(ncclAllReduce(memory, memory, 1 << 18, ncclFloat, ncclSum, me->comm, me->stream));
  CUDA(cudaStreamSynchronize(me->stream));
  return 0;
}

void test_processes(void **state)
{
  (void)state;
  int before = descriptors();
  for (int n = 1; n <= 7; n += 3) {
    ncclUniqueId id;
    pid_t children[8];
    NCCL(ncclGetUniqueId(&id));
    for (int r = 0; r < n; r++) children[r] = start("process", r, n, &id, NULL, -1);
    for (int r = 0; r < n; r++) REQUIRE(finish(children[r]) == 0);
  }
  /* The ids of ranks that never joined here are all that is left. */
  REQUIRE(descriptors() - before <= 3);
}

/* Killed processes leave nothing behind: all they share are files without a name. (To compare the
 * contents of folders would not do: others use them at the same time.) */
void test_killed(void **state)
{
  (void)state;
  ncclUniqueId id;
  pid_t children[3];
  NCCL(ncclGetUniqueId(&id));
  for (int r = 0; r < 3; r++) children[r] = start("hanging", r, 3, &id, NULL, -1);
  for (int r = 0; r < 3; r++) {
    double begin = now();
    while (!has_mapped(children[r], "memfd:cpu_standin") && now() - begin < 30) nap(10);
    nap(100);
    REQUIRE(has_mapped(children[r], "memfd:cpu_standin"));
    REQUIRE(!has_mapped(children[r], "/dev/shm/"));
  }
  for (int r = 0; r < 3; r++) kill(children[r], SIGKILL);
  for (int r = 0; r < 3; r++) REQUIRE(finish(children[r]) == 128 + SIGKILL);
}

/* ---- settings ------------------------------------------------------------------------------ */

int no_devices_part(struct rank *me)
{
  (void)me;
  int count = -1;
  void *pointer;
  cudaStream_t stream;
  ncclUniqueId id;
  ncclComm_t comm;
  REQUIRE(cudaGetDeviceCount(&count) == cudaErrorNoDevice && count == 0);
  REQUIRE(cudaSetDevice(0) == cudaErrorNoDevice);
  REQUIRE(cudaMalloc(&pointer, 1) == cudaErrorNoDevice);
  REQUIRE(cudaStreamCreate(&stream) == cudaErrorNoDevice);
  REQUIRE(cudaDeviceSynchronize() == cudaErrorNoDevice);
  NCCL(ncclGetUniqueId(&id));
  REQUIRE(ncclCommInitRank(&comm, 1, id, 0) == ncclUnhandledCudaError);
  return 0;
}

int settings_part(struct rank *me)
{
  int count = 0, version = 0;
  size_t free_bytes = 0, total = 0;
  char bus[32];
  CUDA(cudaGetDeviceCount(&count));
  CUDA(cudaMemGetInfo(&free_bytes, &total));
  NCCL(ncclGetVersion(&version));
  CUDA(cudaDeviceGetPCIBusId(bus, sizeof(bus), 0));
  switch (me->rank) {
  case 0:
    return count == 3 && cudaSetDevice(3) == cudaErrorInvalidDevice ? 0 : 1;
  case 1:
    return total == 12345678 ? 0 : 1;
  case 2:
    return version == 22703 ? 0 : 1;
  default:
    return strcmp(bus, "0000:1F:00.0") == 0 ? 0 : 1;
  }
}

int init_part(struct rank *me)
{
  open_rank(me);
  close_rank(me);
  return 0;
}

/* The stderr of a part. */
static int output_of(const char *part, int rank, const char *setting, char *text, size_t size)
{
  int pipes[2];
  REQUIRE(pipe2(pipes, O_CLOEXEC) == 0);
  ncclUniqueId id;
  NCCL(ncclGetUniqueId(&id));
  pid_t child = start(part, rank, 1, &id, setting, pipes[1]);
  close(pipes[1]);
  size_t n = 0;
  for (ssize_t got; n + 1 < size && (got = read(pipes[0], text + n, size - 1 - n)) > 0;)
    n += (size_t)got;
  text[n] = '\0';
  close(pipes[0]);
  return finish(child);
}

void test_settings(void **state)
{
  (void)state;
  char text[4096];
  static const char *const wrong[] = {
      "CPU_STANDIN_DEVICES=x", "CPU_STANDIN_DEVICES=65", "CPU_STANDIN_DEVICES=-1",
      "CPU_STANDIN_DEVICES=",  "CPU_STANDIN_MEMORY=1G",  "CPU_STANDIN_MEMORY=99999999999999999999",
      "CPU_STANDIN_QUIET=yes", "CPU_STANDIN_DELAY=-1",   "CPU_STANDIN_NCCL_VERSION=2.27"};
  for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
    REQUIRE(output_of("settings", 0, wrong[i], text, sizeof(text)) == 2);
    REQUIRE(strstr(text, wrong[i]) != NULL && strchr(text, '\n') == text + strlen(text) - 1);
  }
  REQUIRE(finish(start("no-devices", 0, 1, NULL, "CPU_STANDIN_DEVICES=0", -1)) == 0);
  REQUIRE(finish(start("settings", 0, 1, NULL, "CPU_STANDIN_DEVICES=3", -1)) == 0);
  REQUIRE(finish(start("settings", 1, 1, NULL, "CPU_STANDIN_MEMORY=12345678", -1)) == 0);
  REQUIRE(finish(start("settings", 2, 1, NULL, "CPU_STANDIN_NCCL_VERSION=22703", -1)) == 0);
  REQUIRE(finish(start("settings", 3, 1, NULL, "CPU_STANDIN_PCI_BUS=31", -1)) == 0);
  REQUIRE(output_of("init", 0, "CPU_STANDIN_QUIET=0", text, sizeof(text)) == 0);
  REQUIRE(strcmp(text, "note: CPU stand-in: no GPU is used; for reading, learning and CI; timings "
                       "mean nothing\n") == 0);
  REQUIRE(output_of("init", 0, "CPU_STANDIN_QUIET=1", text, sizeof(text)) == 0);
  REQUIRE(text[0] == '\0');
}

/* Everything is given back: file descriptors here, memory with LeakSanitizer. */
