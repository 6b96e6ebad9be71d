# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# How scripts write files; to be sourced after lib.sh. With `set -euo pipefail`:
#
#   begin_file README.md         sets new=README.md.new
#   make_page | write_file       fills it
#   keep_files                   renames all new files
#
# So an old file stays as it is when anything fails before the end: a full disk, missing data, Ctrl-C. The
# trap removes new files then; what a killed script left is overwritten by the next one.
new_targets=()

begin_file() { # begin_file TARGET
  local target
  target=$(realpath -m -- "$1") # a link stays one
  [ ! -e "$target" ] || [ -f "$target" ] || die "'$1' is there and is no file; allowed: another path"
  new=$target.new
  new_targets+=("$target")
  trap remove_new_files EXIT
}

# tee says why it cannot write, and reads to the end even so.
write_file() {
  tee -- "$new" >/dev/null
  if [ -e "${new%.new}" ]; then chmod --reference="${new%.new}" -- "$new"; fi
}

keep_files() {
  local target
  for target in "${new_targets[@]}"; do mv -fT -- "$target.new" "$target"; done
  new_targets=()
}

remove_new_files() {
  local target
  for target in "${new_targets[@]}"; do rm -f -- "$target.new"; done
}
