# SPDX-License-Identifier: Apache-2.0
# Sparse AllReduce: how many times as fast as dense, by path, against the density; a panel per size.
# data: columns 04_sparse_allreduce.mpi.[gd]*.csv path count+density+ratio+us+us_min+us_max
# caption: Mean time of dense AllReduce / mean time of a step of a path of 04, which includes selecting, one process per GPU, in CUDA graphs. Dense is the fastest AllReduce there was in that run. "entries" leave out the dense result. Dots are the extremes.
# size: 800,440
all = "'topkAopt' 'gtopk' 'topkSA' 'gaussiank' 'topkA' 'oktopk entries' 'oktopk'" # the last one in front
eval those_of(all, "")
line(name) = place(name, "'oktopk' 'topkA' 'gaussiank' 'topkSA' 'gtopk' 'topkAopt' 'oktopk entries'")
timed = "awk 'NF == 6 && $4 != \"NaN\" && /^[0-9]/"
counts = system(timed . " { print $1 }' \"$DATA\" | sort -gu | tail -n 3 | tr '\n' ' '")
densities(count) = system(timed . sprintf(" && $1 == %s { print $2 }' \"$DATA\" | sort -gu | tr '\n' ' '", count))
fastest = real(system(timed . " && $3 > m { m = $3 } END { print m + 0 }' \"$DATA\""))
rows(name, count) = sprintf("awk '/^#/ { on = $0 == \"# %s\" } on && $1 == %s && $4 != \"NaN\"' \"$DATA\" | sort -g -k 2 -u", name, count)
best = real(system("awk '/^#/ { on = $0 == \"# oktopk\" } on && $4 != \"NaN\" && $3 > m { m = $3 } END { print m + 0 }' \"$DATA\""))
message = best > 0 ? sprintf("A step of oktopk is up to %.1f times as fast as dense AllReduce", best) : "A sparse AllReduce beside dense"
set multiplot title heading(message, "times as fast as dense, against the density in %: the part of the elements that is to be selected") font ",15"
eval key_at(0.822)
plot NaN with linespoints linetype 8 title "dense", for [name in present] NaN with linespoints linetype line(name) title name
eval panels
set logscale x
set yrange [0:fastest * 1.1]
do for [i = 1:words(counts)] {
  count = word(counts, i)
  here = densities(count)
  set xrange [real(word(here, 1)) / 1.5:real(word(here, words(here))) * 1.5]
  unset xtics
  set xtics nomirror ()
  do for [density in here] { set xtics add (sprintf("%g", 100 * real(density)) real(density)) }
  eval column_of(i, words(counts), 0.09, 0.685)
  set title sprintf("%.4g million elements", count / 1e6) font ",13"
  here = ""
  do for [name in present] { if (strlen(system(rows(name, count)))) { here = here . " '" . name . "'" } }
  plot 1 with lines linetype 8, \
    for [name in here] "<" . rows(name, count) using 2:3 with linespoints linetype line(name), \
    for [name in here] "<" . rows(name, count) using 2:($3*$4/$6) with points linetype line(name) pointtype 7 pointsize 0.4, \
    for [name in here] "<" . rows(name, count) using 2:($3*$4/$5) with points linetype line(name) pointtype 7 pointsize 0.4
}
unset multiplot
