#!/bin/sh
# Writes the source of a library that exports each name that LIBRARY defines, as libtorch does with some of oneDNN's:
# functions that end the process, and data that is none.
#   decoys.sh NM LIBRARY SOURCE
set -eu
{
  cat <<END
#include <cstdlib>
extern "C" {
[[gnu::used]] void rondo_decoy() { std::abort(); }
extern char rondo_decoy_data[1 << 16];
[[gnu::used]] char rondo_decoy_data[1 << 16];
}
END
  # nm's letters: T, W and i are functions; u is unique in a process, and shared with whoever has the name.
  "$1" -D --defined-only "$2" | sed 's/@.*//' | awk '
    function decoy(type, is) { printf "asm(\".globl %s\\n.type %s, %%%s\\n.set %s, %s\");\n", $3, $3, type, $3, is }
    $2 ~ /^[TWi]$/ { decoy("function", "rondo_decoy") }
    $2 ~ /^[VDBR]$/ { decoy("object", "rondo_decoy_data") }'
} >"$3"
