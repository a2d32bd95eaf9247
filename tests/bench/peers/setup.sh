#!/bin/sh
# Makes the virtual environment that the peer benchmarks and tests/reference/record.py run in. It lies
# outside the repository; running this again does nothing when the pinned versions are there.
set -eu
torch_version=2.15.0
numpy_version=2.4.6
root=$(cd "$(dirname "$0")/../../.." && pwd -P)
venv=${RONDO_PEERS_VENV:-$HOME/.cache/rondo-peers}

mkdir -p "$venv"
venv=$(cd "$venv" && pwd -P)
case "$venv/" in
  "$root"/*) rmdir "$venv" 2>/dev/null || true; echo "setup.sh: $venv lies inside the repository; set RONDO_PEERS_VENV" >&2; exit 1 ;;
esac

have() {
  "$venv/bin/python" - "$torch_version" "$numpy_version" 2>/dev/null <<'PY'
import importlib.metadata as m, sys
sys.exit([m.version("torch").split("+")[0], m.version("numpy")] != sys.argv[1:])
PY
}

if have; then
  echo "peers: torch $torch_version and numpy $numpy_version are in $venv"
  exit 0
fi
[ -x "$venv/bin/pip" ] || python3 -m venv "$venv"  # Debian: apt-get install python3-venv
"$venv/bin/pip" install --disable-pip-version-check "torch==$torch_version" "numpy==$numpy_version"
have || { echo "setup.sh: the pinned versions are not importable in $venv" >&2; exit 1; }
echo "peers: torch $torch_version and numpy $numpy_version are in $venv"
