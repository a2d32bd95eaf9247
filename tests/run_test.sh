#!/usr/bin/env bash
# What tests/run.sh and .ci/run build and run, with a cmake and a ctest that only say what they are asked for.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/tree/{cmake,tests,.ci,build} "$work/bin"
cp "$here/run.sh" "$work/tree/tests"
cp "$here/../.ci/run" "$work/tree/.ci"
printf '#!/bin/sh\n' >"$work/tree/cmake/install_packages.sh"
printf '#!/bin/sh\necho "systems.sh $*" >>"%s/ran"\n' "$work" >"$work/tree/tests/systems.sh"
printf '#!/bin/sh\n' | tee "$work/bin/aarch64-linux-gnu-g++" >"$work/bin/qemu-aarch64-static"
for program in cmake ctest; do
  printf '#!/bin/sh\necho "%s $*" >>"%s/ran"
case "$*" in *-O*) echo "100%% tests passed, 0 tests failed out of 7" | tee "${*##* }" ;; esac
case "$*" in $FAILS) exit 8 ;; esac\n' $program "$work" >"$work/bin/$program"
done
chmod +x "$work"/bin/* "$work"/tree/*/*.sh
export PATH=$work/bin:$PATH FAILS=nothing
# expect "exit code" "what ran, but for the number of jobs" ARGUMENT...
expect() {
  local code=0 expected=$1 wanted=$2
  shift 2
  : >"$work/ran"
  "$work/tree/${script:-tests/run.sh}" "$@" >"$work/log" 2>&1 || code=$?
  if [ $code != "$expected" ] || [ "$(sed -E 's/ --no-tests=error -j[0-9]+//; s/ -O .*//' "$work/ran")" != "$wanted" ]; then
    echo "${script:-tests/run.sh} $*: exit code $code"
    diff <(echo "$wanted") "$work/ran"
    exit 1
  fi
}
short='cmake --preset release
cmake --build --preset release --target short_tests
ctest --preset release -L ^short$'
all="$short
cmake --build --preset release
ctest --preset release -LE ^short\$"
expect 0 "$short"
expect 0 "$short" short
expect 0 "$all" all
script=.ci/run expect 0 "$all"
script=.ci/run expect 0 "$all
systems.sh arm64" long
expect 0 'cmake --preset release
cmake --build --preset release --target short_optim
ctest --preset release -L ^short$ -L ^optim$' edit optim
expect 0 'cmake --preset tsan
cmake --build --preset tsan
ctest --preset tsan' tsan
expect 0 'cmake --preset asan-ubsan
cmake --build --preset asan-ubsan --target cuda_tests
ctest --preset asan-ubsan -L ^cuda$' asan-ubsan cuda
expect 2 '' edit
# A test that fails in the short tier hides nothing of the rest; where nothing is built, nothing runs.
FAILS='*-L?^short*' expect 8 "$short"
FAILS='*-L?^short*' expect 1 "$all" all
FAILS='*-LE*' expect 1 "$all" all
[ "$(grep -c '^100% tests passed' "$work/log")" = 4 ] || { echo "it does not end with the closing lines of both tiers"; exit 1; }
FAILS='*short_tests*' expect 8 "$(head -2 <<<"$short")" all
echo "run.sh: builds and runs what it says"
