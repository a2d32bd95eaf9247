#!/usr/bin/env bash
# Builds and runs an outside program.
#   outside_test.sh package BUILD static|shared COMPILER   against what prefix_test.sh installed from BUILD
#   outside_test.sh subproject BUILD static|shared         with Rondo as a subproject
#   outside_test.sh without_llvm BUILD                     against a Rondo that was built without LLVM
# Sources that BUILD compiled with the same flags are not compiled again where there is ccache.
set -euo pipefail
how=$1 build=$(cd "$2" && pwd) kind=${3:-static} compiler=${4:-}
here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../.." && pwd)
cached() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }
compiler=${compiler:-$(cached CMAKE_CXX_COMPILER)}
command -v "$compiler" >/dev/null || { echo "skipped: no $compiler"; exit 77; }
# Beside BUILD, whose paths ccache then knows: relative to the folder that a build runs in, they are the same.
work=$(mktemp -d "$(dirname "$build")/outside.XXXXXX")
out=$work/out
trap 'rm -rf "$work"' EXIT
quietly() { "$@" >"$work/log" 2>&1 || { cat "$work/log"; echo "failed: $*"; exit 1; }; }
# The C compiler of the same family.
c_compiler=$(echo "$compiler" | sed -E 's/clang\+\+/clang/; s/g\+\+/gcc/; s/c\+\+/cc/')
configure() { quietly cmake -G Ninja -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_C_COMPILER="$c_compiler" "$@"; }

cp -r "$here" "$work/project"
sanitize=$(cached RONDO_SANITIZE)
# What a build of Rondo itself in $work needs to meet the other's objects in ccache: the same flags and folders.
export CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_PCH_EXTSUM=1 CCACHE_BASEDIR=$source
again=(-DRONDO_CPU="$(cached RONDO_CPU)" -DRONDO_SANITIZE="$sanitize" -DRONDO_WERROR="$(cached RONDO_WERROR)"
       -DCMAKE_BUILD_TYPE="$(cached CMAKE_BUILD_TYPE)" -DRONDO_INCLUDE_FOLDER="$work/include"
       -DRONDO_UNITY_BUILD="$(cached RONDO_UNITY_BUILD)" -DRONDO_UNITY_FOLDER="$work/unity"
       -DRONDO_PRECOMPILED_HEADERS="$(cached RONDO_PRECOMPILED_HEADERS)"
       -DCMAKE_CXX_COMPILER_LAUNCHER="$(command -v ccache || true)")
prefix=$build/tests/prefix
plugin=$prefix/lib/rondo
case $how in
  package)
    configure -S "$work/project" -B "$out" -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$prefix" -DRONDO_KIND="$kind"
    ;;
  subproject)
    out=$work
    ln -s "$build/precompiled" "$work/precompiled"  # a subproject's own would be in its folder
    name=$(basename "$compiler")
    if [ $kind = shared ] && [ "$(command -v "$name")" = "$compiler" ]; then
      # Without a launcher, as a project that knows nothing of ccache: ccache answers to the compiler's name.
      mkdir "$work/compiler"
      ln -s "$(command -v ccache || echo "$compiler")" "$work/compiler/$name"
      compiler=$work/compiler/$name again+=(-DCMAKE_CXX_COMPILER_LAUNCHER=)
    fi
    configure -S "$work/project" -B "$out" "${again[@]}" -DRONDO_SOURCE="$source" \
      -DRONDO_PRECOMPILED_FOLDER="$work/precompiled" -DBUILD_SHARED_LIBS=$([ $kind = shared ] && echo ON || echo OFF)
    plugin=$out/rondo/lib/rondo
    ;;
  without_llvm)
    prefix=$work/prefix plugin=none
    configure -S "$source" -B "$work" "${again[@]}" -DCMAKE_DISABLE_FIND_PACKAGE_LLVM=ON -DRONDO_BUILD_TESTS=OFF \
      -DRONDO_BUILD_EXAMPLES=OFF -DRONDO_BUILD_BENCHMARKS=OFF
    quietly cmake --build "$work"
    quietly cmake --install "$work" --prefix "$prefix"
    configure -S "$work/project" -B "$out" -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$prefix"
    ;;
esac
quietly cmake --build "$out" --target tiny guest
[ -d "$plugin" ] || plugin=none
if [ $kind = shared ]; then
  # Not by a pipe into `grep -q`: it closes the pipe at the first match, and ldd's next line would fail the pipeline.
  libraries=$(ldd "$out/tiny")
  grep -q "librondo\.so\.[0-9]" <<<"$libraries" || { echo "tiny does not use the shared library:"; echo "$libraries"; exit 1; }
fi
# A cache of its own: the code generator has something to do.
cd "$work"
RONDO_CACHE_DIR=$work/cache "$out/tiny" "$plugin"
if [ $how = package ] && [ "$plugin" != none ]; then
  # A warm start needs no code generator; without either, the error says what is missing.
  rm -rf "$work/moved" && cp -r "$work/cache" "$work/moved"
  ! RONDO_CACHE_DIR=$work/moved "$out/tiny" "$plugin" >"$work/log" || { echo "a warm start loaded the code generator"; exit 1; }
  grep -q "the code generator is from 'none'" "$work/log" || { cat "$work/log"; exit 1; }
fi
# The C API.
"$build/bin/make_model" "$work/model"
RONDO_CACHE_DIR=$work/cache "$out/guest" "$work/model" "$work"
