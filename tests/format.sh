#!/usr/bin/env bash
# Every C++ file is as clang-format writes it.   tests/format.sh [--fix]
# The version is that of Debian 12 (14), which CI installs: others format some constructs in another way, so with them the
# check is skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
tool=$(command -v clang-format-14 || command -v clang-format || true)
if [ -z "$tool" ] || ! "$tool" --version | grep -q 'version 14\.'; then
  echo "skipped: no clang-format 14, which CI has (Debian 12's package clang-format-14)"
  exit 77
fi
files() { find cmake runtime modules compile optim dist examples tests -name build -prune -o \( -name '*.cc' -o -name '*.h' \) -print; }
if [ "${1:-}" = --fix ]; then files | xargs "$tool" -i; exit; fi
files | xargs "$tool" --dry-run --Werror
