#!/usr/bin/env bash
# Ranks that mpirun starts find each other, and compute what rondorun's do.   mpirun_test.sh RONDORUN DIST_RANK
set -euo pipefail
rondorun=$1 rank_program=$2
command -v mpirun >/dev/null || { echo "skipped: there is no mpirun"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$rondorun" --nproc-per-node 2 --no-prefix "$rank_program" losses >"$folder/ours" 2>"$folder/errors" || {
  grep -q "built without Gloo" "$folder/errors" && { echo "skipped: built without Gloo"; exit 77; }
  cat "$folder/errors"
  exit 1
}
mpirun --allow-run-as-root --oversubscribe -n 2 "$rank_program" losses >"$folder/theirs"
diff <(sort "$folder/ours") <(sort "$folder/theirs")
echo "$(wc -l <"$folder/theirs") losses of two ranks under mpirun: the bits of rondorun's"
