# SPDX-License-Identifier: Apache-2.0
# scripts/plot.sh and the page of scripts/report.sh, with the results in the repository and small ones.
# shellcheck disable=SC2016,SC2034 # text with backquotes; the variable code is read by the helper
load helper

setup_file() { :; } # needs no program

RESULTS=results/2xH200-nccl2.28

script() { # script NAME [ARGUMENTS]: sets code, $WORK/out, $WORK/err
  code=0
  "$TOP/scripts/$1" "${@:2}" >"$WORK/out" 2>"$WORK/err" </dev/null || code=$?
}

texts() { # texts NAME: the words in a picture of $WORK/results, a line each
  sed -n 's/^.*<text>\(.*\)<\/text>.*/\1/p' "$WORK/results/plots/$1.svg" | sed 's/<[^>]*>//g; s/^ *//; s/ *$//'
}

# ratio VARIANT BYTES FORMAT: in $file. limit: of all files of $WORK/results, in whole GB/s.
ratio() {
  awk -F, -v variant="$1" -v bytes="$2" -v format="$3" '
    NR == 1 { for (i = 1; i <= NF; i++) column[$i] = i }
    $column["variant"] == variant && $column["bytes"] == bytes { printf format, $column["ratio"] }' "$file"
}
limit() { cat "$WORK"/results/03_*.csv | awk -F, '$(NF - 1) + 0 > most { most = $(NF - 1) + 0 } END { printf "%.0f", most }'; }

setup() {
  WORK=$(mktemp -d)
  cp -r "$TOP/$RESULTS" "$WORK/results"
  rm -f "$WORK/results/report.html"
}

# A folder with an AllReduce file of 01 and one of 02, two sizes, the last one without times.
small() {
  mkdir "$WORK/small"
  grep -v -e '^environment' "$WORK/results/provenance.txt" >"$WORK/small/provenance.txt"
  cat >"$WORK/small/02_allreduce_sm.mpi.graph.csv" <<'CSV'
bytes,count,type,ranks,graph,variant,us,us_min,us_q1,us_q3,us_max,algbw,busbw,ratio,limit,wrong
1024,256,float,4,1,plain,8,1,7,9,99,0.1,10,1.0,,0
1024,256,float,4,1,symmetric,4,1,3,5,99,0.2,20,2.0,,0
4096,1024,float,4,1,plain,8,1,7,9,99,0.1,10,1.0,,0
4096,1024,float,4,1,symmetric,16,1,15,17,99,0.2,20,0.5,,0
16384,4096,float,4,1,plain,,,,,,,,,,7
CSV
  sed 's/symmetric/registered/' "$WORK/small/02_allreduce_sm.mpi.graph.csv" >"$WORK/small/01_allreduce_ub.mpi.graph.csv"
}

@test "the plotted data in the repository are those of its results, the pictures parse" {
  script plot.sh --check "$TOP/$RESULTS"
  exits_with 0
  for name in "$TOP"/scripts/plots/*.gnuplot; do
    name=$(basename "$name" .gnuplot)
    [ ! -f "$TOP/$RESULTS/plots/$name.svg" ] || xmllint --nonet --noout "$TOP/$RESULTS/plots/$name.svg"
  done
}

@test "--check notices a changed result, changed data, a missing and a broken picture" {
  sed -i '2s/,plain,/,plain,1/' "$WORK/results/02_allreduce_sm.mpi.graph.csv"
  script plot.sh --check "$WORK/results"
  exits_with 1
  says 'allreduce.dat differs from'
  cp "$TOP/$RESULTS"/*.csv "$WORK/results"
  script plot.sh --check "$WORK/results"
  exits_with 0
  echo '1 2 3' >>"$WORK/results/plots/alltoallv.dat"
  script plot.sh --check "$WORK/results"
  exits_with 1
  cp -r "$TOP/$RESULTS/plots" "$WORK/results"
  sed -i 's/<\/svg>//' "$WORK/results/plots/allreduce.svg"
  script plot.sh --check "$WORK/results"
  exits_with 1
  rm "$WORK/results/plots/allreduce.svg"
  script plot.sh --check "$WORK/results"
  exits_with 1
  says 'plot.sh: no .*allreduce.svg'
}

@test "blocks: time, quartiles, extremes, rate, ratio; without quartiles the bar has no length" {
  small
  have gnuplot || skip "no gnuplot"
  script plot.sh "$WORK/small"
  exits_with 0
  prints 'small/plots/allreduce.svg$'
  prints '^alltoallv: left out, its files are not in '
  cp "$TOP/results/words-standin/04_sparse_allreduce.standin.ranks2.csv" "$WORK/small"
  script plot.sh "$WORK/small"
  exits_with 0
  prints '^sparse_volume: left out, .*, or only those of one number of ranks$'
  diff - <(sed -n '1,9p' "$WORK/small/plots/allreduce.dat") <<'DATA'
# plain
1024 8 7 9 1 99 10 1.0
4096 8 7 9 1 99 10 1.0


# symmetric
1024 4 3 5 1 99 20 2.0
4096 16 15 17 1 99 20 0.5

DATA
  sed -i 's/us_q1,us_q3/a,b/' "$WORK/small"/*.csv
  script plot.sh "$WORK/small"
  exits_with 0
  [ "$(sed -n 2p "$WORK/small/plots/allreduce.dat")" = "1024 8 8 8 1 99 10 1.0" ]
}

@test "pictures of the sparse AllReduce: speed-up by density, volume" {
  have gnuplot || skip "no gnuplot"
  rm "$WORK"/results/04_*
  for mode in graph density0.05; do
    {
      echo path,mode,count,density,us,us_min,us_max,ratio
      for count in 1048576 14728266; do
        for density in 0.01 0.02; do
          [ $mode = graph ] || density=${mode#density}
          for path in "plain allreduce" topkA gtopk oktopk "oktopk entries"; do
            [ "$count.$path" = 1048576.topkA ] || echo "$path,x,$count,$density,30,29,31,2"
          done
        done
      done
    } >"$WORK/results/04_sparse_allreduce.mpi.$mode.csv"
  done
  cp "$TOP"/results/words-standin/*.csv "$WORK/results"
  for ranks in 2 3 16; do
    printf '%s\n' path,ranks,k,words_sent,paper_words_low,paper_words_high {dense,topkA,gtopk,oktopk,topkSA,gaussiank},$ranks,40,500,80,800 \
      >"$WORK/results/04_sparse_allreduce.mpi.ranks$ranks.csv"
  done
  script plot.sh "$WORK/results"
  exits_with 0
  says_not .
  for words in speedup:'up to 2.0 times as fast as dense AllReduce' speedup:'oktopk entries' speedup:'^5$' speedup:'density in %' speedup:'1.049 million elements' \
    volume:'one of 64 ranks sends .*: dense 197, topkA 126, oktopk 5$' volume:"paper's closed forms" volume:gaussiank; do
    texts "sparse_${words%%:*}" | grep -q -- "${words#*:}" || { echo "no $words" && false; }
  done
  diff <(grep -A 3 '^# oktopk' "$WORK/results/plots/sparse_volume.dat") - <<'DATA'
# oktopk
2 40 500 80 800
3 40 500 80 800
16 40 500 80 800
DATA
}

@test "a new picture is one file that names its data" {
  have gnuplot || skip "no gnuplot"
  mkdir -p "$WORK/suite/scripts/plots"
  cp -r "$TOP"/scripts/{plot.sh,lib} "$WORK/suite/scripts"
  cp "$TOP/scripts/plots/style" "$WORK/suite/scripts/plots"
  cat >"$WORK/suite/scripts/plots/bars.gnuplot" <<'GNUPLOT'
# data: columns 04_x.mpi.eager.csv n density+path+select_us
# size: 400,300
set style data histograms
plot data index "1000" using 3:xtic(2) title "select"
GNUPLOT
  printf 'path,n,density,select_us\nok topk,1000,0.01,5\ndense,1000,1,\ndense,2000,1,1e-3\n' >"$WORK/results/04_x.mpi.eager.csv"
  code=0
  "$WORK/suite/scripts/plot.sh" "$WORK/results" >"$WORK/out" 2>"$WORK/err" || code=$?
  exits_with 0
  diff - "$WORK/results/plots/bars.dat" <<'DATA'
# 1000
0.01 "ok topk" 5
1 "dense" NaN


# 2000
1 "dense" 1e-3


DATA
  grep -q '>.*ok topk' "$WORK/results/plots/bars.svg"
  sed -i 's/select_us/other_us/' "$WORK/results/04_x.mpi.eager.csv"
  code=0
  "$WORK/suite/scripts/plot.sh" "$WORK/results" >"$WORK/out" 2>"$WORK/err" || code=$?
  exits_with 2
  one_line '^plot.sh: .*/04_x.mpi.eager.csv: no column select_us; allowed: a CSV file of --bench$'
  sed -i '2,$d; s/other_us/select_us/' "$WORK/results/04_x.mpi.eager.csv"
  code=0
  "$WORK/suite/scripts/plot.sh" "$WORK/results" >"$WORK/out" 2>"$WORK/err" || code=$?
  prints '^bars: left out, its files are not in .* or have nothing to draw$'
}

@test "pictures are made anew from the results, as SVG and PNG, and show every line" {
  have gnuplot || skip "no gnuplot"
  rm -r "$WORK/results/plots"
  script plot.sh --png "$WORK/results"
  exits_with 0
  says_not .
  for name in allreduce alltoallv; do
    xmllint --nonet --noout "$WORK/results/plots/$name.svg"
    [ "$(head -c 4 "$WORK/results/plots/$name.png" | tail -c 3)" = PNG ]
    cmp "$WORK/results/plots/$name.dat" "$TOP/$RESULTS/plots/$name.dat"
  done
  file=$WORK/results/02_allreduce_sm.mpi.graph.csv
  for words in plain registered symmetric one-shot own "limit: $(limit) GB/s" 'bus bandwidth, GB/s' '1 GiB' \
    "AllReduce of one's own: $(ratio own 1024 %.1f) times as fast as plain AllReduce at 1 KiB, $(ratio own 1073741824 %.2f) times at 1 GiB"; do
    texts allreduce | grep -qx "$words" || { texts allreduce && echo "no $words" && false; }
  done
  texts alltoallv | grep -q '^AlltoAllV in a kernel: 2.[0-9]\( to 2.[0-9]\)\? times as fast as send/recv at 1 KiB, 1.0 times at 1 GiB$'
  # where the numbers come from is text below the picture
  if grep -E 'H200|NCCL_|2026' "$WORK/results/plots"/*.svg; then false; fi
  # a point per size, in both panels, and one in the key
  sizes=$(grep -c ',symmetric,' "$WORK/results/02_allreduce_sm.mpi.graph.csv")
  [ "$(grep -c "xlink:href='#gpPt6'.*color='rgb(  0, 114, 178)'" "$WORK/results/plots/allreduce.svg")" -ge $((2 * sizes + 1)) ]
}

@test "results of two GPUs and of a single size and density are drawn without warnings" {
  have gnuplot || skip "no gnuplot"
  rm -r "$WORK/results/plots"
  script plot.sh "$WORK/results"
  exits_with 0
  says_not .
  prints 'plots/sparse_speedup.svg$'
  sed -i '/^\([su][a-z]*,\)\?1024,\|bytes,/!d' "$WORK/results"/0[123]*.csv
  sed -i '/,0.02,/d' "$WORK/results"/04*.csv
  script plot.sh "$WORK/results"
  exits_with 0
  says_not .
  file=$WORK/results/02_allreduce_sm.mpi.graph.csv
  texts allreduce | grep -qx "AllReduce of one's own: $(ratio own 1024 %.1f) times as fast as plain AllReduce at 1 KiB"
}

@test "columns that newer programs add are drawn, the subject in front; panels of a row have one scale" {
  have gnuplot || skip "no gnuplot"
  small
  for name in own one-shot; do
    sed -n "s/symmetric,\(4\|16\),/$name,2,/p" "$WORK/small/02_allreduce_sm.mpi.graph.csv" | sed 's/,2.0,,0/,4.0,,0/'
  done >"$WORK/more"
  cat "$WORK/more" >>"$WORK/small/02_allreduce_sm.mpi.graph.csv"
  for pattern in uniform skew; do
    for variant in send/recv barrier alltoallv plan 'bare push'; do
      ratio=1
      [ "$variant.$pattern" != alltoallv.skew ] || ratio=8
      echo "$pattern,1024,$variant,8,1,7,9,99,10,$ratio,300"
    done
  done | sed '1i pattern,bytes,variant,us,us_min,us_q1,us_q3,us_max,wire,ratio,limit' >"$WORK/small/03_alltoallv_sm.mpi.graph.csv"
  rm -r "$WORK/results"
  mv "$WORK/small" "$WORK/results"
  script plot.sh "$WORK/results"
  exits_with 0
  says_not .
  texts allreduce | grep -q "^AllReduce of one's own: 4.0 times as fast"
  texts allreduce | grep -qx one-shot
  texts alltoallv | grep -qx barrier
  # the key is in the order of drawing
  [ "$(texts allreduce | grep -xE 'plain|registered|symmetric|one-shot|own' | tail -n 1)" = own ]
  [ "$(texts alltoallv | grep -xE 'send/recv|barrier|bare push|alltoallv' | tail -n 1)" = alltoallv ]
  # the upper panels of both patterns reach to 8
  [ "$(texts alltoallv | grep -cx 8)" = 2 ]
}

@test "the page of a folder: well-formed, alone, with every table and picture" {
  script report.sh --html "$WORK/results"
  exits_with 0
  page=$WORK/results/report.html
  xmllint --nonet --noout "$page"
  "$TOP/tests/links.sh" "$page"
  [ "$(grep -c '<img alt="[a-z_]*" src="data:image/svg+xml;base64,' "$page")" = \
    "$(find "$WORK/results/plots" -name '*.svg' | wc -l)" ]
  cmp "$WORK/results/plots/allreduce.svg" <(sed -n 's/.*<img alt="allreduce".*base64,\([^"]*\)".*/\1/p' "$page" | base64 -d)
  # one per file, but those of other numbers of ranks together, and the headline
  [ "$(grep -c '<table>' "$page")" = $(($(find "$WORK/results" -maxdepth 1 -name '*.csv' ! -name '*.ranks*' | wc -l) + 2)) ]
  number='[0-9.]+'
  grep -qE "<td>1 KiB</td><td>$number / $number</td><td>$number / $number / ${number}x</td><td>0</td>" "$page"
  grep -q '^topology: ' "$page"
  ids=$(grep -oE "\bid=[\"'][^\"']*" "$page" | tr '"' "'" | sort)
  [ -z "$(uniq -d <<<"$ids")" ] || { uniq -d <<<"$ids" && false; }
  ! grep -qiE '<script|<link|<svg|https?://[^"]*\.(js|css)' "$page" || false
}

@test "the page of a folder: names of files and what is in pictures cannot become part of it" {
  small
  mkdir "$WORK/small/plots"
  echo '<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"><script>alert(1)</script></svg>' \
    >"$WORK/small/plots/x\" onload=\"y & z.svg"
  printf '%s\n' 'a,b' '1,<b>' >"$WORK/small/<img onerror='alert(1)'>.csv"
  echo 'a,b' >"$WORK/small/<script>.csv"
  script report.sh --html "$WORK/small"
  exits_with 0
  xmllint --nonet --noout "$WORK/small/report.html"
  grep -qF '<img alt="x&quot; onload=&quot;y &amp; z" src="data:image/svg+xml;base64,' "$WORK/small/report.html"
  grep -qF '<h2>&lt;img onerror=' "$WORK/small/report.html"
  grep -qF 'no time in them: &lt;script&gt;.csv.' "$WORK/small/report.html"
  if grep -E '<svg|<script|<img onerror|" onload' "$WORK/small/report.html"; then false; fi
}

@test "the page in a browser: everything is drawn, nothing is fetched" {
  for browser in chromium-headless-shell chromium google-chrome chromium-browser; do have $browser && break; done
  have "$browser" || skip "no browser"
  script report.sh --html "$WORK/results"
  cat "$WORK/results/report.html" - >"$WORK/page.html" <<'HTML'
<script>
addEventListener("load", () => {
  const drawn = [...document.querySelectorAll("img, table, h2")].filter(e => e.naturalWidth !== 0);
  document.title = drawn.map(e => e.getBoundingClientRect()).filter(r => r.width > 50 && r.height > 5).length +
    " drawn, " + performance.getEntriesByType("resource").filter(e => !e.name.startsWith("data:")).length + " fetched";
});
</script>
HTML
  timeout 60 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$WORK/profile" --dump-dom \
    "file://$WORK/page.html" >"$WORK/out" 2>"$WORK/err" || skip "the browser does not start here"
  things=$(grep -oE '<img |<table>|<h2>' "$WORK/results/report.html" | wc -l)
  [ "$things" -gt 10 ]
  grep -q "<title>$things drawn, 0 fetched</title>" "$WORK/out" || { grep '<title>' "$WORK/out" && false; }
}

@test "folders with odd names are drawn, and nothing in them is taken for a command" {
  have gnuplot || skip "no gnuplot"
  small
  # words of a CSV file stand in commands that gnuplot gives to a shell
  odd="it's\"\$(touch pwned)\"';touch pwned;'"
  printf '%s\n' path,count,density,ratio,us,us_min,us_max,wrong "oktopk,1000,0.0"{1,2}",2,8,7,9,0" "oktopk,1$odd,0.1$odd,2,8,7,9,0" \
    >"$WORK/small/04_sparse_allreduce.mpi.graph.csv"
  printf '%s\n' pattern,variant,bytes,us,us_min,us_max,wire,ratio,wrong "${odd//[$' \t\n']/},"{send/recv,alltoallv}",1024,8,7,9,1,1,0" \
    >"$WORK/small/03_alltoallv_sm.mpi.graph.csv"
  cd "$WORK"
  for name in a=b "x'; system 'touch pwned'; y='" 'br[ack]et* back\slash "q" `touch pwned` $(touch pwned)'; do
    mv -T small "$name"
    script plot.sh "$name"
    exits_with 0
    prints 'plots/allreduce.svg$'
    prints 'plots/sparse_speedup.svg$'
    grep -q '>.*it_s' "$name/plots/alltoallv.svg"
    [ -z "$(find . -name pwned)" ]
    script plot.sh --check "$name"
    exits_with 0
    script report.sh --html "$name"
    exits_with 0
    [ "$(grep -c '<img alt=' "$name/report.html")" = 3 ]
    mv -T "$name" small
    rm -r small/plots
  done
}

@test "a column that is missing is refused, and nothing is drawn; a file without times is left out" {
  have gnuplot || skip "no gnuplot"
  small
  file=$WORK/small/02_allreduce_sm.mpi.graph.csv
  cp "$file" "$WORK/good"
  for name in bytes variant us us_min us_max busbw ratio; do
    sed -i "1s/\<$name\>/other/" "$file"
    script plot.sh "$WORK/small"
    exits_with 2
    one_line "^plot.sh: .*/02_allreduce_sm.mpi.graph.csv: no column $name; allowed: a CSV file of --bench$"
    [ ! -e "$WORK/small/plots/allreduce.svg" ]
    cp "$WORK/good" "$file"
  done
  echo 1024,256 >>"$file"
  script plot.sh "$WORK/small"
  exits_with 2
  one_line '^plot.sh: .*/02_allreduce_sm.mpi.graph.csv:7: 2 fields, the header has 16; allowed: a CSV file of --bench$'
  head -n 1 "$WORK/good" >"$file"
  for us in '' nan 0 inf; do
    echo "1024,256,float,4,1,plain,$us,1,7,9,99,0.1,10,1.0,,0" >>"$file"
    script plot.sh "$WORK/small"
    exits_with 1
    prints '^allreduce: left out, its files are not in .*/small or have nothing to draw$'
    one_line '^plot.sh: nothing to draw in '
  done
}

@test "a picture that cannot be written leaves the old ones" {
  have gnuplot || skip "no gnuplot"
  small
  mkdir "$WORK/small/plots"
  echo old | tee "$WORK/small/plots/allreduce.dat" >"$WORK/small/plots/allreduce.svg"
  full_disk '*.svg.*.new'
  PATH=$WORK/bin:$PATH script plot.sh "$WORK/small"
  exits_with 1
  says 'allreduce.svg.*.new: No space left on device$'
  prints_not 'allreduce.svg$'
  [ "$(cat "$WORK/small/plots"/*)" = $'old\nold' ]
}

@test "links that lead nowhere are found" {
  mkdir "$WORK/pages"
  printf '[a](b.md) [site](https://example.org/x) [part](#part)\n```\n[code](nothing)\n```\n' >"$WORK/pages/a.md"
  if "$TOP/tests/links.sh" "$WORK/pages/a.md" >"$WORK/out"; then false; fi
  grep -qx ".*/a.md: 'b.md' leads nowhere" "$WORK/out"
  touch "$WORK/pages/b.md"
  "$TOP/tests/links.sh" "$WORK/pages/a.md"
  for wrong in '<a href="#nothing">x</a>' '<img src="picture.png"/>' '<p style="background: url(https://example.org/x)">'; do
    echo "$wrong" >"$WORK/pages/c.html"
    if "$TOP/tests/links.sh" "$WORK/pages/c.html"; then false; fi
  done
}

@test "wrong arguments and results of the stand-in are exit code 2" {
  echo 'stand-in: yes' >"$WORK/results/provenance.txt"
  for name in plot.sh report.sh; do
    for arguments in "" "$WORK/nothing" "a b" "--nonsense a" "$WORK/results"; do
      # shellcheck disable=SC2086
      script $name $arguments
      exits_with 2
      prints_nothing
      one_line "^$name: "
    done
    script $name --help
    exits_with 0
    prints "scripts/$name"
  done
  script report.sh "$WORK/results"
  one_line 'has no times'
}
