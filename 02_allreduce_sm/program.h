/* SPDX-License-Identifier: Apache-2.0 */
/* What main.c and bench.c share and the story need not show: the program's own options, and what it
 * says of the windows. */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <stdbool.h>

#include <nccl.h>

#include "launcher.h"

extern bool program_require_symmetric;             /* --require-symmetric */
extern const struct option_spec program_options[]; /* for --help and the command line */

/* Says on stderr whether NCCL has symmetric kernels for this window. Without them the AllReduce
 * runs as on any memory; with --require-symmetric the job ends with EXIT_CANNOT_RUN unless they are
 * certain. Collective. */
void program_check_symmetric(const struct rank *me, ncclComm_t comm, ncclWindow_t window);

#endif
