# SPDX-License-Identifier: Apache-2.0
# The files of the library, for everything that is made of them: with -I for this folder and for the
# AlltoAllV library of example 03. Each .c file may be compiled everywhere: without CPU_STANDIN,
# kernels/ops_*_cpu.c are empty.
SPARSE_SOURCES     := sparse_allreduce.c sparse_create.c sparse_config.c sparse_statistics.c
SPARSE_SOURCES     += sparse_checkpoint.c sparse_words.c sparse_result.c select.c exchange.c ops.c
SPARSE_SOURCES     += $(addprefix paths/,paths.c dense.c topka.c topkaopt.c gtopk.c oktopk.c topksa.c)
SPARSE_SOURCES     += $(addprefix paths/,gaussiank.c gaussiansa.c)
SPARSE_SOURCES     += onesided/oktopk_onesided.c
SPARSE_GPU_SOURCES := $(addprefix kernels/ops_,local_pass.cu select.cu reduce.cu merge.cu)
SPARSE_GPU_SOURCES += $(addprefix kernels/ops_,regions.cu apply.cu mark.cu add.cu)
SPARSE_GPU_SOURCES += $(addprefix kernels/ops_,residual.cu lists.cu)
# ops_mark.cu needs no twin; ops_notes_cpu.c is that of onesided/ops_notes.cuh.
SPARSE_CPU_SOURCES := $(patsubst %,kernels/ops_%_cpu.c,local_pass select reduce merge regions apply add)
SPARSE_CPU_SOURCES += $(patsubst %,kernels/ops_%_cpu.c,residual lists notes)
