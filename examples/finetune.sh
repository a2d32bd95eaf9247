#!/usr/bin/env bash
# From a fresh Debian to a fine-tuned language model: installs what is missing, builds finetune, makes a small model as
# Hugging Face publishes them, fine-tunes it on this repository's READMEs.
#   examples/finetune.sh [any option of finetune, e.g. --model_name_or_path=models/gpt2 --train_file=book.txt]
# Without --model_name_or_path the model is the one that the tests make: GPT-2 with 2 layers of 32 and random weights, so
# all of it is trained (--full). The build goes to build/quickstart in the repository, the result to ./tuned.
set -euo pipefail
say() { printf '\n== %s\n' "$*"; }
fail() { printf 'finetune.sh: %s\n' "$*" >&2; exit 1; }

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$repository/build/quickstart

say "Packages"
"$repository/cmake/install_packages.sh" test || fail "the packages could not be installed"

say "Build"
mkdir -p "$repository/build"
cmake -S "$repository" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DRONDO_BUILD_TESTS=ON \
  -DRONDO_BUILD_BENCHMARKS=OFF >"$repository/build/quickstart.log" 2>&1 ||
  { cat "$repository/build/quickstart.log" >&2; fail "cmake found something missing, see above"; }
cmake --build "$build" --target finetune make_model || fail "the build failed, see above"

options=()
case " $* " in
  *" --help "*) exec "$build/bin/finetune" --help ;;
  *" --model_name_or_path"*) ;;
  *)
    "$build/bin/make_model" "$build/model"
    options+=("--model_name_or_path=$build/model" --full --block_size=64 --max_steps=400 --learning_rate=3e-3 --eval_steps=100)
    ;;
esac
case " $* " in
  *" --train_file"*) ;;
  *)
    (cd "$repository" && find . -name README.md -not -path './build/*' | LC_ALL=C sort | xargs cat) >"$build/readmes.txt"
    options+=("--train_file=$build/readmes.txt")
    ;;
esac

say "Fine-tuning"
exec "$build/bin/finetune" "${options[@]}" "$@"
