# SPDX-License-Identifier: Apache-2.0
# AlltoAllV: how many times as fast as send/recv, and wire bandwidth, a column of panels per pattern.
# data: lines 03_alltoallv_sm.mpi.graph.csv pattern+variant
# data: limit
# caption: AlltoAllV of 03, one process per GPU, in a CUDA graph. uniform: all parts are equal; skew: far ranks get more than near ones; unaligned: parts begin at any element. Above: time of NCCL's send/recv / time; below: wire bandwidth. "bare push" are the stores of the kernel without any protocol, which nobody may use. A plan runs the same kernel and is in the tables. Points are medians, bars quartiles, dots the extremes. The limit is what the copy engines move between all pairs at once.
# size: 800,560
patterns = system("sed -n 's,^# \\([^ ]*\\) send/recv$,\\1,p' \"$DATA\"") # of these results
sample = word(patterns, 1)
stats data index sample." send/recv" using 1 name "size" nooutput
methods = "'bare push' 'device counts' 'barrier' 'alltoallv'"
line(name) = place(name, "alltoallv barrier 'device counts' 'bare push'")
least(at) = system(sprintf("awk '/^#/ { on = /^# [^ ]* alltoallv$/ } on && $1 == %.0f { print $8 }' \"$DATA\" | sort -g | head -n 1", at))
most(at) = system(sprintf("awk '/^#/ { on = /^# [^ ]* alltoallv$/ } on && $1 == %.0f { print $8 }' \"$DATA\" | sort -g | tail -n 1", at))
range(at) = sprintf("%.1f", real(least(at))) eq sprintf("%.1f", real(most(at))) ? sprintf("%.1f", real(least(at))) \
  : sprintf("%.1f to %.1f", real(least(at)), real(most(at)))
message = "AlltoAllV in a kernel: " . range(size_min) . " times as fast as send/recv at " . size(size_min) . \
  (size_max > size_min ? ", " . range(size_max) . " times at " . size(size_max) : "")
# one scale for all panels of a row
fastest = real(system("awk '$8 > m && NF == 8 { m = $8 } END { print m }' \"$DATA\"")) * 1.1
widest = real(system("awk '$7 > m && NF == 8 { m = $7 } END { print m }' \"$DATA\"")) * 1.1
set multiplot title heading(message, "above: times as fast as send/recv; below: wire bandwidth, GB/s") font ",15"
eval key_at(0.868)
eval those_of(methods, sample . " ")
plot NaN with linespoints linetype 8 title "send/recv", for [name in present] NaN with linespoints linetype line(name) title name
eval panels
eval sizes(1024)

block(name) = pattern . " " . name
do for [i = 1:words(patterns)] {
  pattern = word(patterns, i)
  eval those_of(methods, pattern . " ")
  eval column_of(i, words(patterns), 0.49, 0.76)
  set title pattern . ", times as fast" noenhanced font ",13"
  set yrange [0:fastest]
  unset label 1
  unset arrow 1
  plot data index block("send/recv") using 1:8 with linespoints linetype 8, \
    for [name in present] data index block(name) using 1:8:($8*$2/$4):($8*$2/$3) with yerrorlines linetype line(name), \
    for [name in present] data index block(name) using 1:($8*$2/$6) with points linetype line(name) pointtype 7 pointsize 0.4, \
    for [name in present] data index block(name) using 1:($8*$2/$5) with points linetype line(name) pointtype 7 pointsize 0.4

  eval column_of(i, words(patterns), 0.06, 0.35)
  set title pattern . ", GB/s" noenhanced font ",13"
  set yrange [0:widest]
  eval limit_line
  plot data index block("send/recv") using 1:7 with linespoints linetype 8, \
    for [name in present] data index block(name) using 1:7:($7*$2/$4):($7*$2/$3) with yerrorlines linetype line(name)
}
unset multiplot
