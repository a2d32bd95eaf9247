#!/bin/sh
# What Rondo says where oneDNN cannot be used: an error that names the op and the line.
#   library_test.sh NEIGHBOURS NAME LATER EARLIER LACKING      the last three: libraries (other_library.cc) in the place of NAME
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
says "used: $name is version 9\.0, and Rondo was built for version (2 from 2\.6 on|3)"
cp "$4" "$folder/$name"
says "used: $name is version 2\.5, and Rondo was built for version (2 from 2\.6 on|3)"
cp "$5" "$folder/$name"
says "used: $name has no function dnnl_engine_create; Rondo was built for oneDNN [23]\.[0-9]+"
# The next call looks again. The log is empty until the program runs: it says what to wait for.
mkfifo "$folder/go"
: >"$folder/log"
LD_LIBRARY_PATH=$folder "$neighbours" again <"$folder/go" >"$folder/log" &
program=$!
exec 3>"$folder/go"
until grep -q "has no function" "$folder/log"; do
  kill -0 $program || { cat "$folder/log"; exit 1; }
  sleep 0.1
done
rm "$folder/$name"
echo >&3
wait $program || { cat "$folder/log"; exit 1; }
