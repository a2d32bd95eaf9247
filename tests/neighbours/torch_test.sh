#!/bin/sh
# Rondo and libtorch in one process.   torch_test.sh NEIGHBOURS LIBTORCH_CPU PROGRAM...
# NEIGHBOURS prints the losses that each PROGRAM must have, which links both, and that it has itself behind libtorch.
set -eu
alone=$1 libtorch=$2
shift 2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
losses() { "$@" >"$folder/losses" || { grep FAILED "$folder/losses"; echo "failed: $*"; exit 1; }; }
losses "$alone" hidden
mv "$folder/losses" "$folder/wanted"
losses env LD_PRELOAD="$libtorch" "$alone" beside
cmp "$folder/wanted" "$folder/losses"
for program; do
  losses "$program"
  cmp "$folder/wanted" "$folder/losses"
done
