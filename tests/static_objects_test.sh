#!/usr/bin/env bash
# No object that the library makes once is destroyed when the process ends: a region may run after main(), and would read
# what is left of the object. Write `static const T& name = *new T(...)`.
#   static_objects_test.sh NM OBJECTS   (separated by "|")
set -euo pipefail
objdump=${1%nm}objdump
mapfile -t objects < <(tr '|' '\n' <<<"$2" | grep .)
[ ${#objects[@]} -gt 20 ] || { echo "only ${#objects[@]} objects"; exit 1; }
# An object with a destructor is registered by __cxa_atexit. That of <iostream> is allowed in each unit, and the end of the
# pool of threads, which parallel_for() makes.
failures=0
for object in "${objects[@]}"; do
  [ "$("$objdump" -r "$object" | grep -c __cxa_atexit || true)" -gt 1 ] ||
    [ "$("$objdump" -r "$object" | grep -c 'ios_base4InitC1' || true)" = 0 ] || continue
  destroyed=$("$objdump" -dr --no-show-raw-insn -C "$object" | awk '/^[0-9a-f]+ </ { f = substr($0, 18) }
    /R_[A-Z0-9_]*_[A-Z0-9]+.*__cxa_atexit/ { if (f !~ /parallel_for/ && (f !~ /_GLOBAL__sub_I_|__cxx_global_var_init/ || seen[f]++)) print "  in " f }')
  if [ -n "$destroyed" ]; then printf '%s destroys objects at the end\n%s\n' "$object" "$destroyed"; failures=$((failures + 1)); fi
done
echo "${#objects[@]} objects, $failures at fault"
[ $failures = 0 ]
