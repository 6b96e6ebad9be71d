/* SPDX-License-Identifier: Apache-2.0 */
/* Sparse gradient allreduce on the GPU with NCCL: every path of Ok-Topk (Li and Hoefler, PPoPP'22)
 * from the gradient in device memory to the averaged result in device memory.
 *
 *   sparse_allreduce_config_t config = sparse_allreduce_config(SPARSE_PRESET_VGG);
 *   config.algorithm = SPARSE_OKTOPK;
 *   config.density = 0.02;
 *   sparse_allreduce_create(comm, count, &config, &handle);       // collective
 *   for each step:
 *     sparse_allreduce_run(handle, gradient, &result, stream);    // collective
 *     ... result[i], i < count: the average over all ranks of what was selected ...
 *   sparse_allreduce_destroy(handle);                             // collective
 *
 * What a step does: acc = gradient + residual. Every rank offers its large entries of acc. These
 * are summed over the ranks. The result is the sum (for some algorithms only its large entries)
 * divided by the number of ranks. What a rank offered and the result contains leaves its residual.
 * Everything else stays there for later steps, so no gradient is ever lost. (Two exceptions: GTOPK
 * as published, see gtopk_exact_residual, and elements that are not finite.)
 *
 * Rules that hold for everything below.
 * - The gradient is `count` elements of config.gradient_type in device memory, the same count on
 *   all ranks, 1 <= count < 2^32 - 1. It is not changed. Result and residual are float. Sums are
 *   made before the division: they may overflow where the average would not.
 * - k = max(floor(count * density), 1) is the number of entries that a rank is to offer. A rank
 *   never offers more than capacity = min(count, max(2k, 4096)), k being that of config.density. If
 *   even a fully corrected threshold selects more than that, the rank offers its k largest entries.
 *   It does the same if the lowest Gaussian threshold selects nothing (GAUSSIANK, GAUSSIANKCONCAT),
 *   and if a threshold is 0 (a step without any gradient leaves it) and selects more than k.
 * - An exact threshold (GAUSSIANKSA; TOPKAOPT and OKTOPK in some steps) is the k-th magnitude, and
 *   what exceeds it is offered: k - 1 entries, fewer where several elements have that magnitude.
 *   Where nothing could ever be offered, the configuration is refused: k = 1 with an exact
 *   threshold in every step, and a Gaussian threshold for one element.
 * - "Large" means large in magnitude. Among equal magnitudes the lower index comes first.
 * - "Collective": every rank of the communicator makes the call, in the same order, by NCCL's
 *   rules for collectives. All other calls are local.
 * - Results are bit for bit the same on all ranks, in every run, for every throttle, balance and
 *   exchange, and every NCCL setting (SPARSE_DENSE sums in NCCL's order).
 * - Several handles (one per fused tensor) may be used side by side. Their steps must come in the
 *   same order on all ranks, on one stream or ordered by events.
 * - In all calls for a handle, the current device must be the one on which it was made. Calls that
 *   wait for the last step wait for all work on the device.
 * - Results of type ncclResult_t mean what NCCL's documentation says; sparse_allreduce_last_error()
 *   has the sentence, with NCCL's own reason where NCCL has failed. An error that only one rank
 *   gets leaves the others waiting, as in NCCL. Every function returns ncclInvalidArgument for NULL
 *   where that is not allowed, ncclUnhandledCudaError and ncclSystemError where CUDA or an
 *   allocation fails.
 * - Once a rank was late, or counts were impossible, the handle cannot be used any more: every call
 *   for it but destroy returns that error, those that do not wait as soon as another has found it.
 * - What waits without end for a rank that does not come: calls of NCCL, which have no timeout.
 *   These are create and destroy, all steps with the mode NCCL, and in the other modes steps of
 *   DENSE and GTOPK, warm-up steps, and steps of OKTOPK with new regions.
 * - Kernels of the modes ONESIDED and DEVICE_COUNTS wait for other ranks, and some for all of
 *   their own blocks: a launch has as many as the whole GPU can run at once. So no other kernel
 *   that waits for peers may run beside them, and their stream must have the whole GPU, no part
 *   of it (green contexts, MPS with fewer multiprocessors).
 * - Before memory is freed no barrier is needed. destroy waits until no rank uses this rank's
 *   lists. Gradients and vectors of the caller are used by this rank alone: they may be freed
 *   when the stream is past the step. Several GPUs in one process need more: freeing memory
 *   (destroy does, too) may wait for all GPUs, and a collective on one of them for the rank that
 *   frees. So no rank frees before all have waited for their streams, and none starts other NCCL
 *   work before all have freed.
 * - Nothing here prints or exits. */
#ifndef SPARSE_ALLREDUCE_H
#define SPARSE_ALLREDUCE_H

#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime.h>
#include <nccl.h>

#define NCCL_EXAMPLES_VERSION 20000 /* 2.0.0; CHANGELOG.md says what changed */

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sparse_allreduce_handle *sparse_allreduce_t;

#define SPARSE_MAX_RANKS 256   /* the modes ONESIDED and DEVICE_COUNTS: 72, as in alltoallv.h */
#define SPARSE_MAX_TIMEOUT 1e9 /* seconds */
#define SPARSE_DEFAULT_TIMEOUT 60.0

/* Algorithms: what a rank offers, which ranks add, and how all ranks get the sums. */
typedef enum {
  SPARSE_DENSE = 0,       /* ncclAllReduce of everything; the residual is not used */
  SPARSE_TOPKA,           /* exact top-k; allgather, and every rank adds */
  SPARSE_TOPKA2,          /* as TOPKA, but only the k largest sums are kept */
  SPARSE_TOPKAOPT,        /* as TOPKA, with a threshold that is exact only in some steps */
  SPARSE_GTOPK,           /* exact top-k, merged along a binary tree to k entries, broadcast */
  SPARSE_OKTOPK,          /* threshold, balanced regions, sum by owner, global threshold */
  SPARSE_TOPKSA,          /* exact top-k, equal regions, sum by owner, allgather or dense */
  SPARSE_GAUSSIANK,       /* threshold from mean and deviation; allgather, and every rank adds */
  SPARSE_GAUSSIANKCONCAT, /* the same (published: indices and values in one message, not in two) */
  SPARSE_GAUSSIANKSA,     /* exact threshold, equal regions, serial rotation, allgather */
  SPARSE_ALGORITHMS,      /* how many there are */
} sparse_allreduce_algorithm_t;

/* The three training jobs of the paper, each with constants of its own. */
typedef enum { SPARSE_PRESET_VGG = 0, SPARSE_PRESET_LSTM, SPARSE_PRESET_BERT } sparse_preset_t;

/* What to do with NaN and infinity in a gradient. Dense steps always hand them to NCCL. */
typedef enum {
  SPARSE_NONFINITE_ERROR = 0, /* as DROP, and sparse_allreduce_get_async_error says where */
  SPARSE_NONFINITE_DROP,      /* such an element counts as 0: acc = residual */
} sparse_nonfinite_t;

/* How entries move between ranks. */
typedef enum {
  /* Where all ranks share symmetric memory over NVLink, without host synchronization: modes
   * DEVICE_COUNTS and, for OKTOPK, ONESIDED. Else, as over PCIe, and for DENSE and GTOPK: SENDRECV.
   * sparse_allreduce_mode() says which. */
  SPARSE_EXCHANGE_AUTO = 0,
  SPARSE_EXCHANGE_SENDRECV, /* ncclSend/ncclRecv; where counts vary, the host waits for them */
} sparse_exchange_t;

/* How a handle actually moves entries. */
typedef enum {
  SPARSE_MODE_NCCL = 0,      /* calls of NCCL alone: collectives, ncclSend/ncclRecv */
  SPARSE_MODE_DEVICE_COUNTS, /* the AlltoAllV of example 03, which reads counts on the device */
  SPARSE_MODE_ONESIDED, /* OKTOPK, a process for each rank: they use each other's lists directly */
} sparse_mode_t;

/* What a step makes of the sums. It need not be the same on all ranks. */
typedef enum {
  SPARSE_RESULT_DENSE = 0, /* a vector of `count` averages, most of them 0 */
  SPARSE_RESULT_ENTRIES,   /* entries only, for updates in place: see sparse_allreduce_add. Dense
                              steps and steps of TOPKSA that fall back leave a dense vector */
} sparse_result_t;

/* Begin with sparse_allreduce_config(). All ranks must pass the same, except for `result`. */
typedef struct {
  size_t size; /* of this struct in the header that made it: leave it as it is */
  sparse_allreduce_algorithm_t algorithm;
  sparse_preset_t preset;       /* the constants of the paper: which steps are exact (every 32nd, of
                                   BERT every 128th), how thresholds follow what they select */
  double density;               /* share of the elements that a rank offers, 1e-300 to 1 */
  long warmup_steps;            /* first steps that are dense and leave the residual alone */
  long throttle;                /* peers that a rank exchanges with at a time, in the split, >= 1 */
  ncclDataType_t gradient_type; /* ncclFloat, ncclHalf or ncclBfloat16 */
  int gtopk_exact_residual;     /* GTOPK: 1 keeps the mass that the published algorithm loses */
  int balance; /* OKTOPK: 1 evens out what the owners of regions have before the allgather */
  sparse_nonfinite_t nonfinite;
  sparse_exchange_t exchange;
  sparse_result_t result;
  double timeout_seconds; /* a step gives up when a peer is this late; 0: the default, < 0: never.
                             NCCL's own calls wait forever, see above */
} sparse_allreduce_config_t;

/* Sets the preset (Ok-Topk's VGG/, LSTM/ or BERT/), OKTOPK, density 0.02 (BERT: 0.01), balance
 * 0 (BERT: 1), no warm-up, throttle 4 and the default timeout. `size` is that of your
 * header: a library of another version refuses the configuration. */
void sparse_allreduce_config_init(sparse_allreduce_config_t *config, size_t size,
                                  sparse_preset_t preset);
static inline sparse_allreduce_config_t sparse_allreduce_config(sparse_preset_t preset)
{
  sparse_allreduce_config_t config;
  sparse_allreduce_config_init(&config, sizeof(config), preset);
  return config;
}

/* k and capacity for gradients of `count` elements. Either pointer may be NULL. */
void sparse_allreduce_sizes(size_t count, double density, size_t *k, size_t *capacity);

/* The name of an algorithm as the program spells it, "oktopk"; NULL if there is none. */
const char *sparse_allreduce_name(sparse_allreduce_algorithm_t algorithm);

/* Returns ncclInvalidArgument if sparse_allreduce_create would refuse this configuration for
 * gradients of `count` elements on this number of ranks. */
ncclResult_t sparse_allreduce_check(const sparse_allreduce_config_t *config, size_t count,
                                    int ranks);

/* Collective. Makes a handle for gradients of `count` elements on the current device, which must be
 * the communicator's, and allocates all its memory: residual and dense result (4 bytes per element
 * each; no dense result for SPARSE_RESULT_ENTRIES, unless steps can be dense: DENSE, TOPKSA,
 * warm-up steps), a bit per element for what is in the result, 24 bytes x ranks x capacity for
 * entries, and less than 64 MiB more; in the modes ONESIDED and DEVICE_COUNTS also what
 * alltoallv.h says of a handle. The communicator must be a blocking one, perhaps from
 * ncclCommSplit. It stays the caller's and must outlive the handle. Waits for the device; steps of
 * other handles must be over.
 *   ncclInvalidArgument  the configuration or the count is wrong, or differs between ranks, or the
 *                        configuration is of another version of this header
 *   ncclRemoteError      another rank failed; that rank has the reason */
ncclResult_t sparse_allreduce_create(ncclComm_t comm, size_t count,
                                     const sparse_allreduce_config_t *config,
                                     sparse_allreduce_t *handle);

/* How the steps of a handle move entries, the same on all ranks. *reason says why AUTO chose
 * send/recv, or is "". The string lives as long as the handle. Either pointer may be NULL. */
ncclResult_t sparse_allreduce_mode(sparse_allreduce_t handle, sparse_mode_t *mode,
                                   const char **reason);

/* Collective. Waits for the last step and frees the handle, its result and its residual; see above
 * for several GPUs in one process. */
ncclResult_t sparse_allreduce_destroy(sparse_allreduce_t handle);

/* Collective, without communication: all ranks call it between the same two steps, with the same
 * density, at most that of the configuration. Later steps have its k, the next one is exact in all
 * that the algorithm finds now and then. Waits for the last step; until the next one there is no
 * result, and statistics mean nothing. Graphs captured before do not fit any more.
 *   ncclInvalidArgument  the density is too high, or sparse_allreduce_check refuses it */
ncclResult_t sparse_allreduce_set_density(sparse_allreduce_t handle, double density);

/* ---- a step ---------------------------------------------------------------------------------- */

/* Collective. One step on `stream`. `gradient` has `count` elements in device memory. It must not
 * change before the stream is past the step. *result (may be NULL) becomes the dense result,
 * `count` floats in device memory, valid until the next step on this handle; it belongs to the
 * handle and must not be written. The address is the same in all steps. With SPARSE_RESULT_ENTRIES
 * *result becomes NULL, except in dense steps and where TOPKSA falls back.
 *
 * Dense steps, TOPKA, TOPKA2 and GTOPK only enqueue their work. With the modes ONESIDED and
 * DEVICE_COUNTS, so do all others except TOPKSA. In every other case the host waits for counts
 * within the call. Steps of one handle must not overlap: use one stream, or order them by events.
 * In these two modes no other NCCL work of these GPUs may run during a step, whose kernels fill the
 * GPU while they wait for other ranks. The stream must exist until the next step that is not a
 * graph, or until the handle is destroyed.
 *
 * gradient == NULL means that the caller has already added the gradient to the residual, see
 * sparse_allreduce_residual. Then the policy for values that are not finite does not apply. Dense
 * steps refuse it (ncclInvalidArgument). */
ncclResult_t sparse_allreduce_run(sparse_allreduce_t handle, const void *gradient,
                                  const float **result, cudaStream_t stream);

/* CUDA graphs. A step in which the host does not wait (see above) may be captured:
 * sparse_allreduce_run() on a capturing stream puts the step that comes next into the graph and
 * does not count it. The schedule has a few kinds of steps. A graph can be launched whenever a step
 * of its kind is next. Use one process per GPU (see alltoallv.h).
 *
 *   for each step:
 *     sparse_allreduce_kind(handle, &kind);                 // of the next step: 0 ... 15
 *     if (graph[kind] == NULL) graph[kind] = ... capture sparse_allreduce_run(handle, ...) ...
 *     cudaGraphLaunch(graph[kind], stream);
 *     sparse_allreduce_replayed(handle);                    // counts the step: only after a launch
 *
 * A graph keeps the gradient's address. The gradient itself may change.
 *   ncclInvalidUsage (from run)  a step that cannot be captured */
#define SPARSE_KINDS 16
ncclResult_t sparse_allreduce_kind(sparse_allreduce_t handle, int *kind);
ncclResult_t sparse_allreduce_replayed(sparse_allreduce_t handle);

/* One entry of a sparse vector. */
struct sparse_pair {
  uint32_t index;
  float value;
};

/* The entries of the last result before the division by the number of ranks: pairs[0 .. *count),
 * ascending. They and *count are in device memory, valid until the next step. Both are NULL before
 * the first step, after a dense step and where TOPKSA fell back. Either pointer may be NULL. */
ncclResult_t sparse_allreduce_sparse_result(sparse_allreduce_t handle,
                                            const struct sparse_pair **pairs,
                                            const uint64_t **count);

/* Adds the result of the last step to a vector of the caller, for example weights: `count` floats
 * in device memory.
 *
 *   vector[i] = fmaf(scale, result[i], vector[i])       for all i that have an entry in the result
 *
 * bit for bit, for either config.result; result[i] is the average, sum / ranks rounded to float.
 * All other elements are neither read nor written. After a dense step, or where TOPKSA fell back,
 * all i < count are added. The call only enqueues on `stream`, which is that of the step or ordered
 * after it. The next step must come after this call.
 *
 * CUDA graphs. Captured after a step, in the same graph, it adds that step's result. A graph of its
 * own fits only steps of the same kind, dense or sparse, as the last one that was run or captured.
 * A graph keeps scale and address. Outside a graph it comes after sparse_allreduce_replayed.
 *   ncclInvalidUsage  no step has run yet */
ncclResult_t sparse_allreduce_add(sparse_allreduce_t handle, float scale, float *vector,
                                  cudaStream_t stream);

/* The residual of this rank as the last step left it, `count` floats in device memory, zero at
 * first; NULL for SPARSE_DENSE. Waits for that step. The caller may read and write it until the
 * next one, for which the gradient may be added to it (gradient == NULL). Call this again before
 * each use: entries that a step sends leave the residual later, in the next step or here. */
ncclResult_t sparse_allreduce_residual(sparse_allreduce_t handle, float **residual);

/* What went wrong on the device; sparse_allreduce_last_error() has the sentence. Waits for the last
 * step.
 *   ncclSuccess          nothing
 *   ncclInvalidArgument  policy SPARSE_NONFINITE_ERROR: a gradient of the last step was not finite.
 *                        Every rank gets this error, and the sentence is the same on all. It names
 *                        the first such rank and its first such element. The next step clears it
 *   ncclRemoteError      a peer did not answer in time; the handle cannot be used any more
 *   ncclInternalError    the AlltoAllV of example 03 got impossible counts; the same holds */
ncclResult_t sparse_allreduce_get_async_error(sparse_allreduce_t handle, ncclResult_t *result);

/* ---- what happened --------------------------------------------------------------------------- */

/* About the last step. A word has 32 bits, an entry has two words. */
typedef struct {
  uint64_t step;             /* number of the step, from 0, warm-up steps included */
  uint64_t k, capacity;      /* see above */
  uint64_t local;            /* entries that this rank offered */
  uint64_t global;           /* entries of the result */
  uint64_t words_sent;       /* by this rank to others, as the algorithm defines it: balancing
                                included, the same for every exchange */
  double local_threshold;    /* for the next step (TOPKAOPT, OKTOPK), or of this one (GAUSSIAN*) */
  double global_threshold;   /* OKTOPK */
  double gaussian_threshold; /* GAUSSIAN*: mean + z * deviation, before corrections */
  int exact_local, exact_global, repartitioned, dense; /* kind of the step */
  int overflowed; /* this rank offered its k largest instead of what a threshold selects */
  int fell_back;  /* TOPKSA gathered densely */
  const uint64_t *boundaries; /* ranks + 1 numbers: where each rank's region begins, and count;
                                 until the next call for this handle */
} sparse_allreduce_statistics_t;

/* Waits for the last step. */
ncclResult_t sparse_allreduce_statistics(sparse_allreduce_t handle,
                                         sparse_allreduce_statistics_t *statistics);

/* ---- checkpoints ----------------------------------------------------------------------------- */

/* Bytes that sparse_allreduce_save writes, 0 for NULL. */
size_t sparse_allreduce_state_bytes(sparse_allreduce_t handle);

/* Copies all that one step hands to the next (residual, thresholds, regions, step number) into host
 * memory, or back into a handle with the same count, configuration, rank and number of ranks. A
 * density that was set is part of the state. In the configuration, throttle, balance, exchange,
 * result and timeout_seconds may differ. All ranks must load states of the same step. Otherwise
 * they come to different exchanges, and the next step waits forever. Steps after a load give the
 * same bits as steps after the save. A state has a checksum. Only this version of the library can
 * load it. Both functions wait for the last step. Between a load and the next step there is no
 * result and no error, and statistics mean nothing.
 *   ncclInvalidArgument  load: not a state of such a handle, or damaged; nothing was changed */
ncclResult_t sparse_allreduce_save(sparse_allreduce_t handle, void *state);
ncclResult_t sparse_allreduce_load(sparse_allreduce_t handle, const void *state);

/* NCCL_VERSION_CODE of the nccl.h that the library was compiled with. This is for programs that
 * load the library and bring their own NCCL. The mode ONESIDED needs the same release. From
 * headers of 2.29 on, it takes later ones, too. */
int sparse_allreduce_nccl_version(void);

/* The sentence for the last error that this thread got from a function above; "" if none. */
const char *sparse_allreduce_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
