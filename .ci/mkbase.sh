#!/usr/bin/env bash
# Brings python:3.11-slim and python:3.12-slim, and their other usual names, onto this host: mkbase.sh
#
# From the registry, if the Docker engine reaches one; else they are made out of this host's own files, of a CPython
# below ~/.pyenv/versions (or $PYENV_ROOT), or of Debian's own python3. Images that are there already stay as they are.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
versions=${PYENV_ROOT:-$HOME/.pyenv}/versions

present() { docker image inspect "$1" >/dev/null 2>&1; }

for minor in 3.11 3.12; do
  image=python:$minor-slim
  if present "$image" || timeout 120 docker pull --quiet "$image" 2>/dev/null; then
    continue
  fi
  source=$(find "$versions" -maxdepth 1 -name "$minor.*" 2>/dev/null | sort -V | tail -1)
  if [ -z "$source" ] && [ "$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')" = $minor ]; then
    dpkg -s python3-pip python3-venv >/dev/null 2>&1 || apt-get install -y -qq python3-pip python3-venv >/dev/null
    source=debian
  fi
  if [ -z "$source" ]; then
    echo "no $image: there is no CPython $minor on this host" >&2
    continue
  fi
  python3 "$here/hostclone.py" "$source" | docker import \
    -c 'ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8' \
    -c 'CMD ["python3"]' - "$image" >/dev/null
  for name in "python:$minor" "python:$minor-slim-bookworm" "python:$minor-bookworm"; do
    present "$name" || docker tag "$image" "$name"
  done
  docker run --rm "$image" python -c 'import ctypes, sqlite3, ssl, sys; print("python", sys.version.split()[0], "-", ssl.OPENSSL_VERSION)'
done
