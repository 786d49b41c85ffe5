#!/usr/bin/env bash
# Makes the virtual environment VENV with PYTHON and installs Redrive and its tools in it: `scripts/setup.sh VENV PYTHON`.
# Needs nothing but a Python 3.11: what a bare Debian keeps in a package of its own is installed when we may.
set -euo pipefail

venv=$1 python=$2
cd "$(dirname "$0")/.."

# Two terminals may run `make` at once; two pips in one environment break it.
exec 9>"$venv.lock"
flock 9

if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
  if [ "$(id -u)" = 0 ]; then sudo=()
  elif sudo -n true 2>/dev/null; then sudo=(sudo -n)
  else sudo=(false)
  fi
  if ! command -v apt-get >/dev/null || ! "${sudo[@]}" true; then
    echo "missing: $package (on Debian: apt-get install $package)" >&2
    exit 1
  fi
  echo "installing $package"
  "${sudo[@]}" apt-get update -qq
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >/dev/null
fi

# Kept when it works, so that a change of a setting costs seconds; made anew when its interpreter is gone.
"$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$python" -m venv --clear "$venv"
pip=("$venv/bin/python" -m pip --quiet --disable-pip-version-check)
# The pip that comes with Python 3.11 does not know dependency groups.
"${pip[@]}" install --constraint constraints.txt pip
"${pip[@]}" install --constraint constraints.txt --build-constraint constraints.txt --editable '.[all]' --group dev --group bench
"$venv/bin/python" -m pip --quiet check
