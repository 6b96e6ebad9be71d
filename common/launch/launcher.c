/* SPDX-License-Identifier: Apache-2.0 */
/* What both launchers share: from main() to the ranks, output, failure. */
#include "launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "launcher_backend.h"

#define SUITE_VERSION "2.0.0" /* the same in the headers of lib/, see CHANGELOG.md */

/* Written before the ranks start, read by all of them. */
static const struct program *program;
static struct options options;

static _Thread_local int current_rank = -1; /* -1: not a rank yet */

/* Output must not be lost silently: a full disk is a failure. */
static void flush_stdout(void)
{
  if (fflush(stdout) == 0 && !ferror(stdout)) return;
  launcher_error("cannot write to standard output: %s", strerror(errno));
  launcher_abort(EXIT_FAILED_CALL);
}

/* ---- from main() to the ranks ------------------------------------------------------------- */

static int rank_main(const struct rank *me)
{
  char error[LAUNCHER_TEXT] = "";
  current_rank = me->rank;
  launcher_step("files");
  options_check_files(&options, program->options, me->rank, me->nranks, error, sizeof error);
  int code = launcher_refuse(me, error);
  launcher_step("start");
  const bool harness = program->harness && options.harness;
  if (code == EXIT_VERIFIED) code = (harness ? program->harness : program->run)(me, &options);
  launcher_step("waiting for the other ranks to finish");
  return launcher_agree(me, code);
}

static void print_versions(const char *launcher)
{
  int nccl = 0, runtime = 0, driver = 0;
  NCCLCHECK(ncclGetVersion(&nccl));
  CUDACHECK(cudaRuntimeGetVersion(&runtime));
  CUDACHECK(cudaDriverGetVersion(&driver)); /* 0 without a driver */
  printf("%s %s\n", program->name, SUITE_VERSION);
  printf("NCCL header %d.%d.%d, runtime %d.%d.%d\n", NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH,
         nccl / 10000, nccl / 100 % 100, nccl % 100);
  printf("CUDA header %d.%d, runtime %d.%d, driver %d.%d\n", CUDART_VERSION / 1000,
         CUDART_VERSION / 10 % 100, runtime / 1000, runtime / 10 % 100, driver / 1000,
         driver / 10 % 100);
#ifdef CPU_STANDIN
  printf("CUDA and NCCL: the CPU stand-in, no GPU is used\n");
#endif
  printf("launcher: %s\n", launcher);
}

/* A runtime older than the headers may lack calls or read our structs wrongly. */
static int check_nccl_runtime(const struct rank *me)
{
  char error[LAUNCHER_TEXT] = "";
  int runtime = 0;
  NCCLCHECK(ncclGetVersion(&runtime));
  if (runtime < NCCL_VERSION_CODE)
    snprintf(error, sizeof error,
             "the NCCL runtime is version %d.%d.%d, older than the headers this program was built "
             "with (%d.%d.%d), on rank %d; allowed: the same version or a newer one",
             runtime / 10000, runtime / 100 % 100, runtime % 100, NCCL_MAJOR, NCCL_MINOR,
             NCCL_PATCH, me->rank);
  return launcher_refuse(me, error) == EXIT_VERIFIED ? EXIT_VERIFIED : EXIT_CANNOT_RUN;
}

/* All ranks must have been given the same options, letter for letter. */
static int check_same_options(const struct rank *me, const char mine[LAUNCHER_TEXT])
{
  char first[LAUNCHER_TEXT], error[96] = "";
  memcpy(first, mine, sizeof first);
  launcher_broadcast(me, first, sizeof first, 0);
  if (strcmp(mine, first) != 0)
    snprintf(error, sizeof error, "rank %d has other options than rank 0; give all ranks the same",
             me->rank);
  return launcher_refuse(me, error);
}

int launcher_main(int argc, char **argv, const struct program *the_program)
{
  char error[LAUNCHER_TEXT] = "", typed[LAUNCHER_TEXT] = "";
  program = the_program;
  /* where a standard stream is closed, the next file would be opened in its place, and get what is
   * printed; this one fails with a line */
  while ((unsigned)open("/dev/null", O_RDONLY) <= STDERR_FILENO) continue;
  /* writing to a pipe without a reader, or beyond a limit (ulimit -f), then fails, with a line */
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
  for (int i = 1; i < argc; i++) { /* before getopt sorts them */
    const size_t length = strlen(typed);
    snprintf(typed + length, sizeof typed - length, "%s\n", argv[i]);
  }
  struct rank process = {.nranks = 1, .device = -1}, *me = &process;
  const char *launcher = backend_start(me, &argc, &argv);

  options_parse(&options, program->options, program->types, argc, argv, error, sizeof error);
  watchdog_start(options.timeout);
  watchdog_watch(me->rank, 1, "options");
  int code = launcher_refuse(me, error);
  if (code == EXIT_VERIFIED) code = check_same_options(me, typed);
  if (code == EXIT_VERIFIED && (options.help || options.version)) {
    if (me->rank == 0 && options.help)
      options_help(program->name, program->summary, program->options, program->types,
                   program->harness != NULL);
    else if (me->rank == 0)
      print_versions(launcher);
    flush_stdout();
  } else if (code == EXIT_VERIFIED) {
    code = check_nccl_runtime(me);
    if (code == EXIT_VERIFIED) code = backend_run(me, rank_main);
  }
  watchdog_watch(me->rank, 1, "end of the job");
  return backend_finish(code);
}

int launcher_visible_gpus(char *why, size_t size)
{
  int devices = 0;
  cudaError_t result = cudaGetDeviceCount(&devices);
  if (result == cudaSuccess && devices > 0) return devices;
  snprintf(why, size, "no GPU: %s; `make CPU=1` builds programs that need none",
           result == cudaSuccess ? "CUDA finds no device" : cudaGetErrorString(result));
  return 0;
}

/* ---- agreement ---------------------------------------------------------------------------- */

int launcher_agree(const struct rank *me, int code)
{
  static const int order[] = {EXIT_FAILED_CALL, EXIT_TIMEOUT,    EXIT_WRONG_DATA,
                              EXIT_USAGE,       EXIT_CANNOT_RUN, EXIT_VERIFIED};
  int codes[me->nranks];
  launcher_allgather(me, &code, codes, sizeof code);
  for (size_t i = 0; i < sizeof order / sizeof *order; i++)
    for (int rank = 0; rank < me->nranks; rank++)
      if (codes[rank] == order[i]) return order[i];
  return EXIT_FAILED_CALL; /* a code outside the list is a mistake of the program */
}

double launcher_max(const struct rank *me, double value)
{
  double values[me->nranks], max = value;
  launcher_allgather(me, &value, values, sizeof value);
  for (int rank = 0; rank < me->nranks; rank++)
    if (values[rank] > max) max = values[rank];
  return max;
}

double launcher_microseconds(void)
{
#ifdef CPU_STANDIN
  return (double)NAN;
#endif
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

typedef char rank_text[LAUNCHER_TEXT];

/* One text of every rank; to be freed. */
static rank_text *gather_texts(const struct rank *me, const char *text)
{
  rank_text mine = "", *all = launcher_allocate((size_t)me->nranks * sizeof mine);
  snprintf(mine, sizeof mine, "%s", text);
  launcher_allgather(me, mine, all, sizeof mine);
  return all;
}

int launcher_refuse(const struct rank *me, const char *error)
{
  rank_text *errors = gather_texts(me, error);
  int speaker = 0;
  while (speaker < me->nranks && !*errors[speaker]) speaker++;
  const bool refused = speaker < me->nranks;
  if (refused && me->rank == 0) {
    keep_one_line(errors[speaker]);
    fprintf(stderr, "%s: %s\n", program->name, errors[speaker]);
  }
  free(errors);
  return refused ? EXIT_USAGE : EXIT_VERIFIED;
}

bool launcher_has_memory(const struct rank *me, size_t bytes)
{
  size_t available = 0, total = 0;
  char error[160] = "";
  CUDACHECK(cudaMemGetInfo(&available, &total));
  available -= available < total / 64 ? available : total / 64; /* for NCCL */
  available /= (size_t)me->sharing + 1;
  if (bytes > available)
    snprintf(error, sizeof error,
             "rank %d needs %.1f MiB of device memory; allowed: up to %.1f MiB", me->rank,
             (double)bytes / (1 << 20), (double)available / (1 << 20));
  return launcher_refuse(me, error) == EXIT_VERIFIED;
}

/* ---- output ------------------------------------------------------------------------------- */

void launcher_print(const struct rank *me, const char *format, ...)
{
  va_list arguments;
  if (me->rank != 0) return;
  va_start(arguments, format);
  vprintf(format, arguments);
  va_end(arguments);
  flush_stdout();
  watchdog_said();
}

void launcher_print_ranks(const struct rank *me, const char *format, ...)
{
  rank_text text;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  rank_text *all = gather_texts(me, text);
  for (int rank = 0; rank < me->nranks; rank++) launcher_print(me, "%s", all[rank]);
  free(all);
}

/* One fprintf call per line, so that lines of several ranks do not mix. */
static void print_stderr(const char *prefix, const char *format, va_list arguments)
{
  char text[LAUNCHER_TEXT];
  vsnprintf(text, sizeof text, format, arguments);
  keep_one_line(text);
  fprintf(stderr, "%s%s\n", prefix, text);
}

void launcher_note(const struct rank *me, const char *format, ...)
{
  va_list arguments;
  if (me->rank != 0) return;
  va_start(arguments, format);
  print_stderr("note: ", format, arguments);
  va_end(arguments);
}

void launcher_error(const char *format, ...)
{
  char prefix[32] = "";
  va_list arguments;
  if (current_rank >= 0) snprintf(prefix, sizeof prefix, "[rank %d] ", current_rank);
  va_start(arguments, format);
  print_stderr(prefix, format, arguments);
  va_end(arguments);
}

/* ---- progress and failure ----------------------------------------------------------------- */

void launcher_step(const char *step)
{
  watchdog_progress(current_rank, step);
}

void *launcher_allocate(size_t bytes)
{
  void *memory = calloc(1, bytes);
  if (!memory) launcher_fail(__FILE__, __LINE__, "calloc", "out of memory", NULL);
  return memory;
}

void launcher_fail(const char *file, int line, const char *call, const char *reason,
                   const char *detail)
{
  const char *name = strrchr(file, '/');
  bool more = detail && *detail;
  launcher_error("%s:%d: %s: %s%s%s%s", name ? name + 1 : file, line, call, reason,
                 more ? " (" : "", more ? detail : "", more ? ")" : "");
  launcher_abort(EXIT_FAILED_CALL);
}

void launcher_abort(int code)
{
  fflush(stdout);
  fflush(stderr);
  backend_abort(code);
}
