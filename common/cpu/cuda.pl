# SPDX-License-Identifier: Apache-2.0
# Compiles a .cu file for the stand-in, by a C++ compiler: preprocesses it, rewrites what is no C++ (kernel.c says what
# happens then), and compiles the rest. Line numbers stay.
#
#   perl cuda.pl g++ [FLAGS...] -c FILE.cu -o FILE.o
use strict;
use warnings;
use File::Basename;

my $headers = dirname(__FILE__);
$headers .= '/include' if -d "$headers/include";
my @flags = ('-std=c++17', '-fno-strict-aliasing', '-fPIC', '-Wno-psabi', '-DCPU_STANDIN', '-pthread',
  '-isystem', $headers);
my ($source, $object, @given, @dependencies);
my @words = @ARGV;
while (defined(my $word = shift @words)) {
  if ($word =~ /\.cu$/) { $source = $word }
  elsif ($word eq '-o') { $object = shift @words }
  elsif ($word =~ /^-M[FT]$/) { push @dependencies, $word, shift @words }
  elsif ($word =~ /^-M/) { push @dependencies, $word }
  elsif ($word ne '-c') { push @given, $word }
}
die "usage: perl cuda.pl g++ [FLAGS...] -c FILE.cu -o FILE.o\n" if !defined $source || !defined $object || !@given;
my @compiler = (shift @given);
push @compiler, shift @given while @given && $given[0] !~ /^-/; # ccache g++

open(my $preprocessed, '-|', @compiler, @flags, @given, @dependencies, '-include', 'cuda_kernels.h', '-E', '-x', 'c++', $source) or die;
my $text = do { local $/; <$preprocessed> };
close($preprocessed) or exit 1;

# kernel<<<grid>>>(  ->  cpu_kernel(function, grid)(
$text =~ s/([A-Za-z_]\w*(?:<[^<>;{}]*>)?)\s*<<<(.*?)>>>\s*\(/cpu_kernel([](const auto &... cpu_arguments) { $1(cpu_arguments...); }, $2)(/gs;
# words that C++ lacks, or does not need
$text =~ s/\b__constant__\b//g;
$text =~ s/\b__align__\b/alignas/g;
$text =~ s/\b__ldg\b/*/g; # __ldg(pointer)
# NULL keeps the type of a pointer on its way through a launch
$text =~ s/\b__null\b/nullptr/g;

# extern __shared__ T name[];  and  __shared__ T name[N];
my $n = 0;
$text =~ s/\bextern\s+__shared__\s+([^;()]*?)\b(\w+)\s*\[\s*\]\s*;/$1*$2 = ($1*)cpu_dynamic_shared;/g;
$text =~ s/\b__shared__\s+([^;]*?)\b(\w+)((?:\s*\[[^;]*\])?)\s*;/$n++;
  "struct cpu_shared_$n { $1$2$3; }; static char cpu_key_$n; auto &$2 = ((cpu_shared_$n *)cpu_shared(&cpu_key_$n, sizeof(cpu_shared_$n)))->$2;"/ge;

# while (...) continue;  waits: others have to run
$text =~ s/\b(while\s*\([^;{}]*\))(\s*)continue\s*;/$1$2cpu_loop();/g;

# asm volatile("instruction" : outputs : inputs : clobbers);  ->  ptx_instruction(outputs, inputs);
sub ptx {
  my ($code, $rest) = @_;
  my $lines = ($code . $rest) =~ tr/\n//;
  s/^#.*\n//mg for $code, $rest;
  $code =~ s/"\s*"//g;
  $code =~ s/\\[nt]/ /g;
  my ($name) = $code =~ /((?:st|ld|red|atom|griddepcontrol|fence|bar|prefetch|createpolicy|cp)\.[\w.:]+|mov\.u64[^;]*%%\w+)/;
  die "$source: cuda.pl does not know this PTX: $code\n" if !defined $name;
  $name =~ s/ %\d, %%/__/;
  $name =~ s/\.(gpu|sys)\b//; # the scope: here all see the same
  $name =~ s/^ld\.acquire/ld.relaxed/; # all loads acquire
  $name =~ s/[.:]+/_/g;
  my @operands = $rest =~ /"[^"]*"\s*(\((?:[^()]++|(?1))*\))/g; # "=l"(x)
  s/^\((.*)\)$/$1/s for @operands;
  return "ptx_$name(" . join(', ', map { s/\n/ /gr } @operands) . ");" . "\n" x $lines;
}
$text =~ s/\basm\s+volatile\s*\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)([^;]*)\)\s*;/ptx($1, $2)/ge;

(my $written = $object) =~ s/(\.o)?$/.ii/;
open(my $file, '>', $written) or die "$written: $!\n";
print $file $text;
close($file) or die "$written: $!\n";
# clang complains of folders of headers, which nobody needs any more
my $folder = 0;
my @late = grep { my $drop = $folder || /^-(I|isystem$)/; $folder = /^-(I|isystem)$/; !$drop } @flags, @given;
exec @compiler, @late, '-x', 'c++-cpp-output', '-c', '-o', $object, $written;
