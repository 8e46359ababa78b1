#!/usr/bin/env bash
# Makes .venv and installs everything into it: setup.sh [VENV]
#
# Needs a Python from 3.11 to 3.13 with venv, and nothing else. PYTHON names one; without it, the `python3` on PATH is
# taken if it fits, else the newest that does.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv}

fits() { # a shim may be on PATH and run nothing, so each candidate is really started
  "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null
}

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    if fits "$candidate"; then
      echo "$candidate"
      return
    fi
  done
  echo "make setup needs Python 3.11, 3.12 or 3.13 with its venv module; tried: ${PYTHON:-python3 python3.13 python3.12 python3.11}" >&2
  echo "  install one (Debian and Ubuntu: apt install python3 python3-venv), or name it: make setup PYTHON=/path/to/python3.12" >&2
  return 1
}

if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  python=$(find_python)
  echo "making $venv with $("$python" --version) ($(command -v "$python"))"
  "$python" -m venv --clear "$venv"
fi
# One command for all of it, so that pip settles every version once and takes our distributions from these folders.
"$venv/bin/python" -m pip install --disable-pip-version-check --no-input -r requirements-dev.txt
