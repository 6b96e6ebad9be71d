#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packs what is committed, and nothing else, into nccl-examples-<version>.tar.gz in the top folder.
#
#   scripts/dist.sh
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/files.sh
. "$(dirname "$0")/files.sh"
case ${1:-} in -h | --help) show_help ;; esac
cd "$TOP"
[ $# = 0 ] || die "unknown argument '$1'; allowed: none"
have git || die "no git here, which packs what is committed"
git rev-parse --verify -q HEAD >/dev/null 2>&1 || die "this is no git checkout; make dist packs what is committed in one"
name=nccl-examples-$(suite_version)
begin_file "$name.tar.gz"
git archive --format=tar.gz --prefix="$name/" HEAD | write_file
keep_files
echo "$name.tar.gz"
