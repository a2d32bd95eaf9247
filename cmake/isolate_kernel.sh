#!/bin/sh
# Compiles a kernel source, then renames the inline functions and vtables that the object defines.
#   isolate_kernel.sh NM OBJCOPY [ccache] COMPILER ARGUMENTS...
#   isolate_kernel.sh NM --list OBJECT           what it would rename
# Inline functions are weak symbols: a linker keeps one definition for a whole program, whichever comes first. Those of
# kernels hold instructions that only RONDO_CPU has, so other code must never be given them.
set -e
# Namespace rondo::cpu is left alone: nothing but kernels uses it, and some of its templates are called across files.
# nm's letters: W is a function, n a group of constructors or destructors, V is data. The only V that points at functions
# is a vtable. If the object defines strong members of a class, no other file has the vtable, and it keeps its name.
list() {
  "$1" "$2" | awk '
    $2 == "T" { strong = strong "\n" $3 }
    $3 ~ /\.kernel$/ { next }
    ($2 == "W" && $3 !~ /^_ZNK?5rondo3cpu/) || ($2 == "n" && $3 ~ /[CD]5/) { print $3 }
    $2 == "V" && $3 ~ /^_ZT[VTC]/ { tables[$3] = 1 }
    END {
      for (table in tables) {
        class = substr(table, 5)
        if (class ~ /^N/) class = substr(class, 2, length(class) - 2)
        if (!index(strong, "\n_ZN" class) && !index(strong, "\n_ZNK" class)) print table
      }
    }'
}
if [ "$2" = --list ]; then
  list "$1" "$3"
  exit
fi
nm=$1 objcopy=$2
shift 2
"$@"
object=
while [ $# -gt 1 ]; do
  if [ "$1" = -o ]; then object=$2; fi
  shift
done
case $object in *.o) ;; *) exit 0 ;; esac
trap 'rm -f "$object.weak"' EXIT
trap 'rm -f "$object"; exit 1' HUP INT TERM
list "$nm" "$object" | sed 's/.*/& &.kernel/' >"$object.weak"
"$objcopy" --redefine-syms="$object.weak" "$object" || { rm -f "$object"; exit 1; }
