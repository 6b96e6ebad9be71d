# SPDX-License-Identifier: Apache-2.0
# 01 and 02 as something to learn from: what differs between the two, and how little has to be changed to make
# another collective of 01.
# shellcheck disable=SC2034 # the variable code is read by the helper
load helper

program_path() { echo "$WORK/program"; }

@test "01 and 02 differ in 75 lines at most" {
  diff "$TOP/01_allreduce_ub/main.c" "$TOP/02_allreduce_sm/main.c" >"$WORK/diff" || true
  cat "$WORK/diff"
  [ -s "$WORK/diff" ]
  [ "$(wc -l <"$WORK/diff")" -le 75 ]
}

# another SED-SCRIPT RANKS...: 01 with that change verifies, with both launchers.
another() {
  local launcher ranks
  for launcher in $LAUNCHERS; do
    build_changed "$launcher" 01_allreduce_ub "$1"
    for ranks in "${@:2}"; do
      start "$launcher" "$ranks" 01_allreduce_ub --count 1001
      exits_with 0
      prints '^Results verified correctly$'
    done
  done
}

# wrong SED-SCRIPT: the same, and it does not verify.
wrong() {
  build_changed pthread 01_allreduce_ub "$1"
  start pthread 4 01_allreduce_ub --count 1001
  exits_with 1
  says "^\[rank $2\] indexed data: element 0 is .*, expected "
  prints '^Results are WRONG'
}

@test "01 becomes a ReduceScatter" {
  # rank r gets part r of the sum; in place it stands where this rank's part of the input was
  local change='
    s/ncclAllReduce\(/ncclReduceScatter(/
    s/^( *)const size_t bytes =.*/&\n\1const size_t part = count \/ me->nranks, first = part * me->rank;/
    s/^( *)verifier_init.*/&\n\1verifier_expect(\&verifier, first, VERIFY_SUM);/
    s/all_reduce\(sendbuff, recvbuff, count/all_reduce(sendbuff, recvbuff, part/
    s/(verifier_check.* data", recvbuff, )count/\1part/
    s/((all_reduce\(|"in place", )(sendbuff, )?)sendbuff, count/\1(char *)sendbuff + first * opt->type->size, part/'
  another "$change" 1 4 7
  wrong "${change/first, VERIFY_SUM/first + 1, VERIFY_SUM}" '[0-3]'
  wrong "${change/first, VERIFY_SUM/0, VERIFY_SUM}" '[1-3]'
}

@test "01 becomes a Broadcast" {
  another 's/ncclAllReduce\(/ncclBroadcast(/; s/ncclSum, /0, /
    s/^( *)verifier_init.*/&\n\1verifier_expect(\&verifier, 0, 0);/' 1 4
}
