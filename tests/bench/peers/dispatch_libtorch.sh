#!/bin/sh
# Compiles dispatch_libtorch.cc against the headers and libraries inside pip's torch and runs it.
# Use: dispatch_libtorch.sh [python that has torch]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
venv=${RONDO_PEERS_VENV:-$HOME/.cache/rondo-peers}
python=${1:-$venv/bin/python}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

torch=$("$python" -c 'import torch, os; print(os.path.dirname(torch.__file__))')
abi=$("$python" -c 'import torch; print(int(torch._C._GLIBCXX_USE_CXX11_ABI))')
# The wheel's dependencies (libgomp, CUDA libraries in CUDA builds) are found through the rpaths inside the wheel.
"${CXX:-g++}" -O2 -std=c++20 -w -D_GLIBCXX_USE_CXX11_ABI="$abi" \
  -isystem "$torch/include" "$here/dispatch_libtorch.cc" -o "$out/dispatch_libtorch" \
  -L"$torch/lib" -Wl,-rpath,"$torch/lib" -Wl,--no-as-needed -ltorch_cpu -lc10 \
  -Wl,--allow-shlib-undefined
OMP_NUM_THREADS=1 "$out/dispatch_libtorch"
