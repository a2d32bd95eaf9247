#!/usr/bin/env bash
# Installs a build into a fresh folder and builds an outside project against it.   tests/install_test.sh <build folder>
set -euo pipefail
build=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/prefix" > "$work/log" || { cat "$work/log"; exit 1; }
cp -r "$here/install" "$work/project"
# The outside project uses no ccache, no linker and no flags of this build; sanitizers must match the archives, though.
sanitize=$(sed -n 's/^RONDO_SANITIZE:[A-Z]*=//p' "$build/CMakeCache.txt")
cmake -S "$work/project" -B "$work/out" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$work/prefix" \
  ${sanitize:+-DCMAKE_CXX_FLAGS=-fsanitize=$sanitize} > "$work/log" || { cat "$work/log"; exit 1; }
cmake --build "$work/out" > "$work/log" || { cat "$work/log"; exit 1; }
"$work/prefix/bin/rondorun" --nproc-per-node 2 true
"$work/out/tiny" "$work/prefix"
