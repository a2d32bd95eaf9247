#!/usr/bin/env bash
# Follows "To add an elementwise op" in runtime/README.md: adds the op softsign to a copy of the sources, in the three files
# that the recipe names, and runs the sweeps on it, eager and compiled.   op.sh BUILD
# Two planted mistakes must then fail: no samples, and a wrong gradient.
# The copy compiles two files. It links everything else from BUILD, because a declaration in ops.h changes no other object.
set -euo pipefail
build=$(cd "$1" && pwd)
source=$(cd "$(dirname "$0")/../.." && pwd)
command -v ninja >/dev/null && [ -f "$build/build.ninja" ] || { echo "skipped: $build was not made for Ninja"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "recipe of an op: $*"; exit 1; }

# ---- The copy. Folders that the recipe must not touch are links.
include=$(sed -n 's/^RONDO_INCLUDE_FOLDER:[A-Z]*=//p' "$build/CMakeCache.txt")
tree=$work/include/rondo
mkdir -p "$tree"
cp -r "$source/runtime" "$source/tests" "$tree"
for entry in "$include"/rondo/*; do
  [ -e "$tree/${entry##*/}" ] || ln -s "$(readlink -f "$entry")" "$tree"
done

# ---- The recipe. insert FILE TEXT: puts standard input in front of the line that begins with TEXT.
insert() {
  cat >"$work/text"
  awk -v text="$2" -v added="$work/text" 'index($0, text) == 1 && !done { while ((getline line <added) > 0) print line; done = 1 }
    { print } END { exit !done }' "$tree/$1" >"$work/new" || fail "no line of $1 begins with '$2'"
  cp "$work/new" "$tree/$1"
}

# 1. The family: the op, its function, and its name in the list at the end.
insert runtime/ops/math.cc 'constexpr OpList kMathOps' <<'TEXT'
constexpr OpDef kSoftsign = elementwise<kFloatingOnly, 1, 0, [](auto x) {
  return x / (scalar::abs(x) + scalar::constant(x, 1.0));
}>("softsign", {.inputs = kFirst}, [](const GradContext& g) {
  const Tensor width = abs(g.input(0)) + 1.0;
  g.set(0, g.grad_out() / (width * width));
});
Tensor softsign(TensorArg x) { return call_floating(kSoftsign, x); }

TEXT
sed -i 's/^constexpr OpList kMathOps = {/&\&kSoftsign, /' "$tree/runtime/ops/math.cc"

# 2. The declaration.
insert runtime/ops/ops.h 'Tensor expm1(' <<'TEXT'
Tensor softsign(TensorArg x);  // x / (1 + |x|)
TEXT

# 3. The samples.
insert tests/op_samples.cc '    {.name = "expm1",' <<'TEXT'
    {.name = "softsign", .make = &unary<plain>},
TEXT

files="runtime/ops/math.cc runtime/ops/ops.h tests/op_samples.cc"
changed=$(for folder in runtime tests; do diff -rq "$source/$folder" "$tree/$folder" || true; done | sed -E "s|^Files $source/([^ ]*) .*|\1|")
[ "$changed" = "$(tr ' ' '\n' <<<"$files")" ] || fail "it takes three files, not: $changed"
for named in 'family file' ops/ops.h tests/op_samples.cc; do
  grep -A 4 'To add an elementwise op' "$source/runtime/README.md" | grep -qF "$named" || fail "runtime/README.md does not name the $named"
done

# ---- The build. compile FILE: as BUILD compiles it, but with the copy's headers.
mkdir -p "$work/objects"
units=$(sed -n 's/^RONDO_UNITY_FOLDER:[A-Z]*=//p' "$build/CMakeCache.txt")
commands=$(ninja -C "$build" -t commands bin/test_runtime bin/test_compile) || fail "BUILD has no test programs"
compile() {
  local command compiled copied
  # FILE, or the unit that it is compiled in (cmake/unity.cmake), with the copy's files.
  compiled=$(grep -lsF "\"rondo/$1\"" "$units"/*.cc | grep -xFf <(grep -oE ' -c [^ ]+' <<<"$commands" | cut -c 5-) || echo "$source/$1")
  copied=$tree/$1
  command=$(grep -F -- " -c $compiled" <<<"$commands") || fail "BUILD does not compile $1"
  # A unit names its files as "rondo/...": those of the include folder, which is the copy's. Precompiled headers are not.
  [ "$compiled" = "$source/$1" ] || copied=$compiled
  sed -E "s| -I$include | -I$work/include |; s| -MD -MT [^ ]+ -MF [^ ]+||; s| -include [^ ]+/precompiled/[^ ]+||; s| -o [^ ]+| -o $work/objects/$(basename "$1" .cc).o|
          s| -c $compiled| -c $copied|" <<<"$command" >"$work/compile_$(basename "$1")"
  (cd "$build" && sh -e "$work/compile_$(basename "$1")") || fail "$1 does not compile"
}
# link PROGRAM OBJECT...: PROGRAM with these objects in front of the archives. The linker then leaves the archives' own out.
link() {
  local program=$1 objects="" command object
  shift
  for object; do objects+=" $work/objects/$object.o"; done
  command=$(ninja -C "$build" -t commands -s "bin/$program" | tail -n 1 | sed 's/ && /\n/g' | grep -- " -o bin/$program ")
  (cd "$build" && eval "${command/ -o bin\/$program / -o $work/$program $objects }") || fail "$program does not link"
}
# sweep PROGRAM FILTER: the sweep of the new op alone.
sweep() { RONDO_CACHE_DIR=$work/cache RONDO_TEST_OP=softsign "$work/$1" --gtest_brief=1 --gtest_filter="$2" >"$work/log" 2>&1; }

compile runtime/ops/math.cc &
compile tests/op_samples.cc &
wait -n && wait -n || exit 1

# Without samples, the sweep names the op.
link test_runtime math
! sweep test_runtime OpSweep.EveryOpHasSamplesAndEverySampleAnOp && grep -q "op 'softsign' has no line" "$work/log" ||
  fail "an op without samples passes: $(cat "$work/log")"
link test_runtime math op_samples
link test_compile math op_samples
for run in 'test_runtime OpSweep.*' 'test_compile CompiledOpSweep.*'; do
  case $run in *Compiled*) grep -q '^LLVM_DIR:PATH=/' "$build/CMakeCache.txt" || continue ;; esac  # built without a compiler
  sweep $run || { cat "$work/log"; fail "the sweep fails: $run"; }
  grep -qE '^\[  PASSED  \] ([5-9]|[1-9][0-9]+) tests' "$work/log" || { cat "$work/log"; fail "it ran too little: $run"; }
done

# A wrong gradient.
sed -i 's|g.grad_out() / (width \* width)|g.grad_out() / width|' "$tree/runtime/ops/math.cc"
compile runtime/ops/math.cc
link test_runtime math op_samples
! sweep test_runtime 'OpSweep.*' && grep -q softsign "$work/log" || fail "a wrong gradient passes: $(cat "$work/log")"
echo "recipe of an op: three files, and the sweeps see it"
