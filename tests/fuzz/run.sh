#!/usr/bin/env bash
# Many random programs, compiled against eager, on all cores.   tests/fuzz/run.sh [count] [first seed] [preset]
# Prints the failures, each with its shrunk program and the seed that repeats it. A crash is shrunk, too.
set -euo pipefail
cd "$(dirname "$0")/../.."
count=${1:-20000} first=${2:-0} preset=${3:-release}
program=build/$preset/bin/fuzz_compile
[ -x "$program" ] || { cmake --preset "$preset" && cmake --build --preset "$preset" --target fuzz_compile rondo_jit_llvm; }
export RONDO_CACHE=off
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

# Chunks of seeds, so that a crash costs few of them.
chunk=250
fuzz_chunk() {
  local from=$1 end=$2 log
  log=$logs/$from
  while [ "$from" -lt "$end" ]; do
    if "$program" --steps 20 --from "$from" --count $((end - from)) >>"$log" 2>>"$log.err" || [ $? -eq 1 ]; then return; fi
    # It crashed: shrink that seed in processes of its own, and go on behind it.
    local seed
    seed=$(sed -nE 's/^fuzz_compile: crashed at seed +([0-9]+).*/\1/p' "$log.err" | tail -1)
    [ -n "$seed" ] || { echo "seed $from: fuzz_compile ended without a word" >>"$log"; return; }
    "$program" --steps 20 --isolate --from "$seed" --count 1 >>"$log" 2>/dev/null ||
      echo "seed $seed crashes" >>"$log"
    from=$((seed + 1))
  done
}
export -f fuzz_chunk
export program logs
for ((from = first; from < first + count; from += chunk)); do
  end=$((from + chunk < first + count ? from + chunk : first + count))
  echo "$from $end"
done | xargs -P "$(nproc)" -L 1 bash -c 'fuzz_chunk "$0" "$1"'

cat "$logs"/* | grep -vE '^[0-9]+ programs from seed|^\[rondo' || true
failures=$(cat "$logs"/* | grep -cE '^seed [0-9]+' || true)
compiled=$(cat "$logs"/* | awk '/^[0-9]+ programs from seed/ { sum += $6 } END { print sum + 0 }')
echo "$count programs from seed $first: $compiled ran compiled, $failures failures"
[ "$failures" -eq 0 ]
