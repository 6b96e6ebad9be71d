/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by main.c and bench.c: the program's options, and whether NCCL has symmetric kernels. */
#ifndef ALLREDUCE_PROGRAM_H
#define ALLREDUCE_PROGRAM_H

#include <stdbool.h>

#include "bench_allreduce.h"

/* which AllReduce: NCCL's, those of simple/, that of lib/ */
enum method { METHOD_NCCL, METHOD_BARRIER, METHOD_LINES, METHOD_DIRECT, METHODS };

extern bool program_require_symmetric;             /* --require-symmetric */
extern int program_method;                         /* --method */
extern const struct option_spec program_options[]; /* for --help and the command line */

/* Prints on stderr whether NCCL has symmetric kernels for this window. Without them the AllReduce
 * runs as on any memory. With --require-symmetric the job ends with EXIT_CANNOT_RUN unless they are
 * certain. Collective. */
void program_check_symmetric(const struct rank *me, ncclComm_t comm, ncclDataType_t type,
                             ncclWindow_t window);

/* Does NCCL have symmetric kernels for sums of this type? Other types run as on any memory. */
bool program_has_symmetric_kernel(ncclDataType_t type);

#endif
