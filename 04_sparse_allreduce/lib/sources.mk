# SPDX-License-Identifier: Apache-2.0
# The files of the reusable parts, for everything that is made of them.
SPARSE_SOURCES     := sparse_allreduce.c sparse_create.c sparse_config.c sparse_statistics.c
SPARSE_SOURCES     += sparse_checkpoint.c select.c exchange.c
SPARSE_SOURCES     += path_dense.c path_topka.c path_topkaopt.c path_gtopk.c path_oktopk.c
SPARSE_SOURCES     += path_topksa.c path_gaussiank.c path_gaussiansa.c
SPARSE_GPU_SOURCES := ops_local_pass.cu ops_select.cu ops_reduce.cu ops_merge.cu \
                      ops_regions.cu ops_apply.cu ops_residual.cu ops_lists.cu
SPARSE_CPU_SOURCES := ops_cpu.c
REFERENCE_SOURCES  := parallel.c reference.c reference_steps.c reference_select.c reference_exchange.c
REFERENCE_SOURCES  += invariants.c invariants_elements.c
