# SPDX-License-Identifier: Apache-2.0
# AlltoAllV: time and wire bandwidth by method, a row of panels per pattern.
# data: lines 03_alltoallv_sm.mpi.graph.csv pattern+variant
# data: limit
# size: 960,1000
stats data index "uniform" using 1 name "size" nooutput
eval sizes
eval footer
methods = "'send/recv' 'alltoallv' 'device counts' 'plan' 'bare push'"
patterns = system("sed -n 's,^# \\([^ ]*\\) send/recv$,\\1,p' \"$DATA\"") # of these results
set multiplot layout words(patterns),2 title "AlltoAllV, one process per GPU, in a CUDA graph" font ",15"
set tmargin 3
set bmargin 5
do for [pattern in patterns] {
  set title pattern
  set logscale y
  set yrange [*:*]
  set ylabel "time of an exchange, us"
  plot for [name in methods] data index pattern." ".name using 1:2:3:4 with yerrorlines title name

  unset label 1
  unset logscale y
  set yrange [0:*]
  set ylabel "wire bandwidth, GB/s"
  plot for [name in methods] data index pattern." ".name using 1:5:6:7 with yerrorlines notitle, \
    data index "limit" using (size_min):1:(size_max - size_min):(0) with vectors nohead linestyle 100 \
      title "limit: copy engines, all pairs"
}
unset multiplot
