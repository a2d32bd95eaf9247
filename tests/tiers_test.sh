#!/usr/bin/env bash
# How tests come into tiers (tiers.cmake, discover.cmake), with test programs that are scripts.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$here/discover.cmake" "$here/tiers.cmake" "$work"
cd "$work"
fail() { echo "tiers: $*"; cat "$work/log" "$work"/*_tests.cmake; exit 1; }
# program NAME TESTS: prints them when asked for its list, says which it runs, and fails if it runs Sum.Bad.
program() {
  printf '#!/bin/sh\ncase $1 in --gtest_list_tests) echo "%s" ;; *Bad*) exit 1 ;; *Skips*) exit 77 ;; esac\n' "$2" >"$1"
  chmod +x "$1"
}
sums=$'Sum.\n  Rows\n  Bad\n  DISABLED_Never\nCases/Sort.\n  Lines/0  # GetParam() = 4-byte [;] object\n  Lines/1  # GetParam() = 8'
program short "$sums"$'\nLater.\n  Seeds\nSkips.\n  Always'
program all "$sums"$'\nLater.\n  Seeds\nSkips.\n  Always\nOnCuda.\n  Long'
cat >TIERS.md <<'TABLE'
| folder | left out | tier | why |
|---|---|---|---|
| kernels | `long_test.cc` | all | of another file |
| kernels | `Later.*` | nightly | takes hours |
| kernels | `Sum.Rows` | short | quick |
| kernels | `Sum.*:Cases/*/1` | all | takes minutes |
| other | `Sum.*` | all | of another folder |
TABLE
discover() {
  cmake -D FOLDER=kernels -D PROGRAM="$work/$1" -D WRITE="$2" -D FILE="$work/$1_tests.cmake" "-DCUDA=*OnCuda.*" \
    "-DENVIRONMENT=A=b;RONDO_TEST_SKIPPED=77" -D TIMEOUT=9 "${@:3}" -P discover.cmake >log 2>&1
}
discover short short && discover all rest -D OTHER="$work/short" || fail "no list"
printf 'include("%s/%s_tests.cmake")\n' "$work" short "$work" all >CTestTestfile.cmake
listed() { ctest -N "$@" 2>>log | sed -nE 's/^ *Test +#[0-9]+: //p' | sort | paste -sd' '; }
expect() { local wanted=$1; shift; [ "$(listed "$@")" = "$wanted" ] || fail "ctest $* lists '$(listed "$@")', not '$wanted'"; }
expect "Cases/Sort.* Skips.* Sum.*" -L '^short$'
expect "Cases/Sort.* (all) OnCuda.* Sum.* (all)" -LE '^short$'
expect "Later.*" -C nightly -L '^nightly$'
expect "OnCuda.*" -L '^cuda$'
[ "$(listed -L '^kernels$' | grep -o '\.\*' | wc -l)" = 6 ] || fail "a test lacks the label of its folder"
grep -qF -- '--gtest_filter=Sum.Rows]' short_tests.cmake || fail "the suite in part has another filter"
grep -qF -- '--gtest_filter=Skips.*]' short_tests.cmake || fail "the whole suite has another filter"
ctest >log 2>&1 && fail "a test fails, and CTest does not see it"
grep -qE 'Skips\.\* \.+\*\*\*Skipped' log && grep -qE 'Sum\.\* \(all\) \.+\*\*\*Failed' log || fail "CTest does not say which was skipped and failed"
# Where there is one program, it is in both tiers.
discover short both || fail "no list"
echo "include(\"$work/short_tests.cmake\")" >CTestTestfile.cmake
expect "Cases/Sort.* Cases/Sort.* (all) Skips.* Sum.* Sum.* (all)"
discover short short -D APART=1 || fail "no list"
expect "Cases/Sort.Lines/0 Skips.Always Sum.Rows" -L '^short$'
# A row that matches nothing, and one that cannot be read.
sed -i 's/`Later/`Sooner.*:Later/' TIERS.md
! discover all rest -D OTHER="$work/short" && grep -q 'nothing that matches `Sooner' log || fail "a row that matches nothing passes"
sed -i 's/ nightly / sometimes /' TIERS.md
! discover all rest -D OTHER="$work/short" && grep -q 'a row is' log || fail "a row with an unknown tier passes"
echo "tiers: every test is in one of them"
