#!/usr/bin/env bash
# examples/embed as what it is: a program of its own, against what prefix_test.sh installed from BUILD.
#   embed_test.sh BUILD
set -euo pipefail
build=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
cached() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "$1"; cat "$work/log"; exit 1; }
has() { grep -q -- "$1" "$work/log" || fail "embed did not print: $1"; }
lines=$(wc -l <"$here/../../examples/embed/main.cc")
[ "$lines" -lt 60 ] || { echo "examples/embed/main.cc has $lines lines, not fewer than 60"; exit 1; }

cmake -G Ninja -S "$here/../../examples/embed" -B "$work/out" -DCMAKE_PREFIX_PATH="$build/tests/prefix" -DRONDO_KIND=shared \
  -DCMAKE_CXX_COMPILER="$(cached CMAKE_CXX_COMPILER)" -DCMAKE_CXX_FLAGS="-Wall -Wextra -Werror" >"$work/log" || fail "configure"
cmake --build "$work/out" >"$work/log" || fail "build"
"$build/bin/make_model" "$work/model"
for i in $(seq 200); do echo "the $((i % 7)) of them went into the water, and we looked about."; done >"$work/text.txt"
embed() { "$work/out/embed" "$work/model" "$work/text.txt" "$work/$1" "${@:2}"; }

# ---- To the end: there is text before and after, and an adapter.
embed finished 400 </dev/null >"$work/log" 2>&1 || fail "embed failed"
has "---- before"; has "step 400/400"; has "finished"; has "---- after"
[ -f "$work/finished/adapter_model.safetensors" ] || fail "no adapter"
# What was learned: its sentence, which it did not know before. (The losses that it shows depend on when it looks.)
sed '/---- after/,$d' "$work/log" | grep -q "into the water" && fail "the text was known before"
sed -n '/---- after/,$p' "$work/log" | grep -q "into the water" || fail "the text was not learned"

# ---- Cancelled by a key, in the middle of a run that would take hours.
mkfifo "$work/keys"
embed cancelled 1000000 <"$work/keys" >"$work/log" 2>&1 &
program=$!
exec 3>"$work/keys"
for _ in $(seq 600); do grep -q "step [1-9]" "$work/log" && break; sleep 0.1; done
has "step [1-9]"
echo >&3
wait $program || fail "embed failed after a cancel"
exec 3>&-
has "cancelled"; has "---- after"
[ -f "$work/cancelled/adapter_model.safetensors" ] || fail "no adapter after a cancel"

# ---- On CUDA: on the fake driver, if this build has it.
if [ -e "$build/fake_cuda/libcuda.so.1" ]; then
  RONDO_CUDA_PATH=$build/fake_cuda RONDO_FAKE_CUDA=1:1:512 embed cuda 30 --device=cuda </dev/null >"$work/log" 2>&1 || fail "embed on CUDA"
  has "step 30/30"; has "finished"; has "---- after"
  [ -f "$work/cuda/adapter_model.safetensors" ] || fail "no adapter of CUDA"
fi
embed_status=0
RONDO_CUDA=off embed refused --device=cuda </dev/null >"$work/log" 2>&1 || embed_status=$?
[ $embed_status = 1 ] || fail "status $embed_status"
has "embed: no device cuda:0: no CUDA device: RONDO_CUDA=off"

# ---- What cannot work is a sentence.
embed_status=0
"$work/out/embed" /nowhere "$work/text.txt" "$work/none" </dev/null >"$work/log" 2>&1 || embed_status=$?
[ $embed_status = 1 ] || fail "status $embed_status"
has "embed: .*/nowhere"
