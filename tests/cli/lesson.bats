# SPDX-License-Identifier: Apache-2.0
# The examples as something to learn from: how little has to be changed to make
# another collective of 01; exercises 3 to 5 of 01, 3 and 4 of 02, 03, 2 and 3 of 04. (Others are in
# mistakes.bats and sparse.bats.)
# shellcheck disable=SC2034 # the variable code is read by the helper
load helper

program_path() { echo "$WORK/program"; }

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
  says "^\[rank $2\] out of place: element 0 is .*, expected "
  prints '^Results are WRONG'
}

@test "01 becomes a ReduceScatter" {
  # rank r gets part r of the sum; in place it stands where this rank's part of the input was
  local change='
    s/ncclAllReduce\(/ncclReduceScatter(/
    s/sum\(me->nranks, (i|first)\)/sum(me->nranks, count * (size_t)me->rank + \1)/
    s/^( *)const size_t count = .*/&\n\1const size_t part = count \/ (size_t)me->nranks, mine = part * (size_t)me->rank;/
    s/(all_reduce\(sendbuff, recvbuff|"out of place", recvbuff, host), count/\1, part/
    s/all_reduce\(sendbuff, sendbuff, count/all_reduce(sendbuff, sendbuff + mine, part/
    s/"in place", sendbuff, host, count/"in place", sendbuff + mine, host, part/'
  another "$change" 1 4 7
  wrong "${change/me->rank + /me->rank + 1 + }" '[0-3]'
  wrong "${change/count * (size_t)me->rank + /}" '[1-3]'
}

@test "01 becomes a Broadcast" {
  another 's/ncclAllReduce\(/ncclBroadcast(/; s/ncclSum, /0, /
    s/total \+= input\(rank, i\)/total = input(0, i)/' 1 4
}

@test "01: a rank dies, and each of the others ends with a sentence" {
  local launcher
  for launcher in $LAUNCHERS; do
    build_changed "$launcher" 01_allreduce_ub '' rank_dies.patch
    start "$launcher" 4 01_allreduce_ub
    exits_with 4
    for rank in 0 2 3; do says "^\[rank $rank\] AllReduce: "; done
    says 'AllReduce: nothing has come for 3 seconds; has a rank died\?$'
    says_not '^\[rank 1\]'
  done
  build_changed pthread 01_allreduce_ub '/as if it had died/d' rank_dies.patch
  start pthread 4 01_allreduce_ub
  exits_with 0
  prints '^Results verified correctly$'
}

@test "01: two halves and the whole; a rank that calls on both communicators in another order hangs" {
  local launcher ranks
  for launcher in $LAUNCHERS; do
    build_changed "$launcher" 01_allreduce_ub '' two_communicators.patch
    for ranks in 1 2 5; do
      start "$launcher" $ranks 01_allreduce_ub
      exits_with 0
      prints '^Results verified correctly$'
    done
  done
  build_changed pthread 01_allreduce_ub 's/(comm, me->rank) % 2/\1 % 3/' two_communicators.patch
  start pthread 4 01_allreduce_ub
  exits_with 1
  says '^\[rank 3\] half: element 0 is '
  build_changed pthread 01_allreduce_ub '/ncclAllReduce\(.* half, stream/{
    h; s/NCCL/if (me->rank != 1) &/; n; p; x; s/NCCL/if (me->rank == 1) &/}' two_communicators.patch
  start pthread 4 01_allreduce_ub --timeout 10
  exits_with 4
  says '^\[rank 1\] no progress for [0-9]+ s in step: STEP 7'
}

@test "02: an average in the kernel that adds: every element is the sum divided by the ranks" {
  changed_copy 02_allreduce_sm simple/barrier.cu 's/recvbuff\[i\] = sum;/recvbuff[i] = sum \/ dev_comm.lsaSize;/'
  start pthread 4 02_allreduce_sm --method barrier
  exits_with 1
  says '^\[rank 0\] barrier: element 0 is '
  awk '/ barrier: element 0 is /{ gsub(",", ""); wrong += 4 * $7 != $9; n++ } END { exit wrong || n != 4 }' "$WORK/err" || show
}

@test "04: topkA sends more words than dense from a density of 1/P on, oktopk from somewhat below 1/2" {
  local density most expected
  make_variant 04_sparse_allreduce pthread
  ln -s "$(built_program 04_sparse_allreduce cpu pthread)" "$WORK/program"
  while read -r density expected; do
    start pthread 4 04_sparse_allreduce --algorithm dense,topkA,oktopk --count 8K --steps 8 --density "$density"
    exits_with 0
    most=$(awk '$1 == "dense" { dense = $6 } $1 ~ /topk/ && $6 > dense { printf "%s,", $1 }' "$WORK/out")
    [ "$most" = "$expected" ] || show
  done <<<$'0.2\n0.3 topkA,\n0.4 topkA,\n0.45 topkA,oktopk,'
}

# changed_copy EXAMPLE FILE SED-SCRIPT: $WORK/program is the example with a file that sed -E has changed; or FILE is a
# patch of the example.
changed_copy() {
  local copy=$FAULT_FOLDER/copy
  rm -rf "$copy" && mkdir -p "$copy/build"
  cp -rp "$TOP"/{Makefile,common,scripts,0*} "$copy"
  cp -rp "$TOP"/build/cpu{,-pthread} "$copy/build" # others are being built meanwhile
  if [[ $2 = *.patch ]]; then
    patch -s -p0 -d "$copy/$1" <"$TOP/$1/$2"
  else
    sed -i -E "$3" "$copy/$1/$2"
    if cmp -s "$TOP/$1/$2" "$copy/$1/$2"; then echo "sed has changed nothing" && return 1; fi
  fi
  make -s -C "$copy" CPU=1 "$1"
  ln -sf "$copy/build/cpu-pthread/${1#*_}" "$WORK/program"
}

@test "04: sums in another order are noticed with three ranks, not with two" {
  changed_copy 04_sparse_allreduce simple/topka.c \
    's/for \(size_t r = 0; r < ranks; r\+\+\)$/for (size_t r = ranks; r-- > 0;)/'
  start pthread 2 04_sparse_allreduce --algorithm topkA
  exits_with 0
  start pthread 3 04_sparse_allreduce --algorithm topkA
  exits_with 1
  says '^\[rank [0-2]\] topkA, step 43: sum: element [0-9]+ is '
}

@test "03: a rank that sends one element less: the library reports it, barrier does not notice" {
  changed_copy 03_alltoallv_sm main.c '/launcher_step\("STEP 7/i\  if (me->rank == 0) sendcounts[2]--;'
  start pthread 4 03_alltoallv_sm
  exits_with 3
  says '^\[rank [02]\] main.c:.*rank 0 sends 255 elements to rank 2, which expects 256 \(exchange 1\)\)$'
  changed_copy 03_alltoallv_sm harness/bench.c '/^  call\(&c, size, 0/i\  if (x->me->rank == 0) x->sendcounts[2]--;'
  start pthread 4 03_alltoallv_sm --method barrier
  exits_with 1
  says '^\[rank 2\] barrier: element 255 from rank 0 is wrong \(1 elements wrong\)$'
}

@test "03: a ring is one more pattern" {
  changed_copy 03_alltoallv_sm harness/patterns.h 's/^ *P\("moe"/  P("ring", SHARES, to == (from + 1) % n) \\\n&/'
  start pthread 4 03_alltoallv_sm --pattern ring
  exits_with 0
  prints '^  Received from rank 3: 2048 elements at offset 0$'
}

@test "03: headers of all exchanges in the same place: one is replaced unread, and its reader waits" {
  changed_copy 03_alltoallv_sm lib/alltoallv_wait.cuh 's/epoch % 3 \* /epoch % 1 * /'
  start pthread 2 03_alltoallv_sm --bench --timeout 10
  exits_with 4
  says '^\[rank [01]\] no progress for [0-9]+ s in step: bench: verification before timing$'
}

@test "03: exchanges beside a kernel that computes, and the kernel alone" {
  changed_copy 03_alltoallv_sm beside.patch
  for pattern in skew zero; do
    start pthread 3 03_alltoallv_sm --bench --pattern $pattern -e 4K -n 3 --repetitions 2
    exits_with 0
    prints '^ +4096  copy engine .* 0$'
  done
}

@test "02: lines of odd and of even calls in the same half: one is replaced unread, and its reader waits" {
  changed_copy 02_allreduce_sm simple/lines.cu 's/\(epoch & 1\) \* /(epoch \& 0) * /'
  start pthread 8 02_allreduce_sm --method lines --timeout 10
  exits_with 4
  says '^\[rank [0-7]\] no progress for [0-9]+ s in step: lines$'
}
