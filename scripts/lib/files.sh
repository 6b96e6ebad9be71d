# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# How scripts write files; to be sourced after lib.sh. With `set -euo pipefail`:
#
#   begin_file README.md         sets new=README.md.PID.new, so that two scripts at once do not mix theirs
#   make_page | write_file       fills it
#   keep_files                   renames all new files
#
# So an old file stays as it is when anything fails before the end: a full disk, missing data, Ctrl-C. The
# trap removes new files then.
new_targets=()

begin_file() { # begin_file TARGET
  local target other
  target=$(realpath -m -- "$1") # a link stays one
  [ ! -e "$target" ] || [ -f "$target" ] || die "'$1' is there and is no file; allowed: another path"
  for other in "${new_targets[@]}"; do
    [ "$other" != "$target" ] || die "'$1' is $target, which is written already; allowed: links to other files"
  done
  new=$target.$$.new
  new_targets+=("$target")
  trap remove_new_files EXIT
}

# tee says why it cannot write, and reads to the end even so.
write_file() {
  tee -- "$new" >/dev/null
  local target=${new%."$$".new}
  if [ -e "$target" ]; then chmod --reference="$target" -- "$new"; fi
}

keep_files() {
  local target
  for target in "${new_targets[@]}"; do mv -fT -- "$target.$$.new" "$target"; done
  new_targets=()
}

remove_new_files() {
  local target
  for target in "${new_targets[@]}"; do rm -f -- "$target.$$.new"; done
}
