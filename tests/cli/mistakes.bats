# SPDX-License-Identifier: Apache-2.0
# The mistakes that the READMEs of 01 and 02 warn of: on the stand-in each ends with one sentence that
# says what is wrong, and nothing after it claims success.
# shellcheck disable=SC2034 # the variable code is read by the helper
load helper

# mistaken EXAMPLE SED-SCRIPT [ARGUMENTS]: runs a copy of the example on 4 ranks whose main.c sed has changed.
mistaken() {
  build_changed pthread "$1" "$2"
  start pthread 4 "$1" "${@:3}"
}

program_path() { echo "$WORK/program"; }

# The sentence, from main.c, is all that there is on stderr, whichever ranks come to say it.
ends_with() {
  exits_with 3
  says "^\[rank [0-3]\] main\.c:[0-9]+: $1$"
  if grep -vE "^note: |^\[rank [0-3]\] main\.c:[0-9]+: $1$" "$WORK/err"; then show; fi
  prints_not '^All resources cleaned up successfully'
}

# in front of the first call of the cleanup
# shellcheck disable=SC1003 # the backslash is sed's
before='/NCCLCHECK\(ncclComm(Window)?Deregister\(comm, send_/i\'

@test "freed while it is registered, or a window; deregistered after the communicator has gone" {
  local after='free it after'
  mistaken 01_allreduce_ub "$before NCCLCHECK(ncclMemFree(sendbuff));"
  ends_with "ncclMemFree\(sendbuff\): invalid usage \(ncclMemFree: the memory is still registered; $after ncclCommDeregister\)"
  mistaken 02_allreduce_sm "$before NCCLCHECK(ncclMemFree(recvbuff));"
  ends_with "ncclMemFree\(recvbuff\): invalid usage \(ncclMemFree: the memory is still a window; $after ncclCommWindowDeregister\)"
  mistaken 01_allreduce_ub "$before CUDACHECK(cudaFree(sendbuff));"
  ends_with "cudaFree\(sendbuff\): the memory is still registered; $after ncclCommDeregister"
  mistaken 02_allreduce_sm "/ncclComm(Finalize|Destroy)\(comm\)/d; $before NCCLCHECK(ncclCommDestroy(comm));"
  ends_with '(ncclCommWindowDeregister)\(comm, send_window\): invalid usage \(\1: the communicator is gone; call this before ncclCommDestroy\)'
}

@test "02: a window of memory from cudaMalloc; a rank that registers no window is the one in another step" {
  mistaken 02_allreduce_sm \
    's/NCCLCHECK\(ncclMemAlloc\(\(void \*\*\)&recvbuff, bytes\)\)/if (me->rank == 2) CUDACHECK(cudaMalloc((void **)\&recvbuff, bytes)); else &/'
  ends_with 'ncclCommWindowRegister\(.*recvbuff.*\): invalid usage \(ncclCommWindowRegister: the memory of rank 2 is not from ncclMemAlloc; all ranks must take it from there\)'
  mistaken 02_allreduce_sm '/ncclCommWindowRegister/s/^/if (me->rank != 1)/' --timeout 5 --count 100
  exits_with 4
  says '^\[rank 1\] no progress for [0-9]+ s in step: STEP 4: are the windows symmetric\?$'
  for rank in 0 2 3; do says "^\[rank $rank\] no progress for [0-9]+ s in step: STEP 4: registration of both buffers$"; done
}

@test "01: a type or operation that differs: call, ranks and both values, and no success after it" {
  local rank='s/NCCLCHECK\((ncclAllReduce.*)' get='/int rank; ncclCommUserRank(comm, \&rank); NCCLCHECK(\1rank == 3'
  mistaken 01_allreduce_ub "${rank}ncclFloat$get ? ncclInt32 : ncclFloat/"
  ends_with "cudaStreamSynchronize\(stream\): ncclAllReduce: the type is ncclInt32 on rank 3 and ncclFloat on rank 0; all ranks must agree"
  mistaken 01_allreduce_ub "${rank}ncclSum$get ? ncclMax : ncclSum/"
  ends_with "cudaStreamSynchronize\(stream\): ncclAllReduce: the operation is ncclMax on rank 3 and ncclSum on rank 0; all ranks must agree"
  prints_not '^AllReduce completed'
}

@test "01: results read before the stream was waited for: wrong data, not a value that has become right" {
  CPU_STANDIN_DELAY=3000 mistaken 01_allreduce_ub '/NCCLCHECK\(ncclAllReduce/{n; s/CUDACHECK\(cudaStreamSynchronize\(stream\)\);//}' --count 1000
  exits_with 1
  for rank in 0 1 2 3; do
    says "^\[rank $rank\] out of place: element 0 is -?nan, expected 6 \(1000 elements wrong\): did you wait for the stream"
  done
  prints '^Results are WRONG'
  prints_not '^Results verified'
}

# NCCL would go on without a word, and so does the stand-in, but for one note.
notes() {
  exits_with 0
  says "^note: $1: NCCL will not use it$"
  # and that there is no GPU
  [ "$(grep -c '^note: ' "$WORK/err")" = 2 ] || show
}

@test "01: a registration that is of no use is noted" {
  mistaken 01_allreduce_ub '/ncclCommRegister\(comm, recvbuff/s/bytes/count/'
  notes 'recvbuff is registered for 1048576 of 4194304 bytes'
  mistaken 01_allreduce_ub '/ncclCommRegister\(comm, recvbuff/d; /ncclCommDeregister\(comm, recv/d; s/, \*recv_handle = NULL//'
  notes "sendbuff is registered and recvbuff is not"
  mistaken 01_allreduce_ub 's/NCCLCHECK\(ncclMemAlloc\(/CUDACHECK(cudaMalloc(/; s/NCCLCHECK\(ncclMemFree\(/CUDACHECK(cudaFree(/'
  notes "ncclCommRegister: the memory is not from ncclMemAlloc"
}
