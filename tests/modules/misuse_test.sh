#!/usr/bin/env bash
# What must not compile, and says why in one readable line.   misuse_test.sh COMPILER INCLUDE_FOLDER
set -euo pipefail
compiler=$1 include=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# refuses NAME TEXT MOST_LINES: the program on standard input fails with TEXT, in at most so many lines.
refuses() {
  cat >"$folder/$1.cc"
  if "$compiler" -std=c++20 -fsyntax-only -I"$include" "$folder/$1.cc" 2>"$folder/$1.log"; then echo "$1 compiles"; exit 1; fi
  grep -qE "error: .*$2" "$folder/$1.log" || { head -40 "$folder/$1.log"; echo "$1: another error than '$2'"; exit 1; }
  [ "$(wc -l <"$folder/$1.log")" -le "$3" ] || { cat "$folder/$1.log"; echo "$1: more than $3 lines"; exit 1; }
}

refuses vector "a module cannot be copied or moved, because" 80 <<'CODE'
#include <vector>
#include "rondo/modules/gpt2.h"
int main() {
  std::vector<rondo::nn::GPT2> models;
  models.emplace_back(rondo::nn::GPT2Config{});
}
CODE
refuses copy "a module cannot be copied or moved, because" 20 <<'CODE'
#include "rondo/modules/layers.h"
int main() {
  rondo::nn::Linear a(2, 2);
  rondo::nn::Linear b = a;
}
CODE
refuses self "private" 30 <<'CODE'
#include "rondo/modules/layers.h"
struct A : rondo::nn::Module<A> {
  rondo::Tensor forward(const rondo::Tensor& x) { return x; }
};
struct B : rondo::nn::Module<A> {
  rondo::Tensor forward(const rondo::Tensor& x) { return x * 2.0; }
};
int main() { B b; }
CODE
echo "misuse: 3 programs are refused"
