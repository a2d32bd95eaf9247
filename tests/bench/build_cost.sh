#!/usr/bin/env bash
# What building costs in CPU seconds, without a compiler cache: this checkout beside another one.
#   tests/bench/build_cost.sh OTHER_CHECKOUT [TARGET ...]       TARGET: rondo_dist (the library), all (with the tests), train_gpt;
#                                                              short_tests:all compares ours with another target of the other
# Then a user's file that includes two headers or all of them (g++ -O2 -c, median of 5).
set -euo pipefail
ours=$(cd "$(dirname "$0")/../.." && pwd)
other=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- rondo_dist
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CCACHE_DISABLE=1
seconds() { /usr/bin/time -f '%U %S' -o "$work/time" "$@" >"$work/log" 2>&1 || { tail "$work/log"; exit 1; }; awk '{ print $1 + $2 }' "$work/time"; }
ratio() { awk -v a="$1" -v b="$2" -v what="$3" 'BEGIN { printf "%-40s %8.2f %8.2f   %.2f\n", what, a, b, a / b }'; }
printf '%-40s %8s %8s   %s\n' "CPU seconds" ours other ratio
for target; do
  for checkout in "$other" "$ours"; do
    rm -rf "$work/build"
    # Not ccache; an empty launcher would be replaced by it.
    cmake -S "$checkout" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER_LAUNCHER=/usr/bin/env >"$work/log" 2>&1
    [ "$checkout" = "$ours" ] || before=$(seconds ninja -C "$work/build" "${target#*:}")
    [ "$checkout" = "$other" ] || ratio "$(seconds ninja -C "$work/build" "${target%:*}")" "$before" "$target"
  done
done
# The last build is ours; the other's headers are found by a configured build folder of its own.
cmake -S "$other" -B "$work/other" -G Ninja -DCMAKE_BUILD_TYPE=Release >"$work/log" 2>&1
for headers in 'rondo/runtime/tensor/tensor.h rondo/modules/module.h' 'rondo/rondo.h'; do
  for header in $headers; do echo "#include \"$header\""; done >"$work/user.cc"
  echo 'int main() {}' >>"$work/user.cc"
  : >"$work/ours"; : >"$work/others"
  for round in 1 2 3 4 5; do
    seconds g++ -std=c++20 -O2 -c -I"$work/build/include" -o "$work/user.o" "$work/user.cc" >>"$work/ours"
    seconds g++ -std=c++20 -O2 -c -I"$work/other/include" -o "$work/user.o" "$work/user.cc" >>"$work/others"
  done
  ratio "$(sort -n "$work/ours" | sed -n 3p)" "$(sort -n "$work/others" | sed -n 3p)" "a file of ${headers// / and }"
done
