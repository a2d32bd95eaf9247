#!/bin/sh
# What Rondo says where oneDNN cannot be used: an error that names the op and the line.
#   library_test.sh NEIGHBOURS NAME LATER LACKING      LATER and LACKING: libraries (other_library.cc) of oneDNN's NAME
set -eu
neighbours=$1 name=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
says() {
  ! LD_LIBRARY_PATH=$folder "$neighbours" hidden >"$folder/log" || { echo "it trains with $name"; exit 1; }
  grep -E "^FAILED: conv2d: oneDNN cannot be $1 \(.*training\.h:[0-9]+, in conv\)$" "$folder/log" || { cat "$folder/log"; exit 1; }
}
: >"$folder/$name"
says "loaded: .*$name: file too short\. Install oneDNN [23] .*$name.*LD_LIBRARY_PATH"
cp "$3" "$folder/$name"
says "used: $name is version 9\.0, and Rondo was built for version [23]"
cp "$4" "$folder/$name"
says "used: $name has no function dnnl_engine_create; Rondo was built for oneDNN [23]\.[0-9]+"
