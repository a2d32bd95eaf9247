#!/usr/bin/env bash
# Installs what is missing, builds, and runs tests. TIERS.md says which test is in which tier.
#   tests/run.sh                 the short tier: what a newcomer waits for
#   tests/run.sh all             every test: the short tier, then the rest
#   tests/run.sh edit FOLDER     after an edit: builds and runs the short tests of one folder, as runtime
#   tests/run.sh PRESET [LABEL]  every test in another build (debug, asan-ubsan, tsan, x86-64-v3), or those with a label:
#                                asan-ubsan cuda
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-short} label=${2:-}
preset=$what
case $what in short | all | edit) preset=release ;; esac
[ $what != edit ] || [ -n "$label" ] || { sed -n '2,8s/^# //p' tests/run.sh >&2; exit 2; }
cmake/install_packages.sh test
cmake --preset "$preset"
build() { cmake --build --preset "$preset" "$@"; }
tests() { ctest --preset "$preset" --no-tests=error -j"$(nproc)" "$@"; }
case $what in
  short) build --target short_tests && tests -L '^short$' ;;
  edit) build --target "short_$label" && tests -L '^short$' -L "^$label\$" ;;
  all)
    build --target short_tests
    failed=0
    tests -L '^short$' -O build/short.log || failed=1
    build
    tests -LE '^short$' -O build/rest.log || failed=1
    for tier in short rest; do
      printf '\n== %s\n' $tier
      sed -n '/ tests passed, /,$p' build/$tier.log
    done
    exit $failed
    ;;
  *)
    if [ "$label" = cuda ]; then build --target cuda_tests; else build; fi
    tests ${label:+-L "^$label\$"}
    ;;
esac
