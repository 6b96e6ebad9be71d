# SPDX-License-Identifier: Apache-2.0
# The files of the AllReduce of one's own, for everything that is made of them. Each .c file may be
# compiled everywhere: without CPU_STANDIN, device_cpu.c is empty.
OWN_SOURCES     := allreduce.c create.c choose.c
OWN_GPU_SOURCES := device.cu possible.cu device_none.cu
OWN_CPU_SOURCES := device_cpu.c plain.c
