#!/usr/bin/env bash
# Prints the path of the first Python that works, 3.11 or newer: `scripts/python.sh [VERSION...]`.
# Each candidate is run, because a pyenv shim is on PATH also for versions it then refuses to start.
set -euo pipefail

[ $# -gt 0 ] || set -- 3.11 3.12 3.13 3
for version in "$@"; do
  for candidate in "python$version" "$HOME"/.pyenv/versions/"$version"*/bin/"python$version"; do
    "$candidate" -c 'import sys; sys.version_info >= (3, 11) or sys.exit(1); print(sys.executable)' 2>/dev/null && exit 0
  done
done
echo "missing: a working Python (tried: $*); Redrive needs 3.11 or newer" >&2
exit 1
