# SPDX-License-Identifier: Apache-2.0
# The files of the library, for everything that is made of them. Each .c file may be compiled
# everywhere: without CPU_STANDIN, alltoallv_lsa_cpu.c is empty.
ALLTOALLV_SOURCES     := alltoallv.c alltoallv_plan.c alltoallv_sendrecv.c alltoallv_create.c
ALLTOALLV_SOURCES     += alltoallv_windows.c alltoallv_check.c alltoallv_errors.c
ALLTOALLV_GPU_SOURCES := alltoallv_lsa.cu alltoallv_lsa_flags.cu alltoallv_lsa_none.cu
ALLTOALLV_CPU_SOURCES := alltoallv_lsa_cpu.c
