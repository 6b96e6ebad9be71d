# SPDX-License-Identifier: Apache-2.0
# Sparse AllReduce: how many times faster than dense, against the size of the gradient and the density.
# data: columns 04_sparse_allreduce.mpi.[gd]*.csv path count+density+ratio+us+us_min+us_max
# size: 960,460
eval footer
paths = system("sed -n '/allreduce$/d; s/^# //p' \"$DATA\" | tr '\\n' ' '") # those that were measured
# the size with the most densities
size = system("awk 'NF == 6 { seen[$1 \" \" $2]++ } END { for (s in seen) { split(s, f, \" \"); n[f[1]]++ } for (c in n) print n[c], c }' \"$DATA\" | sort -n | tail -n 1 | cut -d' ' -f2")
set datafile missing NaN
set logscale x
set yrange [0:*]
set ylabel "times faster than dense"
set multiplot layout 1,2 title "Sparse AllReduce, one process per GPU" font ",15"
set tmargin 3
set bmargin 5

set key top left
set title "density 1 %"
set xlabel "elements of the gradient"
set format x "%.0s%c"
plot for [path in paths] data index path \
    using ($2 == 0.01 ? $1 : NaN):3:($3*$4/$6):($3*$4/$5) with yerrorlines title path, \
  1 linestyle 100 title "dense"

unset label 1
set title sprintf("%s elements", size)
set xlabel "density"
set format x "%g"
plot for [path in paths] "<awk '/^#/ { on = $2 == \"".path."\" } on && $1 == ".size." { print }' \"$DATA\" | sort -g -k 2 -u" \
    using 2:3:($3*$4/$6):($3*$4/$5) with yerrorlines notitle, \
  1 linestyle 100 notitle
unset multiplot
