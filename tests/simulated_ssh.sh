#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Stands in for ssh in tests of several hosts: `simulated_ssh.sh [OPTIONS] simN COMMAND` runs the command
# here, with a folder for temporary files and devices of the CPU stand-in that no other simulated host has.
while [ "${1#-}" != "$1" ]; do shift; done
CPU_STANDIN_PCI_BUS=$((16 * ${1#sim})) TMPDIR=${TMPDIR:-/tmp}/$1
export CPU_STANDIN_PCI_BUS TMPDIR
mkdir -p "$TMPDIR"
shift
exec sh -c "$*"
