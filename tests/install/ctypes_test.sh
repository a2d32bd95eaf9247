#!/usr/bin/env bash
# Uses the installed shared library from Python.   ctypes_test.sh BUILD
set -euo pipefail
build=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
[ -z "$(sed -n 's/^RONDO_SANITIZE:[A-Z]*=//p' "$build/CMakeCache.txt")" ] ||
  { echo "skipped: a library with sanitizers cannot be loaded into a program without them"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$build/bin/make_model" "$work/model"
python3 "$here/ctypes_test.py" "$(echo "$build"/tests/prefix/lib/librondo.so.*.*.*)" "$work/model" "$work"
