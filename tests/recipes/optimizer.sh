#!/usr/bin/env bash
# Follows the recipe for a new optimizer (optim/README.md) in a copy of optim/ and tests/optim/: a formula file, its entry
# in the list, its test case. Exactly three files may differ. The case must pass, and fail when the formula is wrong.
#   tests/recipes/optimizer.sh BUILD        a folder in which test_optim is built, by Ninja
# Two files are compiled. The other objects of test_optim are those of BUILD.
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "$1" && pwd)
recipes=$source/tests/recipes
skip() { echo "skipped: $1"; exit 77; }
fail() { echo "$1"; exit 1; }
[ -f "$build/build.ninja" ] || skip "the build folder is not Ninja's"
[ -x "$build/bin/test_optim" ] || skip "test_optim is not built"
export RONDO_CACHE_DIR=${RONDO_CACHE_DIR:-$build/test_cache}

# ---- The copy. Its include folder is the build's, but for what is copied.
tree=$build/tests/recipe_optimizer
rm -rf "$tree"
mkdir -p "$tree/tests" "$tree/include/rondo/tests"
cp -rp "$source/optim" "$tree/optim"
cp -rp "$source/tests/optim" "$tree/tests/optim"
for entry in "$build"/include/rondo/*; do
  case ${entry##*/} in optim | tests) ;; *) cp -P "$entry" "$tree/include/rondo/" ;; esac
done
for entry in "$source"/tests/*; do ln -s "$entry" "$tree/include/rondo/tests/"; done
rm "$tree/include/rondo/tests/optim"
ln -s "$tree/optim" "$tree/include/rondo/optim"
ln -s "$tree/tests/optim" "$tree/include/rondo/tests/optim"

# ---- The recipe.
# after FILE LINE TEXT: inserts text behind the one line that is LINE.
after() {
  [ "$(grep -cxF -- "$2" "$1")" = 1 ] || fail "$1 has no line, or several, like this: $2"
  line=$2 text=$3 awk '{ print } $0 == ENVIRON["line"] { print ENVIRON["text"] }' "$1" >"$tree/edited"
  cat "$tree/edited" >"$1"
  rm "$tree/edited"
}
cp "$recipes/signum.h" "$tree/optim/signum.h"
after "$tree/optim/optimizers.h" '#include "rondo/optim/sgd.h"' '#include "rondo/optim/signum.h"'
after "$tree/optim/optimizers.h" '#define RONDO_FORMULA_OPTIMIZERS(X) \' '  X(Signum)                         \'
after "$tree/tests/optim/optimizer_cases_test.cc" '  static const std::vector<OptimizerCase> all = {' \
  "$(cat "$recipes/signum_case.txt")"
touched=$({ diff -rq "$source/optim" "$tree/optim"; diff -rq "$source/tests/optim" "$tree/tests/optim"; } || true)
[ "$(wc -l <<<"$touched")" = 3 ] || fail "the recipe touches other files than three:
$touched"

# ---- Two files are compiled and linked with the rest. The commands are those of the build.
cd "$build"
command_of() { ninja -t commands "$1" | tail -1; }
commands=$(ninja -t commands bin/test_optim)
units=$(sed -n 's/^RONDO_UNITY_FOLDER:[A-Z]*=//p' CMakeCache.txt)
# compile FILE: as the build compiles it, into $tree/NAME.cc.o. The file, or the unit that it is compiled in
# (cmake/unity.cmake), is that of the copy.
compile() {
  local command compiled object=$tree/$(basename "$1").o copied=$tree/$1
  compiled=$(grep -lsF "\"rondo/$1\"" "$units"/*.cc | grep -xFf <(grep -oE ' -c [^ ]+' <<<"$commands" | cut -c 5-) || echo "$source/$1")
  command=$(grep -F -- " -c $compiled" <<<"$commands") || fail "the build does not compile $1"
  # A unit names its files as "rondo/...": those of the include folder, which is the copy's.
  [ "$compiled" = "$source/$1" ] || copied=$compiled
  command=$(sed -E "s| -MD -MT [^ ]+ -MF [^ ]+||; s| -o [^ ]+| -o $object|; s| -c $compiled| -c $copied|" <<<"$command")
  eval "${command//"-I$build/include"/"-I$tree/include"}"
}
# In the folder of the program that the short tier has, or of the other one.
case_object=$(command_of bin/test_optim | grep -oE '[^ ]+/optim/optimizer_cases_test\.cc\.o')
link() {
  local command
  command=$(command_of bin/test_optim)
  command=${command#: && }
  command=${command%% && *}
  command=${command/"$case_object"/"$tree/optimizers.cc.o $tree/optimizer_cases_test.cc.o"}
  eval "${command/-o bin\/test_optim/-o "$tree/test_optim"}"
}
run() { "$tree/test_optim" --gtest_filter='*/signum' >"$tree/log" 2>&1; }
compile optim/optimizers.cc
compile tests/optim/optimizer_cases_test.cc
link
run || { tail -40 "$tree/log"; fail "the new optimizer's case fails"; }
for test in Recorded.TenSteps Recorded.StateDictContinuesBitExactly CompiledStep.EqualsEagerToTheBit; do
  grep -q "\[       OK \] .*$test/signum" "$tree/log" || { cat "$tree/log"; fail "$test did not run for the new optimizer"; }
done

# ---- The case sees a wrong formula.
sed -i 's/scalar::fma(-lr, /scalar::fma(lr, /' "$tree/optim/signum.h"
compile optim/optimizers.cc
link
if run; then fail "the new optimizer's case passes with a wrong formula"; fi
grep -q '\[  FAILED  \] .*Recorded.TenSteps/signum' "$tree/log" || { tail -40 "$tree/log"; fail "another test than the case's fails"; }
echo "recipe: a new optimizer is three files:"
echo "$touched"
rm -rf "$tree"
