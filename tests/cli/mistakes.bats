# SPDX-License-Identifier: Apache-2.0
# The mistakes that the READMEs of 01 and 02 warn of: on the stand-in each ends with one sentence that
# says what is wrong, and nothing after it claims success.
# shellcheck disable=SC2034 # the variable code is read by the helper
load helper

# mistaken LAUNCHER EXAMPLE SED-SCRIPT [ARGUMENTS]: runs a copy of the example on 4 ranks whose main.c
# sed has changed.
mistaken() {
  build_changed "$1" "$2" "$3"
  start "$1" 4 "$2" "${@:4}"
}

program_path() { echo "$WORK/program"; }

# The sentence, from main.c, is all that there is on stderr, whichever ranks come to say it (but for what
# mpirun says of itself when it is ended on a busy machine).
ends_with() {
  exits_with 3
  says "^\[rank [0-3]\] main\.c:[0-9]+: $1$"
  if grep -vE "^note: |^\[warn] Epoll|^\[rank [0-3]\] main\.c:[0-9]+: $1$" "$WORK/err"; then show; fi
  prints_not '^All resources cleaned up successfully'
}

# in front of the first call of the cleanup
# shellcheck disable=SC1003 # the backslash is sed's
before='/NCCLCHECK\(ncclComm(Window)?Deregister\(comm, send_/i\'
register='ncclComm(Window)?Register\(comm, (recvbuff|sendbuff)'

@test "freed while it is registered, or a window" {
  local after='free it after'
  mistaken pthread 01_allreduce_ub "$before NCCLCHECK(ncclMemFree(sendbuff));"
  ends_with "ncclMemFree\(sendbuff\): invalid usage \(ncclMemFree: the memory is still registered; $after ncclCommDeregister\)"
  mistaken pthread 02_allreduce_sm "$before NCCLCHECK(ncclMemFree(recvbuff));"
  ends_with "ncclMemFree\(recvbuff\): invalid usage \(ncclMemFree: the memory is still a window; $after ncclCommWindowDeregister\)"
  mistaken pthread 01_allreduce_ub "$before CUDACHECK(cudaFree(sendbuff));"
  ends_with "cudaFree\(sendbuff\): the memory is still registered; $after ncclCommDeregister"
}

@test "deregistered after the communicator has gone" {
  for example in $EXAMPLES; do
    mistaken pthread "$example" "/ncclComm(Finalize|Destroy)\(comm\)/d; $before NCCLCHECK(ncclCommDestroy(comm));"
    ends_with '(ncclComm(Window)?Deregister)\(comm, send_[a-z]+\): invalid usage \(\1: the communicator is gone; call this before ncclCommDestroy\)'
  done
}

@test "01: registered on some ranks only" {
  for launcher in $LAUNCHERS; do
    mistaken "$launcher" 01_allreduce_ub "/$register/s/^/if (me->rank != 2)/"
    ends_with 'cudaStreamSynchronize\(stream\): ncclAllReduce: sendbuff is not registered on rank 2 and registered on rank 0; all ranks must agree'
  done
  mistaken pthread 01_allreduce_ub "/ncclCommRegister\(comm, recvbuff/s/^/if (me->rank == 0)/"
  ends_with 'cudaStreamSynchronize\(stream\): ncclAllReduce: recvbuff is not registered on rank 1 and registered on rank 0; all ranks must agree'
}

@test "02: a rank that registers no window is the one in another step" {
  for launcher in $LAUNCHERS; do
    mistaken "$launcher" 02_allreduce_sm '/ncclCommWindowRegister/s/^/if (me->rank != 1)/' --timeout 2
    exits_with 4
    says '^\[rank 1\] no progress for [0-9]+ s in step: STEP 4: are the windows symmetric\?$'
    for rank in 0 2 3; do says "^\[rank $rank\] no progress for [0-9]+ s in step: STEP 4: registration of both buffers$"; done
  done
}

@test "02: lines of odd and of even calls in the same half: one is replaced unread, and its reader waits" {
  local changed=$WORK/02
  cp -r "$TOP/02_allreduce_sm" "$changed"
  sed -i 's/epoch & 1/epoch \& 0/' "$changed/lib/protocol.h"
  grep -q 'epoch & 0' "$changed/lib/protocol.h"
  gcc -std=c11 -D_GNU_SOURCE -DCPU_STANDIN -pthread -I"$changed" -I"$changed/lib" -isystem "$TOP/common/cpu/include" \
    -I"$TOP/common/cpu" -I"$TOP/common" -I"$TOP/common/launch" -I"$TOP/common/verify" -I"$TOP/common/bench" -o "$WORK/program" \
    "$changed"/{main,bench,program,lib/allreduce,cpu/device_cpu,cpu/plain,simple/simple_cpu}.c \
    "$TOP/build/cpu-pthread/launcher.o" "$TOP/build/cpu/common.a" \
    -Wl,-rpath,"$TOP/build/cpu-pthread" -L"$TOP/build/cpu-pthread" -lcpu_standin -lm
  start pthread 8 02_allreduce_sm --method lines --timeout 2 # with 4 ranks two of 40 jobs have luck
  exits_with 4
  says '^\[rank [0-7]\] no progress for [0-9]+ s in step: lines$'
}

@test "02: a window of memory from cudaMalloc" {
  for launcher in $LAUNCHERS; do
    mistaken "$launcher" 02_allreduce_sm \
      's/NCCLCHECK\(ncclMemAlloc\(&recvbuff, bytes\)\)/if (me->rank == 2) CUDACHECK(cudaMalloc(\&recvbuff, bytes)); else &/'
    ends_with 'ncclCommWindowRegister\(.*recvbuff.*\): invalid usage \(ncclCommWindowRegister: the memory of rank 2 is not from ncclMemAlloc; all ranks must take it from there\)'
  done
}

@test "a count, type or operation that differs: call, ranks and both values, and no success after it" {
  local agree='all ranks must agree'
  for launcher in $LAUNCHERS; do
    for example in $EXAMPLES; do
      mistaken "$launcher" "$example" 's/all_reduce\(sendbuff, recvbuff, count/& - (me->rank == 2)/'
      ends_with "cudaStreamSynchronize\(stream\): ncclAllReduce: the count is 1048575 elements on rank 2 and 1048576 elements on rank 0; $agree"
      prints_not '^AllReduce completed'
    done
  done
  mistaken pthread 01_allreduce_ub 's/(all_reduce\(sendbuff, recvbuff, count, )type/\1me->rank == 1 ? ncclInt32 : type/'
  ends_with "cudaStreamSynchronize\(stream\): ncclAllReduce: the type is ncclInt32 on rank 1 and ncclFloat on rank 0; $agree"
  mistaken pthread 01_allreduce_ub 's/NCCLCHECK\((ncclAllReduce.*)ncclSum/int rank; ncclCommUserRank(comm, \&rank); NCCLCHECK(\1rank == 3 ? ncclMax : ncclSum/'
  ends_with "cudaStreamSynchronize\(stream\): ncclAllReduce: the operation is ncclMax on rank 3 and ncclSum on rank 0; $agree"
}

@test "given back while a collective is queued" {
  local queue="$before NCCLCHECK(ncclAllReduce(sendbuff, recvbuff, count, opt->type->nccl, ncclSum, comm, stream));"
  for example in $EXAMPLES; do
    CPU_STANDIN_DELAY=200 mistaken pthread "$example" "$queue" --count 1000 # collectives begin that late
    ends_with '(ncclComm(Window)?Deregister)\(comm, send_[a-z]+\): invalid usage \(\1: a call that uses the memory is queued or running; wait for its stream first\)'
  done
}

@test "results read before the stream was waited for: wrong data, not a value that has become right" {
  local without='/NCCLCHECK\(ncclAllReduce/{n; s/CUDACHECK\(cudaStreamSynchronize\(stream\)\);//}'
  for launcher in $LAUNCHERS; do
    for example in $EXAMPLES; do
      CPU_STANDIN_DELAY=500 mistaken "$launcher" "$example" "$without" --count 1000
      exits_with 1
      for rank in 0 1 2 3; do
        says "^\[rank $rank\] constant data: element 0 is nan, expected 6 \(1000 elements wrong\): the element was never written; did you wait for the stream"
      done
      says_not ' is ([0-9]+), expected \1 '
      prints '^Results are WRONG'
      prints_not '^Results verified'
    done
  done
}

# NCCL would go on without a word, and so does the stand-in, but for one note.
notes() {
  exits_with 0
  says "^note: $1: NCCL will not use it$"
  [ "$(grep -c '^note: ' "$WORK/err")" = 2 ] || show # and that there is no GPU
}

@test "01: a registration that is of no use is noted" {
  local of='is registered for 1048576 of 4194304 bytes'
  for launcher in $LAUNCHERS; do
    mistaken "$launcher" 01_allreduce_ub '/ncclCommRegister\(comm, recvbuff/s/bytes/count/'
    notes "recvbuff $of"
  done
  mistaken pthread 01_allreduce_ub 's/ncclCommRegister\(comm, (send|recv)buff, bytes/ncclCommRegister(comm, \1buff, count/'
  notes "sendbuff $of"
  mistaken pthread 01_allreduce_ub '/ncclCommRegister\(comm, recvbuff/d; /ncclCommDeregister\(comm, recv/d; s/, \*recv_handle = NULL//'
  notes "sendbuff is registered and recvbuff is not"
  mistaken pthread 01_allreduce_ub 's/NCCLCHECK\(ncclMemAlloc\(/CUDACHECK(cudaMalloc(/; s/NCCLCHECK\(ncclMemFree\(/CUDACHECK(cudaFree(/'
  notes "ncclCommRegister: the memory is not from ncclMemAlloc"
}
