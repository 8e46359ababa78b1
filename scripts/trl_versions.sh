#!/usr/bin/env bash
# Trains a step through `agent-env train` on other versions of TRL and transformers than the development environment has.
#   scripts/trl_versions.sh                      the oldest of both, TRL 1.16, and the newest of both
#   scripts/trl_versions.sh 'trl==1.17.*' ...    one environment of these requirements
# Everything else, torch above all, is borrowed from the environment of PYTHON, .venv by default.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(realpath -s "${PYTHON:-.venv/bin/python}")
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# TRL 1.15 computes its loss by a Triton kernel alone. Without a GPU only Triton's interpreter runs it.
export TRITON_INTERPRET=1

step() {
  echo "== $*"
  "$python" -m venv --without-pip --clear "$work/venv"
  local own
  own=$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  # addsitedir, not a mere path: the editable installs of this project are .pth files themselves
  echo "import site; site.addsitedir('$site')" >"$own/borrowed.pth"
  "$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-warn-conflicts --upgrade "$@"
  "$work/venv/bin/python" -c 'import transformers, trl; print("trl", trl.__version__, "transformers", transformers.__version__)'
  "$work/venv/bin/python" -m pytest -q -p no:cacheprovider tests/plugins/trl/train/test_train.py -k "evaluation_and_an_adapter"
}

if [ $# -gt 0 ]; then
  step "$@"
else
  step 'trl==1.15.*' 'transformers==5.2.*' jmespath triton
  step 'trl==1.16.*' 'transformers==5.2.*' jmespath
  step trl transformers
fi
