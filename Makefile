# SPDX-License-Identifier: Apache-2.0
# Builds all examples; the rules are in common/rules.mk. Switches such as MPI=1 and CPU=1 on the
# command line reach the examples' makes.
EXAMPLES := $(patsubst %/Makefile,%,$(sort $(wildcard [0-9][0-9]_*/Makefile)))

PREFIX  ?= /usr/local
VARIANT := $(if $(filter-out 0,$(CPU)),cpu,gpu)-$(if $(filter-out 0,$(MPI)),mpi,pthread)

.PHONY: all both run test install dist clean help $(EXAMPLES) $(EXAMPLES:=/both) $(EXAMPLES:=/program)
all: $(EXAMPLES)

$(EXAMPLES):
	+$(MAKE) -C $@

both: $(EXAMPLES:=/both)

# for scripts: everything that is missing in one make, which shares the cores out
$(EXAMPLES:=/both) $(EXAMPLES:=/program):
	+@$(MAKE) -C $(@D) $(@F)

run:
	./scripts/run_all.sh --no-install $(if $(filter-out 0,$(CPU)),--cpu)

test:
	./scripts/test.sh

install: $(EXAMPLES)
	./scripts/install.sh $(VARIANT) $(call quote,$(PREFIX)) $(call quote,$(DESTDIR))
quote = '$(subst ','\'',$(1))'

# what is committed, nothing else
dist: PACKAGE = nccl-examples-$(shell bash -c '. scripts/lib/lib.sh && suite_version')
dist:
	@git archive --format=tar.gz --prefix=$(PACKAGE)/ -o $(PACKAGE).tar.gz HEAD
	@echo $(PACKAGE).tar.gz

clean:
	@for example in $(EXAMPLES); do $(MAKE) --no-print-directory -C $$example clean; done
	@for folder in tests/unit tests/gpu/*/; do $(MAKE) --no-print-directory -C $$folder clean; done
	rm -rf build

help:
	@echo "make                  all examples, one thread per GPU"
	@echo "make MPI=1            ... one process per GPU"
	@echo "make CPU=1            ... without a GPU, on the CPU stand-in (with MPI=1 too)"
	@echo "make both             ... for both launchers at once, in build/ of each directory (make -j both: on all cores)"
	@echo "make <directory>      one of: $(EXAMPLES)"
	@echo "make run              run every example under both launchers (scripts/run_all.sh)"
	@echo "make test             all tests (scripts/test.sh)"
	@echo "make install          programs, headers, libraries to PREFIX (scripts/install.sh)"
	@echo "make dist             what is committed, as nccl-examples-<version>.tar.gz"
	@echo "make clean            remove all that was built"
	@echo "make help             this"
	@echo "Variables: CUDA_HOME NCCL_HOME MPI_HOME MPICC NVCC_GENCODE CC CFLAGS PREFIX DESTDIR"
