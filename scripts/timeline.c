/* SPDX-License-Identifier: Apache-2.0 */
/* Writes down when each kernel of a program began and ended. For scripts/timeline.sh, which names
 * this library in CUDA_INJECTION64_PATH: the driver loads it with the program and calls
 * InitializeInjection(). It uses CUPTI, which is part of CUDA (12.0 or later).
 *
 * At the end of the program a line per kernel goes to the file $TIMELINE_OUT.RANK:
 * begin and end in nanoseconds since the program's begin, device, stream, and the name as the
 * linker has it. */
#include <cupti.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { BUFFER_BYTES = 8 << 20 };
static FILE *out;
static uint64_t zero;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void CUPTIAPI give_buffer(uint8_t **buffer, size_t *bytes, size_t *records)
{
  *buffer = aligned_alloc(8, BUFFER_BYTES);
  *bytes = *buffer != NULL ? BUFFER_BYTES : 0;
  *records = 0; /* as many as there is room for */
}

static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t bytes,
                                 size_t valid)
{
  CUpti_Activity *record = NULL;
  (void)context, (void)stream, (void)bytes;
  pthread_mutex_lock(&lock);
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
    const CUpti_ActivityKernel9 *kernel = (const CUpti_ActivityKernel9 *)record;
    fprintf(out, "%llu %llu %u %u %s\n", (unsigned long long)(kernel->start - zero),
            (unsigned long long)(kernel->end - zero), kernel->deviceId, kernel->streamId,
            kernel->name);
  }
  pthread_mutex_unlock(&lock);
  free(buffer);
}

static void finish(void)
{
  cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  fclose(out);
}

int InitializeInjection(void);
int InitializeInjection(void)
{
  static const char *const ranks[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};
  const char *path = getenv("TIMELINE_OUT"), *rank = NULL;
  char name[4096];
  for (size_t i = 0; i < sizeof ranks / sizeof *ranks && rank == NULL; i++) rank = getenv(ranks[i]);
  snprintf(name, sizeof name, "%s.%s", path != NULL ? path : "timeline", rank != NULL ? rank : "0");
  out = fopen(name, "w");
  if (out == NULL) {
    perror(name);
    return 0;
  }
  if (cuptiGetTimestamp(&zero) != CUPTI_SUCCESS ||
      cuptiActivityRegisterCallbacks(give_buffer, take_buffer) != CUPTI_SUCCESS ||
      cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS)
    fprintf(stderr, "timeline: CUPTI does not record kernels here\n");
  atexit(finish);
  return 1;
}
