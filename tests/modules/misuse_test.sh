#!/usr/bin/env bash
# What must not compile, and says why in one readable line.   misuse_test.sh COMPILER INCLUDE_FOLDER
set -euo pipefail
compiler=$1 include=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# refuses NAME TEXT MOST_ERRORS: the program on standard input fails with at most so many errors, and says TEXT on the first
# screen. Compilers differ in how much they say about where a template was instantiated.
refuses() {
  cat >"$folder/$1.cc"
  if "$compiler" -std=c++20 -fsyntax-only -I"$include" "$folder/$1.cc" 2>"$folder/$1.log"; then echo "$1 compiles"; exit 1; fi
  local first
  first=$(grep -nEm1 "error: .*($2)" "$folder/$1.log") || { head -40 "$folder/$1.log"; echo "$1: another error than '$2'"; exit 1; }
  [ "${first%%:*}" -le 40 ] || { cat "$folder/$1.log"; echo "$1: the error comes after more than 40 lines"; exit 1; }
  [ "$(grep -c 'error: ' "$folder/$1.log")" -le "$3" ] || { cat "$folder/$1.log"; echo "$1: more than $3 errors"; exit 1; }
}

refuses vector "a module cannot be copied or moved, because" 5 <<'CODE'
#include <vector>
#include "rondo/modules/transformers/gpt2.h"
int main() {
  std::vector<rondo::nn::GPT2> models;
  models.emplace_back(rondo::nn::GPT2Config{});
}
CODE
refuses copy "a module cannot be copied or moved, because" 2 <<'CODE'
#include "rondo/modules/layers/layers.h"
int main() {
  rondo::nn::Linear a(2, 2);
  rondo::nn::Linear b = a;
}
CODE
refuses self "private|implicitly-deleted" 2 <<'CODE'
#include "rondo/modules/layers/layers.h"
struct A : rondo::nn::Module<A> {
  rondo::Tensor forward(const rondo::Tensor& x) { return x; }
};
struct B : rondo::nn::Module<A> {
  rondo::Tensor forward(const rondo::Tensor& x) { return x * 2.0; }
};
int main() { B b; }
CODE
echo "misuse: 3 programs are refused"
