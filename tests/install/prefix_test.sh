#!/usr/bin/env bash
# Installs BUILD to BUILD/tests/prefix, for the tests that use it, and looks at what was installed.
#   prefix_test.sh BUILD
set -euo pipefail
build=$(cd "$1" && pwd)
prefix=$build/tests/prefix
fail() { echo "$1"; exit 1; }
rm -rf "$prefix"
(umask 002 && cmake --install "$build" --prefix "$prefix") >"$build/tests/install.log" || { cat "$build/tests/install.log"; exit 1; }

# ---- rondo.h and its list of optimizers include every public header, and no other header is there.
diff <(cd "$prefix/include/rondo" && find . -name '*.h' ! -path ./rondo.h ! -path ./rondo_c.h | sed 's|^\./||' | sort) \
  <(cd "$prefix/include/rondo" && sed -n 's|^\(// \)\?#include "rondo/\(.*\)"|\2|p' rondo.h optim/optimizers.h | sort) || fail "rondo.h and the installed headers differ"
for header in $(cd "$prefix/include/rondo" && find . -mindepth 2 -name '*.h'); do
  grep -q '^namespace' "$prefix/include/rondo/$header" || continue  # it declares nothing
  [ "$(grep -c '^#pragma GCC visibility \(push(default)\|pop\)$' "$prefix/include/rondo/$header")" = 2 ] ||
    fail "$header: a shared library exports what stands between #pragma GCC visibility push(default) and pop"
done
# ---- They need no others but Abseil's (nightly, headers_test.sh compiles each of them alone). pkg-config says where they are.
flags=$(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --cflags rondo) || fail "pkg-config does not find it"
[[ $(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --libs rondo) = *-L$prefix/lib*-lrondo* ]] || fail "pkg-config names no library"
# shellcheck disable=SC2086 # a list
printf '#include "rondo/rondo.h"\n#include "rondo/rondo_c.h"\n#include "rondo/optim/formula_code.h"\n' |
  "$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt")" -std=c++20 -fsyntax-only -Wall -Wextra -Wpedantic -Werror \
    $flags -x c++ - || fail "rondo.h does not compile with what was installed"
! grep -rhE '#include [<"](absl|Eigen|oneapi|nlohmann|llvm|pcre2|png|jpeg|immintrin)' "$prefix/include" |
  grep -vE 'absl/(types/span|functional/(function_ref|any_invocable)|container/inlined_vector)\.h' || fail "public headers include what a user must not need"

# ---- The shared library: a name with a version, and no internals.
library=$(echo "$prefix"/lib/librondo.so.*.*.*)
[ -f "$library" ] || fail "no shared library"
readelf -d "$library" | grep 'SONAME.*\[librondo\.so\.[0-9]*\.[0-9]*\]' >/dev/null || fail "no SONAME"
# Imports (U), a version's name (A), and the C API aside: namespace rondo only.
others=$(nm -DC --defined-only "$library" | grep -vE ' [A] | T rondo_[a-z_]+$|(^[0-9a-f]+ . )(vtable for |typeinfo (name )?for |guard variable for |TLS (init|wrapper) function for |VTT for |non-virtual thunk to )?rondo::|\[abi:' |
  grep -v ' rondo::' | head -5 || true)
[ -z "$others" ] || fail "exported: $others"
internals=$(nm -DC --defined-only "$library" |
  grep -E 'rondo::(compile::(Region|Program|DiskCache|CodeStore|KernelTable|LoopKernel)\b|cpu::|io::json)' | head -5 || true)
[ -z "$internals" ] || fail "internals are exported: $internals"
diff <(grep -oE '\brondo_[a-z_]+\(' "$prefix/include/rondo/rondo_c.h" | tr -d '(' | sort -u) \
  <(nm -D --defined-only "$library" | sed -n 's/.* T \(rondo_[a-z_]*\)$/\1/p' | sort) || fail "rondo_c.h and the exported C functions differ"
nm -DC --defined-only "$library" | grep 'typeinfo for rondo::StaleTensorError' >/dev/null || fail "exceptions are not exported"

# ---- The plug-in, and the launcher.
if [ -e "$build/lib/rondo/librondo_jit_llvm.so" ]; then
  [ -z "$(find "$prefix/lib/rondo" -perm /022)" ] || fail "others may write to the code generator or its folder"
fi
"$prefix/bin/rondorun" --nproc-per-node 2 true
