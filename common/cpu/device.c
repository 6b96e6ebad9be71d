/* SPDX-License-Identifier: Apache-2.0 */
/* Imitated devices: settings from the environment, properties, and error codes. A device is only an
 * amount of memory and a set of streams. */
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static struct settings settings;
static struct device devices[MAX_DEVICES];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static _Thread_local int current_device;
static _Thread_local cudaError_t last_error;
static _Thread_local struct {
  cudaError_t error;
  char sentence[SENTENCE];
} reason;

/* A wrong setting must not be ignored, or a test would test something else. */
static long long number_from(const char *name, long long standard, long long min, long long max)
{
  const char *text = getenv(name);
  if (text == NULL) return standard;
  char *end = NULL;
  long long value = strtoll(text, &end, 10);
  if (text[0] < '0' || text[0] > '9' || *end != '\0' || value < min || value > max) {
    fprintf(stderr, "CPU stand-in: %s=%s; allowed: a number from %lld to %lld\n", name, text, min,
            max);
    fflush(NULL);
    _exit(2);
  }
  return value;
}

static void start(void)
{
  settings.devices = (int)number_from("CPU_STANDIN_DEVICES", MAX_DEVICES, 0, MAX_DEVICES);
  settings.memory = (size_t)number_from("CPU_STANDIN_MEMORY", 2LL << 30, 0, 1LL << 46);
  settings.pci_bus = (int)number_from("CPU_STANDIN_PCI_BUS", 1, 0, 255 - MAX_DEVICES);
  settings.nccl_version =
      (int)number_from("CPU_STANDIN_NCCL_VERSION", NCCL_VERSION_CODE, 0, 999999);
  settings.delay = (int)number_from("CPU_STANDIN_DELAY", 0, 0, 60000);
  settings.quiet = number_from("CPU_STANDIN_QUIET", 0, 0, 1) != 0;
  settings.lsa_ranks = (int)number_from("CPU_STANDIN_LSA_RANKS", MAX_RANKS, 1, MAX_RANKS);
  settings.pcie = (int)number_from("CPU_STANDIN_PCIE", -1, 0, MAX_DEVICES - 1);
  settings.races = number_from("CPU_STANDIN_RACES", -1, 0, 1LL << 46);
  for (int d = 0; d < MAX_DEVICES; d++) {
    pthread_mutex_init(&devices[d].lock, NULL);
    pthread_cond_init(&devices[d].progress, NULL);
  }
  /* Every allocation needs a file descriptor, and 64 ranks in a process make many. */
  struct rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
}

const struct settings *cpu_settings(void)
{
  pthread_once(&once, start);
  return &settings;
}

struct device *cpu_device(int number)
{
  cpu_settings();
  return &devices[number == -1 ? current_device : number];
}

int cpu_current_device(void)
{
  return current_device;
}

void cpu_out_of_memory(const char *what)
{
  static pthread_mutex_t once_only = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&once_only); /* never unlocked: other threads may fail as well */
  fprintf(stderr,
          "CPU stand-in: the host has no memory for %s; use fewer ranks, smaller sizes, or a "
          "higher limit (ulimit -v, ulimit -n)\n",
          what);
  _exit(3); /* EXIT_FAILED_CALL, see launcher.h */
}

void *cpu_allocate(size_t bytes)
{
  bytes += 64 - bytes % 64;
  void *memory = aligned_alloc(64, bytes);
  if (memory == NULL) cpu_out_of_memory("internal lists");
  return memset(memory, 0, bytes);
}

/* ---- errors -------------------------------------------------------------------------------- */

static const struct {
  cudaError_t error;
  const char *text;
} errors[] = {
    {cudaSuccess, "no error"},
    {cudaErrorInvalidValue, "invalid argument"},
    {cudaErrorMemoryAllocation, "out of memory"},
    {cudaErrorNoDevice, "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "invalid resource handle"},
    {cudaErrorNotReady, "device not ready"},
    {cudaErrorLaunchFailure, "unspecified launch failure"},
    {cudaErrorNotPermitted, "operation not permitted"},
    {cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"},
};

cudaError_t cpu_error(cudaError_t error)
{
  if (error != cudaSuccess) {
    last_error = error;
    cpu_mistake(cpu_error_string(error));
  }
  return error;
}

static pthread_mutex_t unread_lock = PTHREAD_MUTEX_INITIALIZER;
static char unread[SENTENCE];

void cpu_mistake(const char *sentence)
{
  pthread_mutex_lock(&unread_lock);
  snprintf(unread, sizeof(unread), "%s", sentence);
  pthread_mutex_unlock(&unread_lock);
}

/* Programs that check no call end as if all were well. */
__attribute__((destructor)) static void say_unread(void)
{
  if (unread[0] != '\0')
    fprintf(stderr, "CPU stand-in: an error that the program has not looked at: %s\n", unread);
}

cudaError_t cpu_error_because(cudaError_t error, const char *format, ...)
{
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(reason.sentence, sizeof(reason.sentence), format, arguments);
  va_end(arguments);
  reason.error = error;
  return error;
}

const char *cpu_error_string(cudaError_t error)
{
  if (error == reason.error && error != cudaSuccess) return reason.sentence;
  for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
    if (errors[i].error == error) return errors[i].text;
  return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error)
{
  cpu_mistake("");
  return cpu_error_string(error);
}

cudaError_t cudaPeekAtLastError(void)
{
  cpu_mistake("");
  return last_error;
}

cudaError_t cudaGetLastError(void)
{
  cudaError_t error = cudaPeekAtLastError();
  last_error = cudaSuccess;
  return error;
}

/* ---- properties of a device ---------------------------------------------------------------- */

cudaError_t cpu_device_check(int device)
{
  const int all = cpu_settings()->devices;
  if (all == 0) return cpu_error(cudaErrorNoDevice);
  return device >= 0 && device < all ? cudaSuccess : cpu_error(cudaErrorInvalidDevice);
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *) __attribute__((alias("cudaRuntimeGetVersion")));

cudaError_t cudaGetDeviceCount(int *count)
{
  *count = cpu_settings()->devices;
  return *count > 0 ? cudaSuccess : cpu_error(cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device)
{
  cudaError_t error = cpu_device_check(device);
  if (error == cudaSuccess) current_device = device;
  return error;
}

cudaError_t cudaGetDevice(int *device)
{
  *device = current_device;
  return cpu_device_check(current_device);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
  cudaError_t error = cpu_device_check(device);
  if (error != cudaSuccess) return error;
  *properties =
      (struct cudaDeviceProp){.name = "CPU stand-in", .totalGlobalMem = cpu_settings()->memory};
  snprintf(properties->uuid.bytes, sizeof properties->uuid.bytes, "CPU %d",
           cpu_settings()->pci_bus + device);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
  static const int values[] = {[cudaDevAttrMultiProcessorCount] = 4,
                               [cudaDevAttrComputeCapabilityMajor] = 8,
                               [cudaDevAttrL2CacheSize] = 1 << 20,
                               [cudaDevAttrMaxSharedMemoryPerMultiprocessor] = 64 << 10};
  *value = (size_t)attribute < sizeof(values) / sizeof(values[0]) ? values[attribute] : 0;
  return cpu_device_check(device);
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int device)
{
  cudaError_t error = cpu_device_check(device);
  if (error != cudaSuccess) return error;
  snprintf(text, (size_t)length, "0000:%02X:00.0", (unsigned)(cpu_settings()->pci_bus + device));
  return cudaSuccess;
}

cudaError_t cpu_device_wait(struct device *device)
{
  cudaError_t error = cudaSuccess;
  pthread_mutex_lock(&device->lock);
  struct CUstream_st *stream = device->streams;
  pthread_mutex_unlock(&device->lock);
  for (; stream != NULL; stream = stream->next) {
    const cudaError_t waited = cpu_stream_wait(stream);
    if (waited != cudaSuccess) error = waited;
  }
  return error;
}

cudaError_t cudaDeviceSynchronize(void)
{
  return cpu_error(cpu_device_wait(cpu_device(-1)));
}
