# SPDX-License-Identifier: Apache-2.0
# Sparse AllReduce: the parts of a step as stacked bars, beside AllReduce of the whole gradient.
# data: columns 04_sparse_allreduce.mpi.graph.csv count+density path+select+exchange+reduce+gather+apply+us+us_min+us_max
# size: 960,520
eval footer
sizes = system("sed -n 's,^# ,,p' \"$DATA\" | sort -n | awk '{ last[$1] = $0 } END { for (n in last) print last[n] }' | sort -n | tail -n 3 | tr ' \\n' '_ '")
set style data histograms
set style histogram rowstacked
set boxwidth 0.75
set grid noxtics
set xtics rotate by -45 noenhanced font ",10"
set yrange [0:*]
set key top right noreverse Right samplen 2 spacing 0.9 font ",10"
set offsets 0, 0, graph 0.45, 0 # room for the key
set multiplot layout 1,words(sizes) title "Sparse AllReduce: where the time of a step goes" font ",15"
set tmargin 3
set bmargin 8
do for [i=1:words(sizes)] {
  size = word(sizes, i)
  split = strstrt(size, "_")
  block = size[1:split-1]." ".size[split+1:*]
  set title sprintf("%s elements, density %s", size[1:split-1], size[split+1:*])
  if (i == 1) { set ylabel "us" } else { unset ylabel; unset label 1; unset key }
  # what has no parts, AllReduce itself, is one bar
  plot for [part=2:6] data index block using (valid(part) ? column(part) : 0):xtic(1) \
      fillstyle pattern part border title word("select exchange reduce gather apply", part - 1), \
    "" index block using (valid(2) ? 0 : column(7)):xtic(1) fillstyle solid 0.4 border title "whole gradient", \
    "" index block using 0:7:8:9 with yerrorbars pointtype 2 linecolor rgb "#000000" title "mean of a cycle"
}
unset multiplot
