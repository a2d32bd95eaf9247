#!/usr/bin/env bash
# No inline function that was compiled for the host's processor is offered to other code, and none runs before main().
#   kernel_symbols_test.sh NM OBJECTS_OF_KERNELS OTHER_OBJECTS   (separated by "|")
set -euo pipefail
nm=$1 here=$(cd "$(dirname "$0")" && pwd)
IFS='|' read -ra objects <<<"$2"
failures=0
for object in "${objects[@]}"; do
  shared=$("$here/../cmake/isolate_kernel.sh" "$nm" --list "$object" | sed -n 1,3p)
  if [ -n "$shared" ]; then printf '%s shares\n%s\n' "$object" "$shared"; failures=$((failures + 1)); fi
  # Constructors of globals: <iostream> has one, which may only be of instructions that every processor has.
  start=$("${nm%nm}objdump" -d --no-show-raw-insn -j .text.startup "$object" 2>/dev/null | grep -E '%[yz]mm|^ .*\sv[a-z]' | sed -n 1p || true)
  if [ -n "$start" ]; then echo "$object runs before main(): $start"; failures=$((failures + 1)); fi
done
[ ${#objects[@]} -gt 5 ] || { echo "only ${#objects[@]} objects of kernels"; exit 1; }
# Namespace rondo::cpu is kernel code; others may not instantiate it.
IFS='|' read -ra objects_of_others <<<"$3"
[ ${#objects_of_others[@]} -gt 20 ] || { echo "only ${#objects_of_others[@]} other objects"; exit 1; }
for object in "${objects_of_others[@]}"; do
  kernels=$("$nm" "$object" | awk '$2 == "W" && $3 ~ /^_ZNK?5rondo3cpu/ { print "  " $3 }' | sed -n 1,3p)
  if [ -n "$kernels" ]; then printf '%s has kernel code\n%s\n' "$object" "$kernels"; failures=$((failures + 1)); fi
done
echo "${#objects[@]} objects of kernels, $failures at fault"
[ $failures = 0 ]
