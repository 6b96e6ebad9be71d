# SPDX-License-Identifier: Apache-2.0
# AllReduce: time and bus bandwidth against size, on plain, registered and symmetric memory.
# data: lines 02_allreduce_sm.mpi.graph.csv variant
# data: crossover 02_allreduce_sm.mpi.graph.csv symmetric
# data: lines 01_allreduce_ub.mpi.graph.csv variant
# data: limit
# size: 960,460
stats data index "plain" using 1 name "size" nooutput
eval sizes
eval footer
memory = "plain registered symmetric"
set multiplot layout 1,2 title "AllReduce, one process per GPU, in a CUDA graph" font ",15"
set tmargin 3
set bmargin 5

set logscale y
set ylabel "time of a call, us"
plot for [name in memory] data index name using 1:2:3:4 with yerrorlines title name, \
  data index "crossover" using 1:2 with points pointtype 6 pointsize 1.6 linecolor rgb "#000000" \
    title "symmetric = plain"

unset label 1
unset logscale y
set yrange [0:*]
set ylabel "bus bandwidth, GB/s"
plot for [name in memory] data index name using 1:5:6:7 with yerrorlines title name, \
  data index "limit" using (size_min):1:(size_max - size_min):(0) with vectors nohead linestyle 100 \
    title "limit: copy engines, all pairs"
unset multiplot
