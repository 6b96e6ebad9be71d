/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of the stand-in. From the bottom up:
 *
 *   device.c       settings, devices, errors
 *   memory.c       regions: memory in files without a name, which other processes can open
 *   stream.c       a stream is a queue of operations and the thread that runs them
 *   event.c        an event is a place in a stream
 *   graph.c        a graph is a list of operations that were not queued but kept
 *   control.c      shared by the ranks: meetings, bells, failure
 *   comm.c         communicators: how ranks find each other
 *   registration.c which memory is registered, and which calls use it
 *   window.c       how a rank finds the memory of its peers
 *   device_comm.c  a communicator for kernels
 *   nvml.c         what programs load from NVML
 *   kernel.c       runs kernels, with fiber.c and races.c
 *   claims.c       do all ranks make the same call?
 *   reduce.c       arithmetic in every data type
 *   collectives.c  the collectives: copies from and to the mapped memory of peers
 *
 * A library that is loaded first may replace functions with the names of CUDA and NCCL, to inject
 * faults. So the stand-in never calls one of its own public functions. */
#ifndef COMMON_CPU_INTERNAL_H
#define COMMON_CPU_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "cpu_kernel.h"

#pragma GCC visibility push(hidden)

enum { MAX_DEVICES = 64, MAX_RANKS = 64, SENTENCE = 256 };

/* ---- device.c ------------------------------------------------------------------------------ */

struct settings {
  int devices;      /* CPU_STANDIN_DEVICES */
  size_t memory;    /* CPU_STANDIN_MEMORY: bytes per device */
  int pci_bus;      /* CPU_STANDIN_PCI_BUS: of device 0 */
  int nccl_version; /* CPU_STANDIN_NCCL_VERSION: for ncclGetVersion */
  int delay;        /* CPU_STANDIN_DELAY: milliseconds before communication begins */
  bool quiet;       /* CPU_STANDIN_QUIET */
  int lsa_ranks;    /* CPU_STANDIN_LSA_RANKS: so many share memory, as on several hosts */
  int pcie;         /* CPU_STANDIN_PCIE: a device that is not on NVLink, or -1 */
  long long races;  /* CPU_STANDIN_RACES: a seed, see races.c, or -1 */
};

struct device {
  pthread_mutex_t lock;    /* guards this struct and the queues of the device's streams */
  pthread_cond_t progress; /* a stream of this device has run an operation */
  size_t used;             /* bytes allocated */
  struct CUstream_st *default_stream;
  struct CUstream_st *streams; /* all of them */
};

const struct settings *cpu_settings(void);
/* Device `number`, or the calling thread's if it is -1. Is it there? */
struct device *cpu_device(int number);
cudaError_t cpu_device_check(int number);
int cpu_current_device(void);
cudaError_t cpu_device_wait(struct device *device); /* or what has failed in a stream */
/* Remembers `error` for cudaGetLastError and returns it. */
cudaError_t cpu_error(cudaError_t error);
/* Returns `error`, and makes cudaGetErrorString return this text on this thread. */
cudaError_t cpu_error_because(cudaError_t error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
const char *cpu_error_string(cudaError_t error);
/* Remembers an error of a call; "": the program has looked at it. What nobody has looked at is
 * printed at the end of the process. */
void cpu_mistake(const char *sentence);
/* Prints that the host has no memory, file or thread left. Ends the process with exit code 3. */
void cpu_out_of_memory(const char *what) __attribute__((noreturn));
/* Zeroed memory, never NULL: without memory for a few bytes it ends the process. */
void *cpu_allocate(size_t bytes);

/* ---- memory.c ------------------------------------------------------------------------------ */

/* HIDDEN: not for the program, or no longer. */
enum region_kind { REGION_DEVICE, REGION_HOST, REGION_WINDOW, REGION_HIDDEN };

/* A place in memory, for any process: an offset in the file that process `pid` has open as `fd`. */
struct place {
  uint64_t inode; /* 0: there is no such memory */
  pid_t pid;
  int fd;
  int device; /* on which it is allocated */
  size_t offset;
};

struct region {
  struct region *next;
  enum region_kind kind;
  char *base;
  size_t bytes;  /* as requested */
  size_t mapped; /* whole pages */
  struct place file;
  bool owned; /* this process has the file open for others */
  int references;
  char *windows; /* addresses of a communicator: see window.c */
  size_t windows_bytes;
  bool shareable; /* from ncclMemAlloc */
};

struct region *cpu_region_create(enum region_kind kind, int device, size_t bytes);
/* The region of the place's file; NULL on failure. A process has one region, at one address, per
 * file, because mutexes shared between processes and ThreadSanitizer need that. Or, if `at` is not
 * NULL, the window there: `bytes` bytes from the place on, at this address, which is reserved. */
struct region *cpu_region_open(const struct place *place, char *at, size_t bytes);
void cpu_region_release(struct region *region);
/* Reserves addresses, which nobody may use; anywhere if `at` is NULL. */
char *cpu_reserve(char *at, size_t bytes);
/* Does the pointer point to memory that ranks share in kernels? */
bool cpu_memory_is_window(const void *pointer);
/* For cudaMalloc and the like, and for ncclMemAlloc, whose memory is shareable. */
cudaError_t cpu_memory_allocate(enum region_kind kind, bool shareable, void **pointer,
                                size_t bytes);
cudaError_t cpu_memory_free(enum region_kind kind, void *pointer);
/* The number of bytes from `pointer` on that device code may use; 0: no such memory. Sets *place,
 * for other ranks, and *region, with a reference or NULL, if these pointers are not NULL. */
size_t cpu_memory_find(const void *pointer, struct place *place, struct region **region);

/* ---- window.c ------------------------------------------------------------------------------ */

/* ncclCommWindowRegister and ncclCommWindowDeregister. */
ncclResult_t cpu_window_register(ncclComm_t comm, void *buffer, size_t bytes, ncclWindow_t *window,
                                 int flags);
ncclResult_t cpu_window_deregister(ncclComm_t comm, ncclWindow_t window);

/* ---- stream.c ------------------------------------------------------------------------------ */

/* An operation: a function and its arguments. In a graph it runs many times. */
struct operation {
  struct operation *next;
  void (*run)(const void *args);
  void (*release)(const void *args); /* or NULL; called after the last run */
  /* or NULL; called before it is queued, for every run */
  void (*queued)(const void *args, struct CUstream_st *stream);
  _Alignas(64) char args[]; /* kernels have arguments that are aligned like this */
};

/* Never freed: events and communicators may use it after it has been destroyed. */
struct CUstream_st {
  struct CUstream_st *next; /* of the device */
  struct device *device;
  bool blocking; /* in order with the default stream */
  pthread_t thread;
  pthread_cond_t work;
  struct operation *first, *last;
  uint64_t queued, done; /* operations so far */
  bool stop;
  char failure[SENTENCE]; /* its first failure, for callers that wait for it; or "" */
  uint64_t capture;       /* the last capture that it took part in */
};

/* Makes an operation with a copy of the arguments. The queue owns it later. */
struct operation *cpu_operation(void (*run)(const void *args), void (*release)(const void *args),
                                const void *args, size_t bytes);
void cpu_operation_free(struct operation *operation);
/* The stream of a handle; 0 and cudaStreamLegacy are the default stream of `device` (-1: the
 * current one). */
struct CUstream_st *cpu_stream(cudaStream_t stream, int device);
/* Queues the operation, or puts it into the graph that the stream is captured into. As in CUDA, the
 * default stream and the blocking streams of its device wait for each other. */
void cpu_stream_queue(struct CUstream_st *stream, struct operation *operation);
cudaError_t cpu_stream_wait(struct CUstream_st *stream);
/* Three calls: return the number of operations queued so far; wait until the stream has run that
 * many; make another stream wait for that. */
uint64_t cpu_stream_queued(struct CUstream_st *stream);
/* Has the stream run that many? */
bool cpu_stream_reached(struct CUstream_st *stream, uint64_t number);
void cpu_stream_reach(struct CUstream_st *stream, uint64_t number);
void cpu_stream_after(struct CUstream_st *stream, struct CUstream_st *before, uint64_t number);
/* Called by an operation: its stream has failed. */
void cpu_worker_fail(const char *sentence);

/* ---- graph.c ------------------------------------------------------------------------------- */

/* The id of this thread's capture if the stream takes part in it, or 0. */
uint64_t cpu_capture_of(const struct CUstream_st *stream);
/* Puts the operation into the graph if the stream is being captured; else false. */
bool cpu_capture_operation(struct CUstream_st *stream, struct operation *operation);
/* Adds the stream to this thread's capture; false if that is not capture `id`. */
bool cpu_capture_join(struct CUstream_st *stream, uint64_t id);

/* ---- control.c ----------------------------------------------------------------------------- */

struct control;

/* Host threads of the ranks meet, and streams of the ranks meet, independently of each other. */
enum meeting_of { HOSTS, STREAMS, MEETINGS };
enum { MEETING_BYTES = 384 };

/* ncclSend writes this for the receiving rank, which then copies the data. */
struct letter {
  atomic_bool full; /* set by the sender, cleared by the receiver when it has its copy */
  ncclDataType_t type;
  size_t bytes;
  struct place from;
};

/* With a reference for the ranks that have yet to join. Where this process made it, rank 0 releases
 * that when all have joined. */
struct region *cpu_control_create(void);
/* Adds the rank to the control block; false if nranks differs or the rank has joined before. */
bool cpu_control_join(struct control *control, int rank, int nranks);
/* All ranks exchange `bytes` bytes; none returns before all have called. False if the communicator
 * failed. */
bool cpu_meet(ncclComm_t comm, enum meeting_of kind, const void *mine, void *all, size_t bytes);
struct letter *cpu_letter(struct control *control, int from, int to);
/* Marks the communicator as failed on all ranks and wakes them. The first message stays. */
void cpu_control_fail(struct control *control, ncclResult_t result, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* What calls on a communicator return that has failed, or ncclSuccess; and the message. */
ncclResult_t cpu_control_result(const struct control *control);
const char *cpu_control_failure(const struct control *control);
/* Blocks until ready(arg) is true or the communicator has failed. It sleeps, and calls ready again
 * whenever a rank calls cpu_notify for this rank; what that rank wrote before is visible then. */
void cpu_wait(ncclComm_t comm, bool (*ready)(const void *arg), const void *arg);
void cpu_notify(ncclComm_t comm, int peer);

/* ---- comm.c -------------------------------------------------------------------------------- */

/* The buffers of a call. */
enum which { SENDBUFF, RECVBUFF, BUFFERS };

struct ncclComm {
  atomic_int references;
  int rank, nranks, device;
  struct region *region;
  struct control *control; /* in region */

  struct ncclWindow_vidmem *windows;        /* that this rank has */
  struct CUstream_st *stream;               /* where the last operation was queued, or NULL */
  struct region *peers[MAX_RANKS][BUFFERS]; /* mapped memory of the peers; see collectives.c */
  bool finalized;
  atomic_bool aborted; /* by ncclCommAbort of this rank */
  atomic_flag noted;   /* the note on a useless registration is printed */
};

void cpu_comm_release(ncclComm_t comm);
/* ncclSuccess if comm can be used for another call. */
ncclResult_t cpu_comm_check(ncclComm_t comm);
/* Remembers the text for ncclGetLastError and returns the result. */
ncclResult_t cpu_nccl_error(ncclResult_t result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The text of ncclGetLastError. */
const char *cpu_nccl_sentence(void);

/* ---- collectives.c ------------------------------------------------------------------------- */

/* Runs a call that waits for other ranks: at once, or at the end of the group, where calls with
 * different `order` run at the same time. */
ncclResult_t cpu_group_start(void);
ncclResult_t cpu_group_end(void);
ncclResult_t cpu_group_run(const void *order, ncclResult_t (*run)(const void *args),
                           const void *args, size_t bytes);

/* ---- registration.c ------------------------------------------------------------------------ */

/* Why memory may not be freed: it is registered, or it is a window. */
enum hold { HELD_REGISTERED, HELD_WINDOW, HOLDS };

struct registration {
  struct registration *next;
  ncclComm_t comm; /* NULL: destroyed */
  const void *handle;
  enum hold kind;
  struct region *region;
  const char *start;
  size_t bytes;
  bool symmetric; /* all ranks pass the same offset in this window */
  int queued;     /* number of queued or running calls that use it */
};

/* Stores that [start, start + bytes) of `region` is registered; takes over the reference to it.
 * `handle` is the program's handle; NULL: the pointer that this function returns. */
struct registration *cpu_registration_add(ncclComm_t comm, enum hold kind, struct region *region,
                                          const void *start, size_t bytes, const void *handle);
/* Removes the registration with that handle. Errors name `call`. */
ncclResult_t cpu_registration_remove(const char *call, ncclComm_t comm, const void *handle);
/* Finds the registration of comm that contains the bytes; false if there is none. */
bool cpu_registration_find(ncclComm_t comm, const void *pointer, size_t bytes,
                           struct registration *found);
/* Why the memory that begins there may not be freed; HOLDS: it may. */
enum hold cpu_registration_of(const void *memory);
/* A queued call begins (1) or ends (-1) to use the bytes. */
void cpu_registration_use(ncclComm_t comm, const void *pointer, size_t bytes, int change);
/* Prints a note if NCCL could not use the registrations of a call's buffers. */
void cpu_registration_note(ncclComm_t comm, char *const *buffers, const size_t *bytes);
/* Ends all registrations of comm, which is being destroyed. */
void cpu_registrations_end(ncclComm_t comm);

/* ---- claims.c ------------------------------------------------------------------------------ */

/* The ranks that make a call must agree on these. */
enum aspect {
  CALL, /* which call it is; the others are compared if it is the same */
  COUNT,
  TYPE,
  OPERATION,
  ROOT,
  SENDBUFF_KIND, /* is it registered? */
  RECVBUFF_KIND,
  SENDBUFF_OFFSET, /* in a symmetric window */
  RECVBUFF_OFFSET,
  ASPECTS
};

/* A rank's call, for the other ranks. */
struct claim {
  char is[ASPECTS][32];         /* in words; "": of no importance on this rank */
  struct place places[BUFFERS]; /* a buffer that this rank does not have has no inode */
};

/* False if the ranks do not agree: then the communicator has failed, with the same message on all
 * ranks. */
bool cpu_claims_agree(ncclComm_t comm, const struct claim *claims);

/* ---- reduce.c ------------------------------------------------------------------------------ */

size_t cpu_type_size(ncclDataType_t type); /* 0: no such type */
const char *cpu_type_name(ncclDataType_t type);
/* out[i] = in[0][i] op in[1][i] op ... in[n - 1][i], in this order; out may be one of in. */
void cpu_reduce(void *out, const char *const *in, int n, size_t count, ncclDataType_t type,
                ncclRedOp_t op);

#pragma GCC visibility pop
#endif
