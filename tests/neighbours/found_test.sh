#!/bin/sh
# What cmake/onednn.cmake writes down of a oneDNN in a folder that the compiler's LIBRARY_PATH names: the dynamic linker
# does not search there.   found_test.sh CMAKE COMPILER SOURCE INCLUDE LIBRARY
set -eu
cmake=$1 compiler=$2 source=$3 include=$4 library=$5
folder=$(cd "$(mktemp -d)" && pwd -P)
trap 'rm -rf "$folder"' EXIT
cp "$library" "$folder"
cat >"$folder/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(found LANGUAGES CXX)
include($source/cmake/onednn.cmake)
END
LIBRARY_PATH=$folder "$cmake" -S "$folder" -B "$folder/build" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" -DRONDO_DNNL_INCLUDE="$include" \
  -DRONDO_DNNL_LIBRARY="$folder/${library##*/}" >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
grep -F ".path = \"$folder/${library##*/}\", .needs = {" "$folder/build/runtime/onednn_file.cc" | grep -F 'nullptr}' ||
  { cat "$folder/build/runtime/onednn_file.cc"; exit 1; }
