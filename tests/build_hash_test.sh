#!/usr/bin/env bash
# The hash that guards compiled kernels and the plug-in covers the compiler's sources and everything they include.
#   build_hash_test.sh CMAKE BUILD_HASH_FILE
set -euo pipefail
cmake=$1 real=$2
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "$1"; exit 1; }

# ---- This build's: headers whose enums and structs cross the border to the plug-in, or decide what kernels do.
for header in runtime/op/lowering.h runtime/base/dtype.h runtime/ops/reduction_order.h runtime/op/op.h runtime/base/shape.h compile/codegen/loop_ir.h \
  compile/jit/cpu/plugin.h; do
  grep -qE "/$header( |\$)" "$real.d" || fail "$header is not in the hash"
done

# ---- A tree of its own: b.h is included by a.cc, c.h by b.h; d.h by nobody.
mkdir -p "$work/x"
echo '#include "rondo/x/b.h"' >"$work/x/a.cc"
echo '#include "rondo/x/c.h"' >"$work/x/b.h"
echo '#include "rondo/x/b.h"' >"$work/x/c.h"  # a circle must end
echo >"$work/x/d.h"
hash_of() { "$cmake" -DROOT="$work" -DSOURCES=x/a.cc -DLLVM=none -DCOMPILER="${1:-A 1}" -DOUTPUT="$work/out" -P "$here/../cmake/build_hash.cmake" &&
  sed -n 's/.*code generator \([0-9a-f]*\).*/\1/p' "$work/out"; }
first=$(hash_of)
[ ${#first} = 16 ] || fail "no hash: '$first'"
[ "$(hash_of)" = "$first" ] || fail "the hash is not constant"
echo "// changed" >>"$work/x/d.h"
[ "$(hash_of)" = "$first" ] || fail "the hash covers a file that nothing includes"
[ "$(hash_of "B 1")" != "$first" ] || fail "the hash does not cover the C++ compiler"
echo "// changed" >>"$work/x/c.h"
[ "$(hash_of)" != "$first" ] || fail "the hash does not cover a header that a header includes"
