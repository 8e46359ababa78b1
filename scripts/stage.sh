#!/usr/bin/env bash
# Runs one stage of the build and notes its name, seconds and exit status: stage.sh NAME COMMAND [ARGUMENT...]
#
# minutes.py prints the table. STAGES names the file; without it, out/stages.tsv.
set -uo pipefail
stages=${STAGES:-out/stages.tsv}
name=$1
shift
mkdir -p "$(dirname "$stages")"
printf '\n== %s: %s\n' "$name" "$*"
SECONDS=0
"$@"
status=$?
printf '%s\t%d\t%d\n' "$name" "$SECONDS" "$status" >>"$stages"
exit "$status"
