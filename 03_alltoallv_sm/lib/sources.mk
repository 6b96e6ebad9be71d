# SPDX-License-Identifier: Apache-2.0
# The files of the library, for everything that is made of them: with -I for this folder. Each .c file
# may be compiled everywhere: without CPU_STANDIN, alltoallv_lsa_cpu.c is empty.
ALLTOALLV_SOURCES     := alltoallv.c alltoallv_plan.c alltoallv_sendrecv.c alltoallv_create.c
ALLTOALLV_SOURCES     += alltoallv_windows.c alltoallv_check.c alltoallv_errors.c
ALLTOALLV_GPU_SOURCES := $(addprefix lsa/alltoallv_,lsa.cu lsa_flags.cu lsa_none.cu)
ALLTOALLV_CPU_SOURCES := lsa/alltoallv_lsa_cpu.c
