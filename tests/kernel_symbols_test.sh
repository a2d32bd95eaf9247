#!/usr/bin/env bash
# No inline function that was compiled for the host's processor is offered to other code, and none runs before main().
#   kernel_symbols_test.sh NM OBJECTS_OF_KERNELS OTHER_OBJECTS   (separated by ";")
set -euo pipefail
nm=$1
IFS=';' read -ra objects <<<"$2"
failures=0
for object in "${objects[@]}"; do
  shared=$("$nm" "$object" | awk '(($2 == "W" && $3 !~ /^_ZNK?5rondo3cpu/) || ($2 == "V" && $3 ~ /^_ZT[VTC]/)) && $3 !~ /\.kernel$/ { print "  " $3 }' | head -3)
  if [ -n "$shared" ]; then printf '%s shares\n%s\n' "$object" "$shared"; failures=$((failures + 1)); fi
  start=$("$nm" "$object" | awk '$3 ~ /^_GLOBAL__sub_I/ { print $3 }')
  if [ -n "$start" ]; then echo "$object runs $start before main()"; failures=$((failures + 1)); fi
done
[ ${#objects[@]} -gt 30 ] || { echo "only ${#objects[@]} objects of kernels"; exit 1; }
# Namespace rondo::cpu is kernel code; others may not instantiate it.
IFS=';' read -ra objects_of_others <<<"$3"
[ ${#objects_of_others[@]} -gt 60 ] || { echo "only ${#objects_of_others[@]} other objects"; exit 1; }
for object in "${objects_of_others[@]}"; do
  kernels=$("$nm" "$object" | awk '$2 == "W" && $3 ~ /^_ZNK?5rondo3cpu/ { print "  " $3 }' | head -3)
  if [ -n "$kernels" ]; then printf '%s has kernel code\n%s\n' "$object" "$kernels"; failures=$((failures + 1)); fi
done
echo "${#objects[@]} objects of kernels, $failures at fault"
[ $failures = 0 ]
