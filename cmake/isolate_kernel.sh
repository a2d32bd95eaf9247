#!/bin/sh
# Compiles a kernel source, then renames the inline functions and vtables that the object defines.
#   isolate_kernel.sh NM OBJCOPY [ccache] COMPILER ARGUMENTS...
# Inline functions are weak symbols: a linker keeps one definition for a whole program, whichever comes first. Those of
# kernels hold instructions that only RONDO_CPU has, so other code must never be given them.
set -e
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
# Namespace rondo::cpu is left alone: nothing but kernels uses it, and some of its templates are called across files.
# W: functions; V: data, of which only vtables point at functions; n: the group of a constructor's or destructor's variants.
# A class whose members this object defines is this object's: others have no vtable of it and refer to the one here.
"$nm" "$object" | awk '
  $2 == "T" { defined[$3] }
  ($2 == "W" && $3 !~ /^_ZNK?5rondo3cpu/) || ($2 == "n" && $3 ~ /[CD]5/) { print $3, $3 ".kernel" }
  $2 == "V" && $3 ~ /^_ZT[VTC]/ { vtables[$3] }
  END {
    for (vtable in vtables) {
      class = substr(vtable, 5)
      if (class ~ /^N/) class = substr(class, 2, length(class) - 2)
      own = 0
      for (f in defined) if (index(f, "_ZN" class) == 1 || index(f, "_ZNK" class) == 1) own = 1
      if (!own) print vtable, vtable ".kernel"
    }
  }' >"$object.weak"
"$objcopy" --redefine-syms="$object.weak" "$object" || { rm -f "$object"; exit 1; }
