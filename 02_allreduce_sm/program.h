/* SPDX-License-Identifier: Apache-2.0 */
/* What main.c and bench.c share: the program's own options, what it
 * says of the windows, and the AllReduces of simple/ and lib/. */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <stdbool.h>

#include "bench_allreduce.h"

/* whose AllReduce: NCCL's, those of simple/, that of lib/ */
enum method { METHOD_NCCL, METHOD_BARRIER, METHOD_LINES, METHOD_DIRECT, METHODS };

extern bool program_require_symmetric;             /* --require-symmetric */
extern int program_method;                         /* --method */
extern const struct option_spec program_options[]; /* for --help and the command line */

/* Says on stderr whether NCCL has symmetric kernels for this window. Without them the AllReduce
 * runs as on any memory; with --require-symmetric the job ends with EXIT_CANNOT_RUN unless they are
 * certain. Collective. */
void program_check_symmetric(const struct rank *me, ncclComm_t comm, ncclDataType_t type,
                             ncclWindow_t window);

/* Of the types that 02 has, NCCL has symmetric kernels for sums of these; others run as on any
 * memory. */
bool program_has_symmetric_kernel(ncclDataType_t type);

#endif
