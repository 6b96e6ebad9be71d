/* SPDX-License-Identifier: Apache-2.0 */
/* What main.c and bench.c share and the story need not show: the program's own options, what it
 * says of the windows, and the way to the AllReduce in own/. */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <stdbool.h>

#include <nccl.h>

#include "launcher.h"

enum { METHOD_NCCL, METHOD_OWN };

extern bool program_require_symmetric;             /* --require-symmetric */
extern int program_method;                         /* --method */
extern const struct option_spec program_options[]; /* for --help and the command line */

/* Says on stderr whether NCCL has symmetric kernels for this window. Without them the AllReduce
 * runs as on any memory; with --require-symmetric the job ends with EXIT_CANNOT_RUN unless they are
 * certain. Collective. */
void program_check_symmetric(const struct rank *me, ncclComm_t comm, ncclDataType_t type,
                             ncclWindow_t window);

/* ---- --method own: one at a time for each rank ----------------------------------------------- */

/* Gets own/ ready for these two windows, or, where that cannot be, says so in a note, and
 * program_own will do nothing. With --method nccl it does nothing either, but for --bench.
 * Collective. */
void program_own_begin(const struct rank *me, const struct options *opt, ncclComm_t comm,
                       void *sendbuff, ncclWindow_t send_window, void *recvbuff,
                       ncclWindow_t recv_window, size_t bytes);
void program_own_end(void);

/* The AllReduce of own/, finished when this returns; a rank that does not come ends the job. False:
 * it is not ready, so NCCL has to do it. Collective. */
bool program_own(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t type,
                 cudaStream_t stream);

/* The same in two parts: it is enqueued; and, when the stream has been waited for, checked. */
bool program_own_enqueue(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t type,
                         cudaStream_t stream);
void program_own_check(void);

#endif
