#!/usr/bin/env bash
# tests/nightly.sh itself, with parts that do nothing, pass, fail, or are killed, in a repository of its own.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "nightly.sh: $*"; cat "$work/log"; exit 1; }
command -v git >/dev/null && command -v lscpu >/dev/null || { echo "skipped: no git or lscpu"; exit 77; }

mkdir -p "$work"/tree/{cmake,tests/fuzz,tests/dist,tests/compile,tests/mutants,build/release/bin} "$work/bin"
cp "$here/nightly.sh" "$work/tree/tests"
cd "$work/tree"
# Each notes that it ran. RUN_TESTS says how the tests of a preset end.
stub() { printf '#!/bin/sh\necho "%s $*" >>"%s/ran"\n%s\n' "$2" "$work" "${3:-}" >"$1" && chmod +x "$1"; }
stub cmake/install_packages.sh install_packages.sh
for program in cmake ctest; do stub "$work/bin/$program" $program; done
for program in fuzz_tokenizer fuzz_chat_template fuzz_config; do stub build/release/bin/$program $program; done
for script in fuzz/run.sh dist/faults.sh dist/restarts.sh dist/cuda_ranks.sh dist/strangers.sh compile/plugin_races.sh mutants/run.sh systems.sh; do
  stub tests/$script $script
done
stub tests/run.sh run.sh 'eval "${RUN_TESTS:-true}"'
export PATH=$work/bin:$PATH GIT_CONFIG_GLOBAL=/dev/null
echo build >.gitignore
commit() { git add -A && git -c user.name=n -c user.email=n@example.org commit -qm "$1"; }
git init -q && commit first
nightly() { tests/nightly.sh "$@" >"$work/log" 2>&1; }
row() { tests/nightly.sh --table | grep "^| $1 |"; }
all=$(tests/nightly.sh --table | sed -nE 's/^\| ([a-z0-9-]+) \| not run .*/\1/p')
[ "$(wc -w <<<"$all")" -ge 8 ] || fail "the table of a tree in which nothing ran lists: $all"
for part in $all; do grep -qE "^$part\(\) \{" tests/nightly.sh || fail "part '$part' has no function"; done

# One part fails, one is killed, the others pass.
! RUN_TESTS='[ $1 != asan-ubsan ]' nightly || fail "a part failed, and the script did not"
[[ $(row asan-ubsan) = *"| FAILED | "* && $(row tsan) = *"| passed | "* ]] || fail "it says: $(row asan-ubsan) $(row tsan)"
row mutants | grep -qE '^\| mutants \| passed \| [0-9-]+ [0-9:]+ \| [0-9a-f]{12} \| [0-9]+ \| .+ \|$' || fail "it says: $(row mutants)"
RUN_TESTS='kill -9 $(ps -o ppid= -p $PPID)' nightly tsan || true
[[ $(row tsan) = *"| cut off | "* ]] || fail "killed, it says: $(row tsan)"

# The next run does those two alone. After that, nothing; a commit later, all again.
: >"$work/ran"
nightly || fail "it fails"
[ "$(grep -c '^run.sh' "$work/ran")" = 2 ] && ! grep -q '^fuzz' "$work/ran" || fail "it ran: $(cat "$work/ran")"
: >"$work/ran"
nightly && [ ! -s "$work/ran" ] || fail "it ran again: $(cat "$work/ran")"
nightly fuzz && grep -q '^fuzz_config 600' "$work/ran" || fail "a part that is named does not run"
echo >file
nightly && grep -q '^mutants' "$work/ran" || fail "the tree has changed, and nothing runs"
[[ $(row fuzz) = *"+ | "* ]] || fail "it does not say that files had changed: $(row fuzz)"
: >"$work/ran"
commit second
nightly && grep -q '^mutants' "$work/ran" || fail "a new commit, and nothing runs"
! nightly no_part || fail "there is no such part"
echo "nightly.sh: goes on where it was cut off"
