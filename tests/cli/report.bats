# SPDX-License-Identifier: Apache-2.0
# scripts/report.sh: tables in pages from the CSV files of --bench.
# shellcheck disable=SC2016 # text with backquotes
load helper

setup_file() { :; } # needs no program

# A small suite with one page and one folder of results.
suite() {
  mkdir -p "$WORK/suite/scripts" "$WORK/suite/01_x" "$WORK/suite/results"
  cp -r "$TOP"/scripts/{report.sh,lib} "$WORK/suite/scripts"
  printf '%s\n' "date: 2026-01-02T03:04:05Z" "gpu: 0, NVIDIA X, 580.1, 1 MiB" "gpu: 1, NVIDIA X, 580.1, 1 MiB" \
    "version: NCCL header 2.28.9, runtime 2.28.9" "version: CUDA header 13.0" >"$WORK/suite/results/provenance.txt"
  printf 'text\n<!-- table: 01_x.mpi.graph.csv -->\nold\n<!-- end of table -->\nmore\n' >"$WORK/suite/01_x/README.md"
  echo page >"$WORK/suite/README.md"
  cd "$WORK/suite" || return
}

@test "a table per size, with the ratio to the first variant" {
  suite
  cat >"$WORK/suite/results/01_x.mpi.graph.csv" <<'CSV'
bytes,count,type,ranks,graph,variant,us,us_min,us_max,algbw,busbw,ratio,wrong
1024,256,float,2,1,plain,8.00,7,9,0.12,0.25,1.0,0
1024,256,float,2,1,fast,4.00,3,5,0.25,0.50,2.0,3
CSV
  scripts/report.sh results
  cat "$WORK/suite/01_x/README.md"
  grep -qx '| bytes | plain: us / busbw GB/s | fast: us / busbw GB/s / ratio | wrong |' "$WORK/suite/01_x/README.md"
  grep -qx '| 1 KiB | 8.00 / 0.[23] | 4.00 / 0.5 / 2.00x | 3 |' "$WORK/suite/01_x/README.md"
  grep -q '^2 x NVIDIA X, driver 580.1, .*2026-01-02; raw: .results/01_x.mpi.graph.csv' "$WORK/suite/01_x/README.md"
  [ "$(grep -c '^old$' "$WORK/suite/01_x/README.md")" = 0 ]
  scripts/report.sh --check results
  sed -i 's/4.00/4.50/' "$WORK/suite/results/01_x.mpi.graph.csv"
  if scripts/report.sh --check results; then false; fi
}

@test "an example that was measured with another NCCL has it in its caption" {
  suite
  printf 'bytes,variant,us,busbw,wrong\n1024,plain,8.00,0.25,0\n' >"$WORK/suite/results/01_x.mpi.graph.csv"
  echo "version of 02_y: NCCL header 2.27.1, runtime 2.27.1" >>"$WORK/suite/results/provenance.txt"
  scripts/report.sh results
  grep -q 'header 13.0; NCCL header 2.28.9, runtime 2.28.9; mpi' "$WORK/suite/01_x/README.md"
  grep -qF '; NCCL header 2.28.9, runtime 2.28.9; 02_y: NCCL header 2.27.1, runtime 2.27.1;' results/report.html
  sed -i 's/^version of 02_y/version of 01_x/' "$WORK/suite/results/provenance.txt"
  if scripts/report.sh --check results; then false; fi
  scripts/report.sh results
  grep -q 'header 13.0; NCCL header 2.27.1, runtime 2.27.1; mpi' "$WORK/suite/01_x/README.md"
}

@test "a table shows only the rows that its page asks for; one that is not there is refused" {
  suite
  printf '%s\n' bytes,variant,us,busbw,wrong {1024,16384,1048576}',plain,8.00,0.25,0' >results/01_x.mpi.graph.csv
  sed -i 's/graph.csv -->/graph.csv, only 1 KiB, 1 MiB -->/' 01_x/README.md
  scripts/report.sh results
  cat 01_x/README.md
  diff <(sed -n 's/^| \([0-9][^|]*\) |.*/\1/p' 01_x/README.md) <(printf '1 KiB\n1 MiB\n')
  grep -q 'raw: .results/01_x.mpi.graph.csv.[.]$' 01_x/README.md
  grep -q '16 KiB' results/report.html # which has all
  sed 's/^[0-9]/uniform,&/; s/^bytes/pattern,&/' results/01_x.mpi.graph.csv >results/02_x.csv
  mv results/0{2_x,1_x.mpi.graph}.csv
  sed -i 's/only 1 KiB, 1 MiB/only uniform 1 MiB/' 01_x/README.md
  scripts/report.sh results
  grep -qx '| uniform | 1 MiB | 8.00 / 0.[23] | 0 |' 01_x/README.md
  [ "$(grep -c '^| uniform' 01_x/README.md)" = 1 ]
  sed 's/plain/quick/; 1d' results/01_x.mpi.graph.csv >rows.csv
  cat rows.csv >>results/01_x.mpi.graph.csv
  sed -i '1s/$/,ratio/; 2,$s/$/,1/' results/01_x.mpi.graph.csv
  sed -i 's/only uniform 1 MiB/&, without quick/' 01_x/README.md
  scripts/report.sh results
  grep -qx '| pattern | bytes | plain: us / busbw GB/s | wrong |' 01_x/README.md
  grep -q 'quick' results/report.html
  sed -i 's/, without quick/, without quick, slow/' 01_x/README.md
  code=0
  scripts/report.sh results >"$WORK/out" 2>"$WORK/err" || code=$?
  exits_with 1
  one_line "^report.sh: .*results/01_x.mpi.graph.csv has no column 'slow'$"
  sed -i 's/, without quick, slow//' 01_x/README.md
  sed -i 's/only uniform 1 MiB/only uniform 1 MiB, skew 1 MiB/' 01_x/README.md
  cp 01_x/README.md "$WORK/before"
  code=0
  scripts/report.sh results >"$WORK/out" 2>"$WORK/err" || code=$?
  exits_with 1
  one_line "^report.sh: .*results/01_x.mpi.graph.csv has no row 'skew 1 MiB'$"
  cmp 01_x/README.md "$WORK/before"
}

@test "a marker with a folder is filled from that one, whichever is shown" {
  suite
  for folder in mine other; do
    mkdir -p results/$folder/nccl_tests
    sed "s/580.1/$folder/" results/provenance.txt >results/$folder/provenance.txt
    printf 'bytes,variant,us,busbw,wrong\n1024,%s,8.00,0.50,0\n' $folder >results/$folder/01_x.mpi.graph.csv
    printf 'what,us\n%s,8.00\n' $folder >results/$folder/nccl_tests/medians.csv
  done
  text=$(sed 's,table: ,&other/,' 01_x/README.md)
  echo "$text" >>01_x/README.md
  sed 's,table: .*csv,table: other/nccl_tests/medians.csv,' 01_x/README.md | head -n 4 >README.md
  scripts/report.sh results/mine
  cat 01_x/README.md README.md
  diff <(grep -E '^[|]|raw' 01_x/README.md README.md | cut -d : -f 2- | sed 's/ CUDA.*;//') - <<'TEXT'
| bytes | mine: us / busbw GB/s | wrong |
| ---: | ---: | ---: |
| 1 KiB | 8.00 / 0.5 | 0 |
2 x NVIDIA X, driver mine, raw: `results/mine/01_x.mpi.graph.csv`.
| bytes | other: us / busbw GB/s | wrong |
| ---: | ---: | ---: |
| 1 KiB | 8.00 / 0.5 | 0 |
2 x NVIDIA X, driver other, raw: `results/other/01_x.mpi.graph.csv`.
| what | us |
| ---: | ---: |
| other | 8.00 |
2 x NVIDIA X, driver other, raw: `results/other/nccl_tests/medians.csv`.
TEXT
  grep -q 'no NCCL_ variables set; 2026-01-02; raw: .results/other/nccl_tests' README.md
  grep -q 'mpi launcher; no NCCL' 01_x/README.md
}

@test "patterns are rows of their own" {
  suite
  cat >"$WORK/suite/results/01_x.mpi.graph.csv" <<'CSV'
pattern,bytes,count,type,ranks,graph,variant,us,us_min,us_max,algbw,wire,ratio,wrong
skew,1048576,256,float,2,1,send/recv,8.00,7,9,0.12,100,1.0,0
CSV
  scripts/report.sh results
  grep -qx '| pattern | bytes | send/recv: us / wire GB/s | wrong |' "$WORK/suite/01_x/README.md"
  grep -qx '| skew | 1 MiB | 8.00 / 100.0 | 0 |' "$WORK/suite/01_x/README.md"
}

@test "a file without sizes and variants is shown as it is" {
  suite
  printf 'what,n,us\none,1000,5.25\nother,1000,\n' >results/01_x.mpi.graph.csv
  scripts/report.sh results
  cat 01_x/README.md
  diff <(sed -n '/^|/p' 01_x/README.md) - <<'TABLE'
| what | n | us |
| ---: | ---: | ---: |
| one | 1000 | 5.25 |
| other | 1000 |  |
TABLE
}

@test "of the sparse AllReduce, paths are rows, sizes and densities are columns" {
  suite
  printf '%s\n' path,count,density,us,ratio,wrong dense,1000,0.01,10,1,0 oktopk,1000,0.01,4,2.5,0 \
    dense,14728266,0.02,10,1,0 oktopk,14728266,0.02,,,1 \
    'oktopk entries,14728266,0.02,5,2,0' >results/01_x.mpi.graph.csv
  scripts/report.sh results
  cat 01_x/README.md
  diff <(sed -n '/^|/p' 01_x/README.md) - <<'TABLE'
| us / times as fast as dense | 1000, 1 % | 14.7 M, 2 % | wrong |
| --- | ---: | ---: | ---: |
| dense | 10 / 1.00x | 10 / 1.00x | 0 |
| oktopk | 4 / 2.50x | - | 1 |
| oktopk entries | - | 5 / 2.00x | 0 |
TABLE
}

# refused WORDS: report.sh ends with exit code 2 and this one line, and leaves the pages as they are.
refused() {
  cp 01_x/README.md "$WORK/page"
  code=0
  scripts/report.sh results >"$WORK/out" 2>"$WORK/err" || code=$?
  exits_with 2
  one_line "^report.sh: .*results/$1; allowed: a CSV file of --bench\$"
  cmp 01_x/README.md "$WORK/page"
}

@test "a column that is missing, and a row of another length, are refused: no number is made up" {
  suite
  sed 's/01_x/02_allreduce_sm/' 01_x/README.md >README.md
  printf '<!-- headline -->\n<!-- end of headline -->\n' >>README.md
  for file in 01_x 02_allreduce_sm; do
    printf '%s\n' pattern,bytes,variant,us,busbw,ratio,wrong u,1024,plain,8,1,1,0 u,1024,own,4,2,2,0 >results/$file.mpi.graph.csv
  done
  cp -r results "$WORK/good"
  scripts/report.sh results
  for name in us busbw wrong ratio; do
    sed -i "1s/$name/other/" results/01_x.mpi.graph.csv
    refused "01_x.mpi.graph.csv: no column $name"
    cp "$WORK/good"/*.csv results
  done
  for name in bytes variant; do # that is another kind of file, but not for the headline
    sed -i "1s/$name/other/" results/02_allreduce_sm.mpi.graph.csv
    refused "02_allreduce_sm.mpi.graph.csv: no column $name"
    cp "$WORK/good"/*.csv results
  done
  echo path,count,density,us,ratio,wrong >results/01_x.mpi.graph.csv
  echo oktopk,1000,0.01,10,1,0 >>results/01_x.mpi.graph.csv
  cp results/01_x.mpi.graph.csv "$WORK/good"
  for name in count density us ratio wrong; do
    sed -i "1s/$name/other/" results/01_x.mpi.graph.csv
    refused "01_x.mpi.graph.csv: no column $name"
    cp "$WORK/good"/*.csv results
  done
  for name in ranks k words_sent count density verified_steps; do
    printf '%s\n' path,ranks,k,words_sent,count,density,verified_steps a,2,1,1,1,1,0 | sed "1s/\<$name\>/other/" >results/04_z.standin.ranks2.csv
    refused "04_z.standin.ranks2.csv: no column $name"
  done
  printf '%s\n' trained,ranks,us dense,2,40 >results/04_z.mpi.ranks2.csv # of a training job
  rm results/04_z.standin.ranks2.csv
  scripts/report.sh --html results
  grep -q '<th>trained</th><th>ranks</th><th>us</th>' results/report.html
  rm results/04_z.mpi.ranks2.csv
  echo oktopk,1000,0.01 >>results/01_x.mpi.graph.csv
  refused "01_x.mpi.graph.csv:3: 3 fields, the header has 6"
  head -n 1 "$WORK/good/01_x.mpi.graph.csv" >results/01_x.mpi.graph.csv
  code=0
  scripts/report.sh results >"$WORK/out" 2>"$WORK/err" || code=$?
  exits_with 1
  one_line '^report.sh: 01_x/README.md wants results/01_x.mpi.graph.csv, which has no rows$'
  mkdir results/other # of another folder than the one shown
  sed -i 's,table: ,&other/,' 01_x/README.md
  cp "$WORK/good"/*.csv results
  cp results/provenance.txt results/other
  echo 1 | cat "$WORK/good/01_x.mpi.graph.csv" - >results/other/01_x.mpi.graph.csv
  refused "other/01_x.mpi.graph.csv:3: 1 fields, the header has 6"
}

@test "what is no positive number is no time, and has no ratio" {
  suite
  {
    echo bytes,variant,us,busbw,ratio,wrong
    for us in 0 -1 nan inf 1e999 0x10 word; do echo "1024,plain,$us,1,1,0"; done
    echo 4096,plain,8,,1,0
    echo 4096,own,4,2,nan,0
  } >results/01_x.mpi.graph.csv
  scripts/report.sh results
  cat 01_x/README.md
  grep -qx '| 1 KiB | - |  | 0 |' 01_x/README.md
  grep -qx '| 4 KiB | 8.00 / - | 4.00 / 2.0 / - | 0 |' 01_x/README.md
  sed -i '/,8,\|,4,/d' results/01_x.mpi.graph.csv
  scripts/report.sh --html results
  grep -q 'no time in them: 01_x.mpi.graph.csv' results/report.html
}

@test "a folder without results is exit code 2 and changes nothing" {
  suite
  cp "$WORK/suite/01_x/README.md" "$WORK/before"
  for wrong in "" nowhere "a b"; do
    code=0
    # shellcheck disable=SC2086 # none, one or two arguments
    scripts/report.sh $wrong 2>"$WORK/err" || code=$?
    [ $code = 2 ]
    [ "$(wc -l <"$WORK/err")" = 1 ]
  done
  # the table's file is missing
  if scripts/report.sh results; then false; fi
  diff "$WORK/before" "$WORK/suite/01_x/README.md"
}

@test "all pages are rewritten or none: a file that is missing, a full disk" {
  suite
  printf 'bytes,variant,us,busbw,wrong\n1024,plain,8.00,0.25,0\n' >results/01_x.mpi.graph.csv
  mkdir 02_y
  sed 's/01_x/02_y/' 01_x/README.md >02_y/README.md
  mv README.md page.md
  ln -s page.md README.md
  chmod 600 01_x/README.md
  cp -r . "$WORK/before"
  script() { code=0 && "$@" >"$WORK/out" 2>"$WORK/err" || code=$?; }
  script scripts/report.sh results
  exits_with 1
  one_line '^report.sh: 02_y/README.md wants results/02_y.mpi.graph.csv, which is not there$'
  diff -r . "$WORK/before"
  cp results/0{1_x,2_y}.mpi.graph.csv
  cp -rT . "$WORK/before"
  for pattern in '*/02_y/README.md.*.new' '*/report.html.*.new'; do
    full_disk "$pattern"
    PATH=$WORK/bin:$PATH script scripts/report.sh results
    exits_with 1
    one_line "^tee: .$pattern: No space left on device$"
    diff -r . "$WORK/before"
  done
  mkdir results/report.html
  script scripts/report.sh results
  exits_with 2
  one_line "report.html' is there and is no file"
  rmdir results/report.html
  ln -s README.md 01_x/README2.md # no page
  mkdir docs
  ln -s ../01_x/README2.md docs/page.md
  cp -rT . "$WORK/before"
  script scripts/report.sh results
  exits_with 2
  one_line "^report.sh: '01_x/README.md' is .*/01_x/README.md, which is written already; allowed: "
  diff -r . "$WORK/before"
  rm docs/page.md
  echo theirs >01_x/README.md.new # of another run, still at work
  script scripts/report.sh results
  exits_with 0
  [ "$(cat 01_x/README.md.new)" = theirs ]
  rm 01_x/README.md.new
  if grep -x old 0*/README.md; then false; fi
  [ -L README.md ]
  [ "$(stat -c %a 01_x/README.md)" = 600 ]
  [ -z "$(find . -name '*.new')" ]
}

@test "a page that is not understood: one line, exit code 2, nothing is written" {
  suite
  printf 'bytes,variant,us,busbw,wrong\n1024,plain,8.00,0.25,0\n' >results/01_x.mpi.graph.csv
  table='<!-- table: 01_x.mpi.graph.csv -->' end='<!-- end of table -->'
  for wrong in "$table\nold\nmore" "$table\nold\n<!-- end of picture -->\n$end" "$table\nold\n<!-- headline -->\n$end" "$table\n$table\n$end" \
    "$end\nmore" " $table\nold\n$end" "<!--table: x-->\n$end" "<!-- table: x\n-->\n$end" "<!-- table -->\n$end" "<!-- headline: x -->\n$end" \
    "$table\nold\n<!-- end of table-->" "$table\r\nold\n <!-- end of table -->"; do
    printf %b "text\n$wrong" >README.md
    cp README.md "$WORK/before"
    code=0
    scripts/report.sh results >"$WORK/out" 2>"$WORK/err" || code=$?
    exits_with 2
    one_line '^report.sh: README.md:[1-9]: .*; allowed: .*<!-- '
    cmp README.md "$WORK/before"
    grep -qx old 01_x/README.md
    [ ! -e results/report.html ]
  done
  code=0
  scripts/report.sh --check results >"$WORK/out" 2>"$WORK/err" || code=$?
  exits_with 2
  one_line '^report.sh: README.md:4: '
}

@test "blanks after a marker and a last line without its end stay as they are" {
  suite
  printf 'bytes,variant,us,busbw,wrong\n1024,plain,8.00,0.25,0\n' >results/01_x.mpi.graph.csv
  scripts/report.sh results
  for last in '' 'no end' '<!-- table of contents -->'; do
    printf '<!-- table: 01_x.mpi.graph.csv -->  \r\nold\n<!-- end of table --> \n\\n %%s\n%s' "$last" >README.md
    scripts/report.sh results
    diff README.md - < <(printf '<!-- table: 01_x.mpi.graph.csv -->  \r\n'
      sed -n '/^<!-- table/,/^<!-- end/p' 01_x/README.md | sed '1d;$d'
      printf '<!-- end of table --> \n\\n %%s\n%s' "$last")
    scripts/report.sh --check results
  done
}

@test "headline and pictures: rows that were measured, the limit of all files, paths from the page" {
  suite
  mkdir -p docs results/plots
  touch results/plots/some.svg
  printf '<!-- headline -->\n<!-- end of headline -->\n' >README.md
  printf '<!-- picture: some, Words, and more -->\nold\n<!-- end of picture -->\n' >docs/page.md
  head='bytes,variant,us,busbw,ratio,limit,wrong'
  printf '%s\n1024,plain,8,1,1,,0\n1024,own,4,2,2,,0\n268435456,plain,,,,,1\n268435456,symmetric,9,200,,,0\n' $head \
    >results/02_allreduce_sm.mpi.graph.csv
  printf 'pattern,%s\nuniform,268435456,send/recv,8,100,1,400,0\nuniform,268435456,alltoallv,4,200,2,400,0\n' ${head/busbw/wire} \
    >results/03_alltoallv_sm.mpi.graph.csv
  printf 'bytes,variant,us,busbw,ratio,wrong\n1024,plain,8,1,1,0\n' >results/01_x.mpi.graph.csv
  printf '%s\n' path,count,density,us,dense_us,ratio,wrong oktopk,133547324,0.0{1,2},500,2000,4,0 >results/04_sparse_allreduce.mpi.graph.csv
  scripts/report.sh results
  cat README.md docs/page.md
  grep -qx '| 02 | own, 1 KiB | plain | 8.00 / 4.00 | 2.00x | - |' README.md
  grep -qx '| 03 | alltoallv, uniform, 256 MiB | send/recv | 8.00 / 4.00 | 2.00x | 200.0 (50 %) |' README.md
  grep -qx '| 04 | oktopk, 133.5 M elements, density 0.01 | dense | 2000.00 / 500.00 | 4.00x | - |' README.md
  [ "$(grep -c '^| 0' README.md)" = 4 ]
  grep -q 'GB/s (of the limit, 400) |$' README.md
  grep -qx '!\[Words, and more\](../results/plots/some.svg)' docs/page.md
  [ "$(grep -c old docs/page.md)" = 0 ]
  scripts/report.sh --check results
  rm results/plots/some.svg
  if scripts/report.sh --check results 2>"$WORK/err"; then false; fi
  grep -q 'docs/page.md wants results/plots/some.svg; scripts/plot.sh makes it' "$WORK/err"
  code=0 && scripts/report.sh "$WORK/elsewhere" 2>/dev/null || code=$?
  [ $code = 2 ]
}

@test "the caption of a picture says what it shows, and which series came from GPUs and which were counted" {
  suite
  mkdir -p scripts/plots results/plots
  touch results/plots/some.svg
  printf '# SPDX\n# Some thing, in words.\n# data: columns 04_z.*.ranks*.csv path k\n# caption: Words against ranks.\n' >scripts/plots/some.gnuplot
  printf '<!-- picture: some, Words -->\nold\n<!-- end of picture -->\n' >README.md
  echo text >01_x/README.md
  head=path,ranks,count,density,k,us,words_sent,verified_steps
  for ranks in 2 16; do printf '%s\n' $head "oktopk,$ranks,4096,0.01,40,,100,0" >results/04_z.standin.ranks$ranks.csv; done
  scripts/report.sh results
  diff - <(sed -n 3,7p README.md) <<'PAGE'
![Words](results/plots/some.svg)

Words against ranks.
Counted on the CPU stand-in, without GPUs: 4096 elements, density 1 %, verification off; raw: `results/04_z.standin.ranks*.csv`.

PAGE
  sed 's/,0$/,5/; s/,16,/,2,/' results/04_z.standin.ranks16.csv >results/04_z.mpi.ranks2.csv
  scripts/report.sh results
  grep -q '^From 2 x NVIDIA X, .*; raw: `results/04_z.mpi.ranks\*.csv`.$' README.md
  grep -q '^Counted on the CPU stand-in' README.md
  rm results/*standin*
  scripts/report.sh results
  if grep 'stand-in' README.md; then false; fi
}

@test "report.html: titles in words, parts in the order of the examples, words in one table, what has no times is named" {
  suite
  mkdir -p scripts/plots results/plots 04_z
  touch results/plots/{a,b,stray}.svg
  printf '# SPDX\n# Picture of 04, in words.\n# data: lines 04_z.mpi.graph.csv variant\n' >scripts/plots/a.gnuplot
  printf '# SPDX\n# Picture of 01, in words.\n# data: lines 01_x.mpi.graph.csv variant\n' >scripts/plots/b.gnuplot
  echo '# 01: the first' >01_x/README.md
  printf '%s\n' bytes,variant,us,busbw,wrong 1024,plain,8.00,0.25,0 | tee results/01_x.pthread.eager.csv results/01_x.mpi.graph.csv >results/04_z.mpi.graph.csv
  printf '%s\n' bytes,variant,us,busbw,wrong 1024,plain,,,3 >results/04_z.mpi.eager.csv
  for ranks in 16 2 3; do
    printf '%s\n' path,ranks,count,density,k,us,words_sent,verified_steps,wrong {dense,oktopk},$ranks,4096,0.01,40,,100,0,0 >results/04_z.standin.ranks$ranks.csv
  done
  scripts/report.sh --html results
  xmllint --nonet --noout results/report.html
  diff - <(sed -n 's/.*<h2>\(.*\)<\/h2>.*/\1/p' results/report.html) <<'TITLES'
Picture of 01, in words
01: the first; one process per GPU, in a CUDA graph
01: the first; one thread per GPU, calls one by one
Picture of 04, in words
04_z; one process per GPU, in a CUDA graph
04_z; words that a rank sends per element to be selected, by the number of ranks
stray
Provenance
TITLES
  # the list of contents has the same titles
  diff <(sed -n 's/.*<h2>\(.*\)<\/h2>.*/\1/p' results/report.html) <(sed -n 's/^<li><a href="[^>]*>\(.*\)<\/a><\/li>.*/\1/p' results/report.html)
  diff - <(sed -n '/<th>ranks</,/<\/table>/p' results/report.html | sed 's/<\/*t[rdh]>/ /g') <<'WORDS'
  ranks  dense  oktopk  
  2  2.50  2.50  
  3  2.50  2.50  
  16  2.50  2.50  
</table></div>
WORDS
  grep -q '; raw: 01_x.mpi.graph.csv\.</p>' results/report.html
  grep -q 'Left out, because there is no time in them: 04_z.mpi.eager.csv\.' results/report.html
  # wide tables scroll, with the first column in sight, and long lines of the provenance wrap
  grep -q '^\.wide { overflow-x: auto' results/report.html
  [ "$(grep -c '<div class="wide"><table>' results/report.html)" = "$(grep -c '<table>' results/report.html)" ]
  grep -q '^td:first-child, th:first-child {.*position: sticky' results/report.html
  grep -q '^pre { white-space: pre-wrap' results/report.html
}
