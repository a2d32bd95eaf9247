#!/usr/bin/env bash
# Each header that prefix_test.sh installed from BUILD compiles alone, also when it is included twice, and with a user's
# warnings.   headers_test.sh BUILD
set -euo pipefail
build=$(cd "$1" && pwd)
prefix=$build/tests/prefix
compile() {
  printf '#include "rondo/%s"\n#include "rondo/%s"\n' "$1" "$1" |
    "$2" -std=c++20 -fsyntax-only -Wall -Wextra -Wpedantic -Werror -I"$3/include" -x c++ -
}
export -f compile
(cd "$prefix/include/rondo" && find . -name '*.h' | sed 's|^\./||') |
  xargs -P "$(nproc)" -I{} bash -c 'compile "$@"' _ {} "$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt")" "$prefix"
