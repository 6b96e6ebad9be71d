# SPDX-License-Identifier: Apache-2.0
# AllReduce: how many times as fast as on plain memory, and bus bandwidth, against size.
# data: lines 02_allreduce_sm.mpi.graph.csv variant
# data: lines 01_allreduce_ub.mpi.graph.csv variant
# data: limit
# caption: AllReduce of 02 (registered: of 01), one process per GPU, in a CUDA graph. Left: time on plain memory / time; right: bus bandwidth. Points are medians, bars quartiles where they were recorded, dots the extremes. The limit is what the copy engines move between all pairs at once.
# size: 800,400
stats data index "plain" using 1 name "size" nooutput
methods = "registered barrier lines symmetric direct"
eval those_of(methods, "")
subject = has("direct") ? "direct" : "symmetric"
line(name) = name eq subject ? 1 : place(name, "subject registered barrier lines symmetric")
message = "AllReduce by the memory of its buffers"
if (has(subject)) {
  stats data index subject using 1 name "timed" nooutput
  message = (subject eq "direct" ? "Direct AllReduce" : "Symmetric memory") . \
    sprintf(": %.1f times as fast as plain AllReduce at %s", number_at(subject, timed_min, 8), size(timed_min)) . \
    (timed_max > timed_min ? sprintf(", %.2f times at %s", number_at(subject, timed_max, 8), size(timed_max)) : "")
}
set multiplot title heading(message, "plain, registered and symmetric are NCCL's AllReduce by the memory of its buffers") font ",15"
eval key_at(0.835)
plot NaN with linespoints linetype 8 title "plain", for [name in present] NaN with linespoints linetype line(name) title name
eval panels
eval sizes(32)

eval column_of(1, 2, 0.09, 0.67)
set title "times as fast as plain" font ",13"
set yrange [0:*]
plot data index "plain" using 1:8 with linespoints linetype 8, \
  for [name in present] data index name using 1:8:($8*$2/$4):($8*$2/$3) with yerrorlines linetype line(name), \
  for [name in present] data index name using 1:($8*$2/$6) with points linetype line(name) pointtype 7 pointsize 0.4, \
  for [name in present] data index name using 1:($8*$2/$5) with points linetype line(name) pointtype 7 pointsize 0.4

eval column_of(2, 2, 0.09, 0.67)
set title "bus bandwidth, GB/s" font ",13"
eval limit_line
plot data index "plain" using 1:7 with linespoints linetype 8, \
  for [name in present] data index name using 1:7:($7*$2/$4):($7*$2/$3) with yerrorlines linetype line(name)
unset multiplot
