# SPDX-License-Identifier: Apache-2.0
# --result entries of 04_sparse_allreduce: no dense result, and weights that each step updates.
load sparse_helper

@test "--result entries: every path in every mode, verified, with the digest of dense results" {
  local launcher ranks common exchange
  for ranks in 1 2 3 7; do
    common=(--count 3000 --steps 34 --density 0.02)
    digest pthread $ranks "${common[@]}"
    for launcher in $LAUNCHERS; do
      digest "$launcher" $ranks "${common[@]}" --result entries
    done
    [ "$(grep -c ' 34 steps x ' "$WORK/out")" = 10 ]
    one_digest
  done
  for exchange in sendrecv onesided; do
    for launcher in $LAUNCHERS; do
      digest "$launcher" 4 --count 3000 --steps 7 --result entries --exchange $exchange
    done
  done
  digest pthread 4 --count 3000 --steps 7
  one_digest
}

@test "--result entries: gradients, types, steps that are dense, a restart, samples" {
  local gradient
  for gradient in normal ties one-region; do
    verified pthread 3 "${SMALL[@]}" --result entries --gradient $gradient -d half
  done
  verified pthread 2 --count 2 --steps 3 --density 1 --result entries
  verified pthread 4 --count 300 --steps 3 --density 1 --result entries # topkSA falls back
  verified pthread 3 --count 3000 --steps 17 --verify sample --result entries
  digest pthread 3 "${SMALL[@]}" --warmup-steps 2 --result entries
  digest pthread 3 "${SMALL[@]}" --warmup-steps 2 --result entries --restart-after 3
  digest pthread 3 "${SMALL[@]}" --warmup-steps 2 --result entries --restart-after 1
  digest pthread 3 "${SMALL[@]}" --warmup-steps 2
  one_digest
}

@test "--result entries: files are those of dense results" {
  verified pthread 2 "${SMALL[@]}" --algorithm oktopk --output "$WORK/dense%r" --residual "$WORK/kept%r"
  verified pthread 2 "${SMALL[@]}" --algorithm oktopk --output "$WORK/made%r" --residual "$WORK/left%r" --result entries
  cmp "$WORK/dense1" "$WORK/made1"
  cmp "$WORK/kept1" "$WORK/left1"
}

@test "--result entries: a note and the tables say so; --bench has two rows more of each path" {
  verified pthread 2 "${SMALL[@]}" --algorithm dense,oktopk --result entries -J "$WORK/table.json"
  python3 -c "import json; assert [(r['mode'], r['result']) for r in json.load(open('$WORK/table.json'))] == [
    ('allreduce', 'entries'), ('device counts', 'entries')]"
  says '^note: oktopk \(device counts, entries\)$'
  sparse "${LAUNCHERS##* }" 2 --bench -G 1 --count 5000 --density 0.1 --steps 4 --algorithm dense,oktopk \
    --result entries -J "$WORK/bench.json"
  exits_with 0
  prints '^oktopk .*, entries$'
  prints '^oktopk .*, entries added$'
  python3 -c "import json
rows = [r['path'] for r in json.load(open('$WORK/bench.json'))]
assert rows[2:] == ['direct allreduce', 'dense', 'oktopk', 'simple oktopk', 'oktopk entries', 'oktopk entries added'], rows"
}

@test "--result entries: a line that is broken fails the verification" {
  local all=(--count 2003 --density 0.05 --steps 4 --result entries) ops=cpu/small_cpu.c
  broken topkA $ops 'fmaf(c->scale, result, c->vector[i])' 'c->scale * result + c->vector[i]' "${all[@]}"
  says 'topkA, step [0-9]*: weights: element '
  broken gtopk $ops 'add_to(c, pair.index, pair.value / (float)c->m.nranks)' 'add_to(c, pair.index, pair.value)' \
    "${all[@]}"
  says 'gtopk, step 0: result: element '
  broken oktopk lib/result.c 'return ops_add_entries(&h->m, sparse_result(&h->m), scale, vector, stream);' \
    'return ops_add_entries(&h->m, sparse_offered(&h->m), scale, vector, stream);' "${all[@]}"
  says 'oktopk, step 0: result: element '
  broken topkSA lib/step.c 'now->dense || now->fell_back ? SPARSE' 'now->dense ? SPARSE' \
    --count 300 --density 1 --steps 3 --result entries
  says 'topkSA, step [0-9]*: '
}
